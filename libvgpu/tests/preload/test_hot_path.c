/* What a hook costs on its fast path, without a clock: not one system call (a filter of the kernel kills the process at
 * the first), and as many instructions with 100,000 live allocations and 63 other processes as with one and none (each
 * is stepped through). Over the null driver (bench/null_driver.c), so that all of it is libvgpu's. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "reach.h"
#include "sandbox.h"

#define NULL_DRIVER "LD_LIBRARY_PATH=" VGPU_BINARY_DIR "/bench/driver:" VGPU_BINARY_DIR "/sim"
#define CALLS 100000
#define STEPPED_CALLS 32
#define IDLE_PROCESSES 63
#define IMPOSSIBLE 77 /* this machine lets nobody look */

static CUfunction function;

static void start_cuda(void) {
    CUcontext context = NULL;
    CUmodule module = NULL;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleGetFunction(&function, module, "kernel"), CUDA_SUCCESS);
}

/* ---- the calls ---- */

static bool alloc_and_free(void) {
    CUdeviceptr pointer = 0;
    return cuMemAlloc_v2(&pointer, 4096) == CUDA_SUCCESS && cuMemFree_v2(pointer) == CUDA_SUCCESS;
}

static bool launch(void) {
    return cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) == CUDA_SUCCESS;
}

static bool launch_ex(void) {
    static const CUlaunchConfig config = {
        .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1};
    return cuLaunchKernelEx(&config, function, NULL, NULL) == CUDA_SUCCESS;
}

static bool free_unknown(void) {
    return cuMemFree_v2(0x1000) == CUDA_ERROR_INVALID_VALUE;
}

static bool refused(void) { /* by the driver, so that the claim is given back */
    CUdeviceptr pointer = 0;
    return cuMemAlloc_v2(&pointer, 0) == CUDA_SUCCESS;
}

static bool system_call(void) {
    return syscall(SYS_getppid) > 0;
}

static const struct {
    const char *name;
    bool (*call)(void);
    bool silent; /* makes no system call */
} subjects[] = {
    {"alloc-and-free", alloc_and_free, true},
    {"launch", launch, true},
    {"launch-ex", launch_ex, true},
    {"free-unknown", free_unknown, true},
    {"refused", refused, true},
    {"system-call", system_call, false}, /* shows that the filter works */
};
#define SUBJECTS (sizeof subjects / sizeof subjects[0])

/* ---- no system call ---- */

/* Kills at anything but the end, and what is passed as `allowed`. */
static bool forbid_system_calls(unsigned allowed) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof filter[0], .filter = filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* On some machines the kernel cannot tell the time without being called; there the clock alone is let through. */
static unsigned clock_if_it_is_a_call(void) {
    int status = 0;
    struct timespec now;
    pid_t pid = fork();
    if (pid == 0) {
        if (!forbid_system_calls(SYS_exit_group))
            _exit(IMPOSSIBLE);
        clock_gettime(CLOCK_MONOTONIC, &now);
        syscall(SYS_exit_group, 0);
    }
    waitpid(pid, &status, 0);
    if (WIFSIGNALED(status))
        fprintf(stderr, "this machine's clock needs system calls: those are not counted\n");
    return WIFSIGNALED(status) ? SYS_clock_gettime : SYS_exit_group;
}

static int run_silently(bool (*call)(void)) {
    int failed = 0;
    unsigned allowed = clock_if_it_is_a_call();
    start_cuda();
    for (int i = 0; i < 1000; i++) /* what is set up at the first calls is set up */
        (void)call();
    if (check_failures > 0 || !forbid_system_calls(allowed))
        return check_failures > 0 ? 1 : IMPOSSIBLE;
    for (int i = 0; i < CALLS; i++)
        failed |= !call();
    syscall(SYS_exit_group, failed);
    return 1;
}

/* ---- as many instructions ---- */

static volatile long phase; /* read by the one who steps: which call it is, from 1 */

static int run_stepped(bool (*call)(void), long live) {
    start_cuda();
    for (long i = 0; i < live; i++) {
        CUdeviceptr pointer = 0;
        if (cuMemAlloc_v2(&pointer, 4096) != CUDA_SUCCESS)
            return 1;
    }
    for (int i = 0; i < 1000; i++)
        (void)call();
    if (check_failures > 0 || ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
        return check_failures > 0 ? 1 : IMPOSSIBLE;
    printf("phase at %p.", (void *)(uintptr_t)&phase);
    fflush(stdout);
    raise(SIGSTOP);
    for (int i = 0; i < STEPPED_CALLS; i++) {
        phase = i + 1;
        (void)call();
    }
    phase = STEPPED_CALLS + 1;
    pause();
    return 1;
}

static int compare_counts(const void *one, const void *other) {
    unsigned long a = *(const unsigned long *)one, b = *(const unsigned long *)other;
    return (a > b) - (a < b);
}

/* Instructions of a call, the median of STEPPED_CALLS: once a second a call does a little more, and on a busy machine
 * that may be several of them. 0 when that cannot be seen here. */
static unsigned long count_instructions(const struct sandbox *sandbox, const char *subject, const char *live) {
    char said[SANDBOX_OUTPUT] = "";
    void *where = NULL;
    unsigned long counts[STEPPED_CALLS] = {0};
    int status = 0;
    const char *const environment[] = {NULL_DRIVER, "CUDA_DEVICE_MEMORY_LIMIT=30000m", NULL};
    struct sandbox_process process =
        sandbox_start(sandbox, true, environment, (const char *[]){sandbox_self(), "stepped", subject, live, NULL});
    for (size_t length = 0; strchr(said, '.') == NULL && length + 1 < sizeof said; length++)
        if (read(process.output, said + length, 1) <= 0)
            break;
    if (sscanf(said, "phase at %p.", &where) != 1) {
        CHECK_EQUAL_THAT(sandbox_finish(&process, NULL), IMPOSSIBLE, said);
        return 0;
    }
    waitpid(process.pid, &status, 0);
    while (WIFSTOPPED(status)) {
        errno = 0;
        long now = ptrace(PTRACE_PEEKDATA, process.pid, where, NULL);
        if (errno != 0 || now > STEPPED_CALLS)
            break;
        if (now > 0)
            counts[now - 1]++;
        if (ptrace(PTRACE_SINGLESTEP, process.pid, NULL, NULL) != 0)
            break;
        waitpid(process.pid, &status, 0);
    }
    CHECK_THAT(WIFSTOPPED(status), said);
    kill(process.pid, SIGKILL);
    (void)sandbox_finish(&process, NULL);
    qsort(counts, STEPPED_CALLS, sizeof counts[0], compare_counts);
    return counts[STEPPED_CALLS / 2];
}

static int run_idle(void) {
    start_cuda();
    puts("ready");
    fflush(stdout);
    pause();
    return 1;
}

/* ---- the tests ---- */

static bool test_no_system_call(void) {
    bool possible = true;
    for (size_t i = 0; i < SUBJECTS && possible; i++) {
        char output[SANDBOX_OUTPUT];
        struct sandbox sandbox = sandbox_make();
        const char *const environment[] = {NULL_DRIVER, "CUDA_DEVICE_MEMORY_LIMIT=30000m", NULL};
        int status = sandbox_run(&sandbox, true, environment,
                                 (const char *[]){sandbox_self(), "silently", subjects[i].name, NULL}, output);
        sandbox_remove(&sandbox);
        possible = status != IMPOSSIBLE;
        if (possible && !CHECK_EQUAL_THAT(status, subjects[i].silent ? 0 : -SIGSYS, subjects[i].name))
            fputs(output, stderr);
    }
    return possible;
}

/* A quarter more at most: how far a hash table looks is a matter of luck, not of size. */
static void compare(unsigned long alone, unsigned long crowded, const char *what) {
    fprintf(stderr, "%s: %lu instructions, crowded %lu\n", what, alone, crowded);
    CHECK_THAT(crowded <= alone + alone / 4, what);
}

static bool test_flat(void) {
    struct sandbox sandbox = sandbox_make();
    struct sandbox_process idle[IDLE_PROCESSES];
    const char *const environment[] = {NULL_DRIVER, "CUDA_DEVICE_MEMORY_LIMIT=30000m", NULL};
    unsigned long pair_alone = count_instructions(&sandbox, "alloc-and-free", "1");
    unsigned long launch_alone = count_instructions(&sandbox, "launch", "0");
    unsigned long unknown_alone = count_instructions(&sandbox, "free-unknown", "1");
    for (int i = 0; i < IDLE_PROCESSES && pair_alone > 0; i++)
        idle[i] = sandbox_start(&sandbox, true, environment, (const char *[]){sandbox_self(), "idle", "-", NULL});
    for (int i = 0; i < IDLE_PROCESSES && pair_alone > 0; i++)
        CHECK(sandbox_await(&idle[i], "ready"));
    if (pair_alone > 0) {
        compare(pair_alone, count_instructions(&sandbox, "alloc-and-free", "1000"), "alloc and free, 1,000 live");
        compare(pair_alone, count_instructions(&sandbox, "alloc-and-free", "100000"), "alloc and free, 100,000 live");
        compare(unknown_alone, count_instructions(&sandbox, "free-unknown", "100000"), "free of an unknown pointer");
        compare(launch_alone, count_instructions(&sandbox, "launch", "100000"), "launch");
    }
    for (int i = 0; i < IDLE_PROCESSES && pair_alone > 0; i++) {
        kill(idle[i].pid, SIGKILL);
        (void)sandbox_finish(&idle[i], NULL);
    }
    sandbox_remove(&sandbox);
    return pair_alone > 0;
}

static int run_child(const char *mode, const char *subject, const char *live) {
    if (strcmp(mode, "idle") == 0)
        return run_idle();
    for (size_t i = 0; i < SUBJECTS; i++)
        if (strcmp(subjects[i].name, subject) == 0)
            return strcmp(mode, "stepped") == 0 ? run_stepped(subjects[i].call, strtol(live, NULL, 10))
                                                : run_silently(subjects[i].call);
    return 2;
}

int main(int argc, char **argv) {
    if (argc > 2)
        return run_child(argv[1], argv[2], argc > 3 ? argv[3] : "0");
    bool possible = test_no_system_call();
    possible = test_flat() && possible;
    if (check_failures == 0 && !possible)
        fprintf(stderr, "skipped in part: seccomp filters or ptrace are not to be had here\n");
    return check_failures == 0 && !possible ? IMPOSSIBLE : check_done();
}
