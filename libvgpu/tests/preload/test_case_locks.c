/* Whoever holds the region's lock may be killed: those who wait go on at once, each gets its own slot, limits hold. And
 * the semaphores of other implementations, in whatever state they were left, stop nobody: they are not looked at. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "sandbox.h"
#include "vgpu/shm_layout.h"

#define MIB (1024ull * 1024ull)
#define WAITERS 16
#define EACH_MIB 5
#define REFUSED 4

static const char *const environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=100m", NULL};

/* Dies in the middle, as the process that is under way inside the lock. */
static int hold_lock(const char *region) {
    int file = open(region, O_RDWR | O_CLOEXEC);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    CHECK_EQUAL(fcntl(file, F_OFD_SETLKW, &lock), 0);
    printf("holding\n");
    fflush(stdout);
    pause();
    return 1;
}

static int run_alloc(const struct sandbox *sandbox, const char *mib) {
    char output[SANDBOX_OUTPUT];
    return sandbox_run(sandbox, true, environment, (const char *[]){WORKLOAD, "alloc", "--mib", mib, NULL}, output);
}

/* It waits for the lock next, since it has no slot yet. */
static bool has_open(pid_t pid, const char *region) {
    char path[300], target[300];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *directory = opendir(path);
    if (directory == NULL)
        return false;
    for (struct dirent *entry; !found && (entry = readdir(directory)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%d/fd/%.16s", (int)pid, entry->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length < 0 ? 0 : length] = '\0';
        found = strcmp(target, region) == 0;
    }
    closedir(directory);
    return found;
}

static unsigned taken_slots(const struct vg_region *region) {
    unsigned taken = 0;
    for (int i = 0; i < region->slot_count; i++)
        taken += region->slots[i].pid != 0;
    return taken;
}

static bool has_slot_of_its_own(const struct vg_region *region, pid_t pid) {
    unsigned found = 0;
    for (int i = 0; i < region->slot_count; i++)
        if (region->slots[i].pid == pid)
            found += region->slots[i].used[0].total == EACH_MIB * MIB ? 1 : 99;
    return found == 1;
}

static void leave_semaphores(const struct sandbox *sandbox, unsigned char byte, uint64_t owner) {
    unsigned char bytes[32];
    int file = open(sandbox->region, O_RDWR | O_CLOEXEC);
    memset(bytes, byte, sizeof bytes);
    CHECK_EQUAL(pwrite(file, bytes, sizeof bytes, offsetof(struct vg_region, lock_reserved)), sizeof bytes);
    CHECK_EQUAL(pwrite(file, bytes, sizeof bytes, offsetof(struct vg_region, postinit_reserved)), sizeof bytes);
    CHECK_EQUAL(pwrite(file, &owner, sizeof owner, offsetof(struct vg_region, owner_pid)), sizeof owner);
    close(file);
}

/* case CPR-01, CPR-02 */
static void test_killed_holder(unsigned char semaphores, uint64_t owner) {
    struct sandbox sandbox = sandbox_make();
    struct sandbox_process waiters[WAITERS];
    const char *argv[] = {WORKLOAD, "alloc", "--mib", "5", "--hold-until-signal", NULL};
    CHECK_EQUAL(run_alloc(&sandbox, "1"), 0);
    leave_semaphores(&sandbox, semaphores, owner);
    struct vg_region *region = sandbox_region(&sandbox);
    struct sandbox_process holder =
        sandbox_start(&sandbox, false, NULL, (const char *[]){sandbox_self(), sandbox.region, NULL});
    CHECK(sandbox_await(&holder, "holding\n"));
    for (int i = 0; i < WAITERS; i++)
        waiters[i] = sandbox_start(&sandbox, true, environment, argv);
    for (int i = 0; i < WAITERS; i++)
        while (!has_open(waiters[i].pid, sandbox.region) && kill(waiters[i].pid, 0) == 0)
            usleep(1000);
    CHECK_EQUAL(taken_slots(region), 0);
    kill(holder.pid, SIGKILL);
    CHECK_EQUAL(sandbox_finish(&holder, NULL), -SIGKILL);
    for (int i = 0; i < WAITERS; i++)
        CHECK(sandbox_await(&waiters[i], "allocated"));
    CHECK_EQUAL(taken_slots(region), WAITERS);
    for (int i = 0; i < WAITERS; i++)
        CHECK(has_slot_of_its_own(region, waiters[i].pid));
    CHECK_EQUAL(vg_card_used(region, 0), WAITERS * EACH_MIB * MIB);
    CHECK_EQUAL(run_alloc(&sandbox, "21"), REFUSED);
    CHECK_EQUAL(run_alloc(&sandbox, "20"), 0);
    for (int i = 0; i < WAITERS; i++)
        kill(waiters[i].pid, SIGTERM);
    for (int i = 0; i < WAITERS; i++)
        CHECK_EQUAL(sandbox_finish(&waiters[i], NULL), 0);
    CHECK_EQUAL(vg_card_used(region, 0), 0);
    sandbox_remove(&sandbox);
}

int main(int argc, char **argv) {
    if (argc == 2)
        return hold_lock(argv[1]);
    test_killed_holder(0, 0);               /* taken, and nobody's */
    test_killed_holder(0, 0x7ffffff0);      /* taken by one who is gone */
    test_killed_holder(0xff, (uint64_t)-1); /* nonsense */
    return check_done();
}
