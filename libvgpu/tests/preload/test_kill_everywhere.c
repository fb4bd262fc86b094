/* SIGKILL at every instruction and every system call: whatever a process leaves in the region, those who live on have
 * the right accounts and the whole rest of the slice, without waiting for anything but a lock.
 *
 * A kill leaves the region's words as they are at that moment, and drops locks. So each stretch of interest is walked
 * through once, instruction by instruction, and every content that the region has on the way is kept; then one process
 * after the other finds a region of that content with its maker dead. What is not in the words (the file itself, its
 * locks) changes in system calls only: processes are killed before and after each of theirs. Beyond that processes are
 * truly killed in each stretch at every VGPU_KILL_STRIDE-th instruction (1: at all of them; by default at four). */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "core/region.h"
#include "reach.h"
#include "sandbox.h"
#include "stepper.h"
#include "vgpu/shm_layout.h"

#define MIB (1024ull * 1024ull)
#define LIMIT_MIB 1000
#define HELD_MIB 100 /* by one who lives through it all */
enum { ATTACH, ALLOCATE, FREE, REFUSED, ASK, EXIT, STRETCHES };
static const char *const stretch_names[STRETCHES] = {"attach", "allocate", "free", "refused", "ask", "exit"};

/* ---- processes under the library ---- */

static CUresult start_cuda(void) {
    CUcontext context = NULL;
    CUresult result = cuInit(0);
    if (result == CUDA_SUCCESS)
        result = cuDevicePrimaryCtxRetain(&context, 0);
    return result == CUDA_SUCCESS ? cuCtxSetCurrent(context) : result;
}

/* A mark before each stretch and after the last; exits in the last. */
static int run_victim(void) {
    CUdeviceptr first = 0, second = 0;
    size_t free_bytes = 0, total = 0;
    stepper_ready();
    stepper_mark();
    CHECK_EQUAL(start_cuda(), CUDA_SUCCESS);
    stepper_mark();
    CHECK_EQUAL(cuMemAlloc_v2(&first, 300 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAlloc_v2(&second, 50 * MIB), CUDA_SUCCESS);
    stepper_mark();
    CHECK_EQUAL(cuMemFree_v2(first), CUDA_SUCCESS);
    stepper_mark();
    CHECK_EQUAL(cuMemAlloc_v2(&first, 900 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    stepper_mark();
    CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    stepper_mark();
    return check_done();
}

/* Free is what the others hold not, not a byte more or less, and all of it can be had. */
static int run_survivor(uint64_t others_mib) {
    CUdeviceptr pointer = 0;
    size_t free_bytes = 0, total = 0;
    uint64_t rest = (LIMIT_MIB - others_mib) * MIB;
    CHECK_EQUAL(start_cuda(), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    CHECK_EQUAL(free_bytes, rest);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, rest + 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, rest), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_OUT_OF_MEMORY);
    return check_done();
}

/* ---- the world they live in ---- */

static const char *const environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=1000m", NULL};

struct world {
    struct sandbox sandbox;
    struct sandbox_process holder; /* pid 0 = nobody holds anything */
};

static struct sandbox_process start_self(const struct sandbox *sandbox, const char *what) {
    const char *argv[] = {sandbox_self(), what, NULL};
    return sandbox_start(sandbox, true, environment, argv);
}

static struct sandbox_process start_workload(const struct sandbox *sandbox, const char *mib) {
    const char *argv[] = {WORKLOAD, "alloc", "--mib", mib, "--hold-until-signal", NULL};
    struct sandbox_process process = sandbox_start(sandbox, true, environment, argv);
    CHECK(sandbox_await(&process, "allocated"));
    return process;
}

static void kill_it(const struct sandbox_process *process) {
    char output[SANDBOX_OUTPUT];
    kill(process->pid, SIGKILL);
    if (!CHECK_EQUAL(sandbox_finish(process, output), -SIGKILL))
        fputs(output, stderr);
}

/* Someone dies holding memory, for the next to find. */
static void leave_a_dead_one(const struct world *world) {
    struct sandbox_process dead = start_workload(&world->sandbox, "200");
    kill_it(&dead);
}

static struct world make_world(void) {
    struct world world = {.sandbox = sandbox_make()};
    world.holder = start_workload(&world.sandbox, "100");
    leave_a_dead_one(&world);
    return world;
}

static void end_world(const struct world *world) {
    if (world->holder.pid != 0)
        kill_it(&world->holder);
    sandbox_remove(&world->sandbox);
}

static bool check_survivor(const struct world *world, const char *how, unsigned long at) {
    char output[SANDBOX_OUTPUT], what[96];
    struct sandbox_process survivor = start_self(&world->sandbox, world->holder.pid != 0 ? "100" : "0");
    snprintf(what, sizeof what, "%s %lu", how, at);
    bool fine = CHECK_EQUAL_THAT(sandbox_finish(&survivor, output), 0, what);
    if (!fine)
        fputs(output, stderr);
    return fine;
}

/* Stopped at its first mark. */
static struct sandbox_process start_victim(const struct world *world) {
    struct sandbox_process victim = start_self(&world->sandbox, "victim");
    if (!stepper_attach(victim.pid)) {
        fprintf(stderr, "processes may not be traced here: skipped\n");
        exit(STEPPER_FORBIDDEN);
    }
    CHECK_EQUAL(stepper_run(victim.pid), STEPPER_MARKED);
    return victim;
}

/* Someone dies before a refusal, so that there is something to take out. */
static void prepare(const struct world *world, unsigned stretch) {
    if (world->holder.pid != 0 && stretch == REFUSED)
        leave_a_dead_one(world);
}

static bool has_region_mapped(const struct sandbox_process *process) {
    char path[64], text[65536];
    size_t length = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)process->pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    for (ssize_t got; length < sizeof text - 1 && (got = read(file, text + length, sizeof text - 1 - length)) > 0;)
        length += (size_t)got;
    close(file);
    text[length] = '\0';
    return strstr(text, "/slice/test.cache") != NULL;
}

/* ---- every content of the region on the way ---- */

/* The parts of it that few processes can change. */
static const struct part {
    size_t at, size;
} parts[] = {
    {0, offsetof(struct vg_region, slots) + 4 * sizeof(struct vg_slot)},
    {offsetof(struct vg_region, slot_count), sizeof(struct vg_region) - offsetof(struct vg_region, slot_count)},
    {VG_EXTENSION_OFFSET, offsetof(struct vg_extension, owners) + 4 * sizeof(struct vg_slot_owner)},
};
#define PARTS (sizeof parts / sizeof parts[0])

struct content {
    unsigned stretch;
    unsigned long at;
    char bytes[16384];
};

static bool is_same(const char *region, const struct content *content) {
    size_t from = 0;
    for (size_t i = 0; i < PARTS; from += parts[i++].size)
        if (memcmp(region + parts[i].at, content->bytes + from, parts[i].size) != 0)
            return false;
    return true;
}

static void keep(const char *region, struct content *content) {
    size_t from = 0;
    for (size_t i = 0; i < PARTS; from += parts[i++].size)
        memcpy(content->bytes + from, region + parts[i].at, parts[i].size);
}

static void put(char *region, const struct content *content) {
    size_t from = 0;
    for (size_t i = 0; i < PARTS; from += parts[i++].size)
        memcpy(region + parts[i].at, content->bytes + from, parts[i].size);
}

#define MAX_CONTENTS 1000
static struct content contents[MAX_CONTENTS];
static unsigned content_count;
static unsigned long lengths[STRETCHES]; /* in instructions */

static void keep_if_new(const char *region, unsigned stretch, unsigned long at) {
    if (content_count > 0 && is_same(region, &contents[content_count - 1]))
        return;
    if (!CHECK(content_count < MAX_CONTENTS))
        exit(1);
    contents[content_count] = (struct content){.stretch = stretch, .at = at};
    keep(region, &contents[content_count++]);
}

/* Up to where the victim has the region before it, by system calls: until then it changes nothing. */
static void skip_to_region(const struct sandbox_process *victim) {
    while (!has_region_mapped(victim) && stepper_to_system_call(victim->pid) == STEPPER_MOVED)
        ;
}

static void walk(const struct world *world) {
    struct sandbox_process victim = start_victim(world);
    char *region = (char *)sandbox_region(&world->sandbox);
    enum stepper_stop stop = STEPPER_MOVED;
    skip_to_region(&victim);
    for (unsigned stretch = 0; stretch < STRETCHES && stop != STEPPER_ENDED; stretch++) {
        unsigned long at = 0;
        unsigned before = content_count;
        prepare(world, stretch);
        while ((stop = stepper_step(victim.pid)) == STEPPER_MOVED)
            keep_if_new(region, stretch, ++at);
        printf("%s: %lu instructions, %u contents\n", stretch_names[stretch], at, content_count - before);
        lengths[stretch] = at;
    }
    CHECK_EQUAL(stop, STEPPER_ENDED);
    close(victim.output);
    munmap(region, VG_FILE_BYTES);
}

static void test_what_any_instruction_leaves(void) {
    struct world world = make_world();
    walk(&world);
    int file = open(world.sandbox.region, O_RDWR | O_CLOEXEC);
    char *region = mmap(NULL, VG_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    for (unsigned i = 0; i < content_count && check_failures == 0; i++) {
        put(region, &contents[i]);
        (void)check_survivor(&world, stretch_names[contents[i].stretch], contents[i].at);
    }
    munmap(region, VG_FILE_BYTES);
    end_world(&world);
}

/* ---- true kills ---- */

typedef enum stepper_stop move_function(pid_t pid);

/* Kills it after so many moves; its earlier moves do not count. False: the stretch, or all, ended sooner. */
static bool kill_after(const struct world *world, struct sandbox_process *victim, move_function *move,
                       unsigned long moves, bool within_stretch) {
    unsigned stretch = ATTACH;
    for (unsigned long i = 0; i < moves; i++) {
        enum stepper_stop stop = move(victim->pid);
        if (stop == STEPPER_ENDED) {
            close(victim->output);
            return false;
        }
        if (stop == STEPPER_MARKED && within_stretch) {
            kill_it(victim);
            return false;
        }
        if (stop == STEPPER_MARKED)
            prepare(world, ++stretch);
    }
    kill_it(victim);
    return true;
}

static bool kill_in_stretch(const struct world *world, unsigned stretch, unsigned long instructions) {
    struct sandbox_process victim = start_victim(world);
    if (stretch == ATTACH)
        skip_to_region(&victim);
    for (unsigned i = 0; i < stretch; i++)
        CHECK_EQUAL(stepper_run(victim.pid), STEPPER_MARKED);
    prepare(world, stretch);
    return kill_after(world, &victim, stepper_step, instructions, true);
}

static void test_kill_at_instructions(void) {
    const char *setting = getenv("VGPU_KILL_STRIDE");
    unsigned long kills = 0;
    struct world world = make_world();
    for (unsigned stretch = 0; stretch < STRETCHES; stretch++) {
        /* Without a setting a few times in each: to get there costs as many steps. */
        unsigned long stride = setting != NULL ? strtoul(setting, NULL, 10) : lengths[stretch] / 4 + 1;
        for (unsigned long at = 1; check_failures == 0 && kill_in_stretch(&world, stretch, at); at += stride, kills++)
            (void)check_survivor(&world, stretch_names[stretch], at);
    }
    printf("killed at %lu instructions\n", kills);
    CHECK(kills > STRETCHES);
    end_world(&world);
}

static bool kill_at_system_call(const struct world *world, bool from_region, unsigned long moves) {
    struct sandbox_process victim = start_victim(world);
    if (from_region)
        skip_to_region(&victim);
    return kill_after(world, &victim, stepper_to_system_call, moves, false);
}

/* While there is a region that others use. */
static void test_kill_at_system_calls(void) {
    struct world world = make_world();
    unsigned long at = 0;
    while (check_failures == 0 && kill_at_system_call(&world, true, at))
        (void)check_survivor(&world, "system call", at++);
    printf("killed at %lu system calls\n", at);
    CHECK(at > 50);
    end_world(&world);
}

/* As another implementation leaves it: layout 1.2, nothing behind it, a slot of somebody long gone. */
static void leave_other_layout(const struct sandbox *sandbox) {
    struct vg_region *region = calloc(1, VG_FILE_BYTES);
    struct vgi_limits limits = {.memory_bytes = {LIMIT_MIB * MIB}, .priority = 1};
    char folder[96];
    snprintf(folder, sizeof folder, "%s/slice", sandbox->directory);
    mkdir(folder, 0777);
    vgi_region_lay_out(region, &limits, 1);
    region->minor = 2;
    region->slots[0].pid = 0x7ffffff0;
    region->slots[0].used[0].total = 500 * MIB;
    region->slot_count = 1;
    int file = open(sandbox->region, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    CHECK_EQUAL(write(file, region, sizeof *region + 1), sizeof *region + 1);
    close(file);
    free(region);
}

/* Plain reads: the file may be shorter than a region. */
static bool has_attached(const struct sandbox *sandbox) {
    uint32_t minor = 0;
    int32_t pid = 0;
    int file = open(sandbox->region, O_RDONLY | O_CLOEXEC);
    bool read_both =
        pread(file, &minor, sizeof minor, offsetof(struct vg_region, minor)) == sizeof minor &&
        pread(file, &pid, sizeof pid, VG_EXTENSION_OFFSET + offsetof(struct vg_extension, owners[0].pid)) == sizeof pid;
    close(file);
    return read_both && minor == VG_REGION_MINOR && pid != 0;
}

static unsigned long inode_of(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 ? status.st_ino : 0;
}

static struct world make_world_without_region(bool other_file_in_the_way) {
    struct world world = {.sandbox = sandbox_make()};
    if (other_file_in_the_way)
        leave_other_layout(&world.sandbox);
    return world;
}

/* System calls of a process before it first does something to the file or beside it. */
static unsigned long calls_before_the_file(bool other_file_in_the_way) {
    struct world world = make_world_without_region(other_file_in_the_way);
    unsigned long calls = 0, inode = inode_of(world.sandbox.region);
    char fresh[160];
    snprintf(fresh, sizeof fresh, "%s.new", world.sandbox.region);
    struct sandbox_process victim = start_victim(&world);
    while (inode_of(world.sandbox.region) == inode && inode_of(fresh) == 0 &&
           CHECK_EQUAL(stepper_to_system_call(victim.pid), STEPPER_MOVED))
        calls++;
    kill_it(&victim);
    end_world(&world);
    return calls - 1;
}

/* The first of all makes the file, or replaces one of a layout that it cannot use, and dies at it. */
static void test_kill_while_the_file_is_made(bool other_file_in_the_way) {
    unsigned long first = calls_before_the_file(other_file_in_the_way), at = first;
    for (bool made = false; !made && check_failures == 0; at++) {
        struct world world = make_world_without_region(other_file_in_the_way);
        CHECK(kill_at_system_call(&world, false, at));
        made = has_attached(&world.sandbox);
        (void)check_survivor(&world, other_file_in_the_way ? "replacing" : "making", at);
        end_world(&world);
    }
    printf("killed at %lu system calls %s the file\n", at - first, other_file_in_the_way ? "replacing" : "making");
    CHECK(at - first > 5);
}

int main(int argc, char **argv) {
    if (argc == 2)
        return strcmp(argv[1], "victim") == 0 ? run_victim() : run_survivor(strtoull(argv[1], NULL, 10));
    setvbuf(stdout, NULL, _IOLBF, 0);
    test_what_any_instruction_leaves();
    test_kill_at_instructions();
    test_kill_at_system_calls();
    test_kill_while_the_file_is_made(false);
    test_kill_while_the_file_is_made(true);
    return check_done();
}
