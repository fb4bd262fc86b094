/* Whose slot it is, and whether that one lives: through exec, stops, spawned children and PID namespaces. */
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "core/region.h"
#include "reach.h"
#include "sandbox.h"
#include "vgpu/shm_layout.h"

#define MIB (1024ull * 1024ull)
#define OUT_OF_MEMORY 4 /* the workload's exit status */
#define SLOT_LOCKS_AT (1ll << 40)

static const char *const environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=100m", NULL};

static int run_alloc(const struct sandbox *sandbox, const char *mib) {
    char output[SANDBOX_OUTPUT];
    const char *argv[] = {WORKLOAD, "alloc", "--mib", mib, NULL};
    return sandbox_run(sandbox, true, environment, argv, output);
}

/* Holds 90 MiB and then does what it is told. */
_Noreturn static void run_body(const char *what) {
    CUcontext context = NULL;
    CUdeviceptr pointer = 0;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 90 * MIB), CUDA_SUCCESS);
    if (strcmp(what, "exec") == 0) {
        unsetenv("LD_PRELOAD");
        execl("/bin/sh", "sh", "-c", "echo another; exec sleep 600", NULL);
    }
    if (strcmp(what, "spawn") == 0) {
        extern char **environ;
        char *argv[] = {(char *)(uintptr_t)"true", NULL};
        pid_t child = 0;
        int status = 1;
        CHECK_EQUAL(posix_spawn(&child, "/bin/true", NULL, NULL, argv, environ), 0);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    if (strcmp(what, "fork") == 0) { /* the child outlives it, and keeps what it inherited */
        pid_t child = fork();
        if (child == 0)
            for (;;)
                pause();
        printf("child %d\n", (int)child);
        fflush(stdout);
        raise(SIGKILL);
    }
    printf("holding\n");
    fflush(stdout);
    for (;;)
        pause();
}

static struct sandbox_process start_body(const struct sandbox *sandbox, const char *what, const char *said) {
    const char *argv[] = {sandbox_self(), what, NULL};
    struct sandbox_process process = sandbox_start(sandbox, true, environment, argv);
    CHECK(sandbox_await(&process, said));
    return process;
}

static void end(const struct sandbox_process *process) {
    kill(process->pid, SIGKILL);
    CHECK_EQUAL(sandbox_finish(process, NULL), -SIGKILL);
}

/* Same pid, same start time, another program without CUDA: it holds nothing any more. */
static void test_exec_to_another_program(void) {
    struct sandbox sandbox = sandbox_make();
    struct sandbox_process process = start_body(&sandbox, "exec", "another");
    CHECK_EQUAL(run_alloc(&sandbox, "100"), 0);
    end(&process);
    sandbox_remove(&sandbox);
}

static void test_stopped_process_stays_counted(void) {
    struct sandbox sandbox = sandbox_make();
    struct sandbox_process process = start_body(&sandbox, "hold", "holding");
    kill(process.pid, SIGSTOP);
    CHECK_EQUAL(run_alloc(&sandbox, "11"), OUT_OF_MEMORY);
    CHECK_EQUAL(run_alloc(&sandbox, "10"), 0);
    end(&process);
    CHECK_EQUAL(run_alloc(&sandbox, "100"), 0);
    sandbox_remove(&sandbox);
}

static void test_spawned_child_changes_nothing(void) {
    struct sandbox sandbox = sandbox_make();
    struct sandbox_process process = start_body(&sandbox, "spawn", "holding");
    CHECK_EQUAL(run_alloc(&sandbox, "11"), OUT_OF_MEMORY);
    CHECK_EQUAL(run_alloc(&sandbox, "10"), 0);
    end(&process);
    sandbox_remove(&sandbox);
}

/* The child still has its parent's descriptor and mapping, and with them its lock; the parent is gone all the same. */
static void test_child_that_outlives_its_parent(void) {
    struct sandbox sandbox = sandbox_make();
    const char *argv[] = {sandbox_self(), "fork", NULL};
    struct sandbox_process process = sandbox_start(&sandbox, true, environment, argv);
    char digits[16] = "", c = 0;
    CHECK(sandbox_await(&process, "child "));
    for (size_t n = 0; n < sizeof digits - 1 && read(process.output, &c, 1) == 1 && c != '\n'; n++)
        digits[n] = c;
    int status = 0;
    CHECK(waitpid(process.pid, &status, 0) == process.pid && WIFSIGNALED(status));
    CHECK_EQUAL(run_alloc(&sandbox, "10"), 0); /* the driver may hold its memory for the child; the account does not */
    struct vg_region *region = sandbox_region(&sandbox);
    CHECK(region != NULL && vg_card_used(region, 0) == 0);
    kill((pid_t)atoi(digits), SIGKILL);
    close(process.output);
    munmap(region, VG_FILE_BYTES);
    sandbox_remove(&sandbox);
}

/* A slot of another PID namespace, of whose pids nothing can be told here: its lock says whether it lives. So a
 * container that starts anew over its old file finds its former processes' memory free. */
static void test_other_pid_namespace(bool lives) {
    struct sandbox sandbox = sandbox_make();
    CHECK_EQUAL(run_alloc(&sandbox, "1"), 0);
    int file = open(sandbox.region, O_RDWR | O_CLOEXEC);
    struct vg_region *region = mmap(NULL, VG_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    struct vg_slot_owner *owner = &vg_extension_of(region)->owners[5];
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = SLOT_LOCKS_AT + 5, .l_len = 1};
    if (lives)
        CHECK_EQUAL(fcntl(file, F_OFD_SETLK, &lock), 0);
    region->slot_count = 6;
    owner->pid_namespace = 12345;
    owner->holds_lock = 1;
    owner->pid = 1; /* a pid that is in use here, too */
    region->slots[5].pid = 1;
    region->slots[5].status = VG_SLOT_RUNNING;
    region->slots[5].used[0].total = region->slots[5].used[0].data = 90 * MIB;
    vg_extension_of(region)->sums[0].word += 90 * MIB;
    CHECK_EQUAL(run_alloc(&sandbox, "11"), lives ? OUT_OF_MEMORY : 0);
    CHECK_EQUAL(vg_card_used(region, 0), lives ? 90 * MIB : 0);
    munmap(region, VG_FILE_BYTES);
    close(file);
    sandbox_remove(&sandbox);
}

int main(int argc, char **argv) {
    if (argc == 2)
        run_body(argv[1]);
    test_exec_to_another_program();
    test_stopped_process_stays_counted();
    test_spawned_child_changes_nothing();
    test_child_that_outlives_its_parent();
    test_other_pid_namespace(true);
    test_other_pid_namespace(false);
    return check_done();
}
