/* kill -9 at any moment gives the memory back, and never leaves a lock behind (cases CMM-08, CMM-09). */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "reach.h"
#include "sandbox.h"
#include "vgpu/shm_layout.h"

#define MIB (1024ull * 1024ull)
#define KILLS 150
#define ASKED 10

static void start_cuda(void) {
    CUcontext context = NULL;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

/* Attaches, allocates, frees and asks until it is killed. */
static void run_busy(void) {
    printf("running\n");
    fflush(stdout);
    start_cuda();
    for (;;) {
        CUdeviceptr pointers[8];
        size_t free_bytes = 0, total = 0;
        for (int i = 0; i < 8; i++)
            if (cuMemAlloc_v2(&pointers[i], 10 * MIB) != CUDA_SUCCESS)
                pointers[i] = 0;
        (void)cuMemGetInfo_v2(&free_bytes, &total);
        for (int i = 0; i < 8; i++)
            (void)cuMemFree_v2(pointers[i]);
    }
}

static struct sandbox_process start(const struct sandbox *sandbox, const char *what) {
    const char *environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=1000m", NULL};
    const char *argv[] = {sandbox_self(), what, NULL};
    return sandbox_start(sandbox, true, environment, argv);
}

static int run_workload(const struct sandbox *sandbox, const char *mib, char *output) {
    const char *environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=1000m", NULL};
    const char *argv[] = {WORKLOAD, "alloc", "--mib", mib, NULL};
    return sandbox_run(sandbox, true, environment, argv, output);
}

/* Holds 900 of 1000 MiB; refused 101 more beside it, granted 1000 after its death. */
static void test_held_memory_comes_back(void) {
    struct sandbox sandbox = sandbox_make();
    char output[SANDBOX_OUTPUT];
    const char *environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=1000m", NULL};
    const char *argv[] = {WORKLOAD, "alloc", "--mib", "900", "--hold-until-signal", NULL};
    struct sandbox_process holder = sandbox_start(&sandbox, true, environment, argv);
    CHECK(sandbox_await(&holder, "allocated"));
    CHECK_EQUAL(run_workload(&sandbox, "101", output), 4);
    CHECK_EQUAL(run_workload(&sandbox, "100", output), 0);
    kill(holder.pid, SIGKILL);
    CHECK_EQUAL(sandbox_finish(&holder, NULL), -SIGKILL);
    CHECK_EQUAL(run_workload(&sandbox, "1000", output), 0);
    sandbox_remove(&sandbox);
}

/* case CMM-09: a long-lived process gets the dead one's memory without anyone new coming. */
static int run_survivor(bool asks_first) {
    CUdeviceptr pointer = 0;
    char command = 0;
    size_t free_bytes = 0, total = 0;
    start_cuda();
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 100 * MIB), CUDA_SUCCESS);
    printf("ready\n");
    fflush(stdout);
    CHECK_EQUAL(read(STDIN_FILENO, &command, 1), 1);
    if (asks_first) {
        CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
        CHECK_EQUAL(free_bytes, 900 * MIB);
    }
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 900 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_OUT_OF_MEMORY);
    return check_done();
}

static void test_survivor_gets_it(const char *how) {
    struct sandbox sandbox = sandbox_make();
    char output[SANDBOX_OUTPUT];
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        exit(1);
    int saved = dup(STDIN_FILENO);
    dup2(ends[0], STDIN_FILENO);
    struct sandbox_process survivor = start(&sandbox, how);
    dup2(saved, STDIN_FILENO);
    CHECK(sandbox_await(&survivor, "ready\n"));
    const char *environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=1000m", NULL};
    const char *argv[] = {WORKLOAD, "alloc", "--mib", "800", "--hold-until-signal", NULL};
    struct sandbox_process holder = sandbox_start(&sandbox, true, environment, argv);
    CHECK(sandbox_await(&holder, "allocated"));
    kill(holder.pid, SIGKILL);
    CHECK_EQUAL(sandbox_finish(&holder, NULL), -SIGKILL);
    CHECK_EQUAL(write(ends[1], "x", 1), 1);
    if (!CHECK_EQUAL(sandbox_finish(&survivor, output), 0))
        fputs(output, stderr);
    close(ends[0]);
    close(ends[1]);
    close(saved);
    sandbox_remove(&sandbox);
}

/* ---- in the middle of a call that claims more than it keeps: a pool may grow by a whole chunk ---- */

static int run_grower(void) {
    CUdeviceptr pointer = 0;
    start_cuda();
    (void)cuMemAllocAsync(&pointer, 1 * MIB, NULL); /* stays in the driver */
    return 1;
}

/* For what fits but for that claim. */
static int run_asker(void) {
    CUdeviceptr pointer = 0;
    start_cuda();
    printf("asking\n");
    fflush(stdout);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 990 * MIB), CUDA_SUCCESS);
    return check_done();
}

/* What became of one that waits for the other's claim to settle, which it does by that one's death. */
static int ask_while_the_other_is_killed(char output[SANDBOX_OUTPUT]) {
    static const char *const slow[] = {VGPU_BINARY_DIR "/bin/sim-driver",
                                       "slow",
                                       "cuMemAllocAsync",
                                       "--microseconds",
                                       "2000000000",
                                       "--times",
                                       "1",
                                       NULL};
    struct sandbox sandbox = sandbox_make();
    CHECK_EQUAL(sandbox_run(&sandbox, false, NULL, slow, output), 0);
    struct sandbox_process grower = start(&sandbox, "grower");
    while (!sandbox_has_met(&sandbox, "cuMemAllocAsync") && kill(grower.pid, 0) == 0)
        usleep(1000);
    struct sandbox_process asker = start(&sandbox, "asker");
    CHECK(sandbox_await(&asker, "asking\n"));
    usleep(50000); /* it is waiting then, or the other one is dead before: right in any case */
    kill(grower.pid, SIGKILL);
    CHECK_EQUAL(sandbox_finish(&grower, NULL), -SIGKILL);
    int status = sandbox_finish(&asker, output);
    sandbox_remove(&sandbox);
    return status;
}

/* Who waits gives up after half a second: on a busy machine that may be before this process gets to kill the other. */
static void test_killed_while_another_waits_for_it(void) {
    char output[SANDBOX_OUTPUT] = "";
    int status = 1;
    for (int tries = 0; tries < ASKED && status != 0; tries++)
        status = ask_while_the_other_is_killed(output);
    if (!CHECK_EQUAL(status, 0))
        fputs(output, stderr);
}

static void test_killed_anywhere(void) {
    struct sandbox sandbox = sandbox_make();
    uint64_t state = 3;
    char output[SANDBOX_OUTPUT];
    for (int i = 0; i < KILLS && check_failures == 0; i++) {
        struct sandbox_process busy[2];
        for (int b = 0; b < 2; b++) {
            busy[b] = start(&sandbox, "busy");
            CHECK(sandbox_await(&busy[b], "running\n"));
        }
        usleep((useconds_t)(check_random(&state) % 4000)); /* from before cuInit to the middle of a loop */
        for (int b = 0; b < 2; b++)
            kill(busy[b].pid, SIGKILL);
        for (int b = 0; b < 2; b++)
            CHECK_EQUAL(sandbox_finish(&busy[b], NULL), -SIGKILL);
    }
    CHECK_EQUAL(run_workload(&sandbox, "1000", output), 0);
    struct vg_region *region = sandbox_region(&sandbox);
    CHECK(region != NULL && vg_card_used(region, 0) == 0);
    sandbox_remove(&sandbox);
}

int main(int argc, char **argv) {
    if (argc == 2) {
        if (strcmp(argv[1], "busy") == 0)
            run_busy();
        if (strcmp(argv[1], "grower") == 0)
            return run_grower();
        if (strcmp(argv[1], "asker") == 0)
            return run_asker();
        return run_survivor(strcmp(argv[1], "survivor-asks") == 0);
    }
    test_held_memory_comes_back();
    test_survivor_gets_it("survivor-asks");
    test_survivor_gets_it("survivor-allocates");
    test_killed_while_another_waits_for_it();
    test_killed_anywhere();
    return check_done();
}
