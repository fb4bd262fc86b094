/* The page's share of compute is what a container gets, whatever its environment says, and a change holds from the next
 * launches on. On a virtual clock; a process of its own changes the page in the middle of the ten seconds. */
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "limits_folder.h"
#include "share.h"
#include "sim_clock.h"

#define SECONDS 10
#define PROGRAM_PARTIES 2 /* its one thread, and the one that waits for the end */

struct row {
    const char *what;
    unsigned percent;
    enum vg_limits_policy policy;
    unsigned later_percent; /* from the middle on */
    enum vg_limits_policy later_policy;
    unsigned expected;
};

static const struct row rows[] = {
    {"held", 30, VG_LIMITS_POLICY_FORCE, 30, VG_LIMITS_POLICY_FORCE, 30},
    {"held while the region's switch says so", 30, VG_LIMITS_POLICY_DEFAULT, 30, VG_LIMITS_POLICY_DEFAULT, 30},
    {"not limited", 100, VG_LIMITS_POLICY_FORCE, 100, VG_LIMITS_POLICY_FORCE, 100},
    {"not held", 30, VG_LIMITS_POLICY_DISABLE, 30, VG_LIMITS_POLICY_DISABLE, 100},
    {"raised", 20, VG_LIMITS_POLICY_FORCE, 60, VG_LIMITS_POLICY_FORCE, 40},
    {"lowered", 80, VG_LIMITS_POLICY_FORCE, 20, VG_LIMITS_POLICY_FORCE, 50},
    {"let go", 20, VG_LIMITS_POLICY_FORCE, 20, VG_LIMITS_POLICY_DISABLE, 60},
    {"held from the middle on", 100, VG_LIMITS_POLICY_DEFAULT, 20, VG_LIMITS_POLICY_FORCE, 60},
};

/* ---- the process that changes the page ---- */

static int change_in_the_middle(const char *path, const char *percent, const char *policy) {
    int file = open(path, O_RDWR | O_CLOEXEC);
    struct vg_limits_page *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || page == MAP_FAILED)
        return 1;
    sim_clock_enter(PROGRAM_PARTIES);
    usleep(SECONDS * 1000000 / 2);
    atomic_fetch_add(&page->sequence, 1);
    atomic_store(&page->cards[0].cores_percent, strtoul(percent, NULL, 10));
    atomic_store(&page->policy, (uint32_t)strtoul(policy, NULL, 10));
    atomic_fetch_add(&page->sequence, 1);
    sim_clock_leave();
    return 0;
}

/* ---- the test ---- */

static void run(const struct row *row) {
    struct sandbox sandbox = sandbox_make();
    struct limits_folder folder = limits_folder_make(&sandbox);
    struct vg_limits_page page = limits_page_of(&sandbox, 0, 0);
    char preload[256], parties[64], percent[16], policy[16], output[SANDBOX_OUTPUT], what[128];
    page.cards[0].cores_percent = row->percent;
    page.policy = row->policy;
    limits_page_write(&folder, &page, sizeof page);
    snprintf(preload, sizeof preload, "%s " VGPU_BINARY_DIR "/sim/libsimclock.so", folder.preload);
    snprintf(parties, sizeof parties, SIM_CLOCK_PARTIES "=%u", PROGRAM_PARTIES + 1);
    snprintf(percent, sizeof percent, "%u", row->later_percent);
    snprintf(policy, sizeof policy, "%u", (unsigned)row->later_policy);
    const char *environment[] = {
        preload, "HAMI_SIM_CLOCK=virtual", parties, "CUDA_DEVICE_SM_LIMIT=75", "GPU_CORE_UTILIZATION_POLICY=disable",
        NULL};
    const char *changing[] = {"LD_PRELOAD=" VGPU_BINARY_DIR "/sim/libsimclock.so", "HAMI_SIM_CLOCK=virtual", parties,
                              NULL};
    const char *changer_arguments[] = {sandbox_self(), "change", folder.page, percent, policy, NULL};
    const char *arguments[] = {sandbox_self(), "share", "0 0 0 1000 0 1 0 0 10", NULL}; /* share.c */
    struct sandbox_process changer = sandbox_start(&sandbox, false, changing, changer_arguments);
    struct sandbox_process program = sandbox_start(&sandbox, false, environment, arguments);
    unsigned long long served = 0;
    int status = sandbox_finish(&program, output);
    CHECK_EQUAL_THAT(status, 0, output);
    CHECK_THAT(sscanf(output, "served %llu", &served) == 1, output);
    CHECK_EQUAL_THAT(sandbox_finish(&changer, output), 0, output);
    double got = (double)served / (SECONDS * 1e7);
    snprintf(what, sizeof what, "%s: %u %% expected, %.2f %% got", row->what, row->expected, got);
    CHECK_THAT(fabs(got - row->expected) <= 3.0, what);
    sandbox_remove(&sandbox);
}

int main(int argc, char **argv) {
    if (share_is_program(argc, argv))
        return 0;
    if (argc == 5 && strcmp(argv[1], "change") == 0)
        return change_in_the_middle(argv[2], argv[3], argv[4]);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        run(&rows[i]);
    return check_done();
}
