/* A change of the limits page costs those it concerns no system call: a process that the kernel kills at its first one
 * sees each new limit, and allocates under it. Over the null driver, which makes none either. */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "limits_folder.h"
#include "reach.h"

#define MIB (1024ull * 1024ull)
#define NULL_DRIVER "LD_LIBRARY_PATH=" VGPU_BINARY_DIR "/bench/driver:" VGPU_BINARY_DIR "/sim"
#define SKIPPED 77

/* A page that test and process share. */
struct told {
    _Atomic uint64_t total;  /* what cuDeviceTotalMem said last */
    _Atomic uint64_t rounds; /* allocated and freed so often */
    _Atomic int failed;      /* a call's code */
    _Atomic int enough;      /* end, please */
};

static struct told *share(const char *path) {
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof(struct told)) != 0)
        return NULL;
    void *mapped = mmap(NULL, sizeof(struct told), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return mapped == MAP_FAILED ? NULL : mapped;
}

static bool forbid_system_calls(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof filter[0], .filter = filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static int run_silently(const char *path) {
    struct told *told = share(path);
    CUcontext context = NULL;
    CUdeviceptr pointer = 0;
    if (told == NULL || cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS || cuMemAlloc_v2(&pointer, 1) != CUDA_SUCCESS ||
        cuMemFree_v2(pointer) != CUDA_SUCCESS)
        return 1;
    if (!forbid_system_calls())
        return SKIPPED;
    while (atomic_load(&told->enough) == 0) {
        size_t total = 0;
        int failed = (int)cuDeviceTotalMem_v2(&total, 0);
        if (failed == 0)
            failed = (int)cuMemAlloc_v2(&pointer, 50 * MIB);
        if (failed == 0)
            failed = (int)cuMemFree_v2(pointer);
        atomic_store(&told->failed, failed);
        atomic_store(&told->total, total);
        atomic_fetch_add(&told->rounds, 1);
    }
    syscall(SYS_exit_group, atomic_load(&told->failed));
    return 1;
}

static bool is_over(pid_t pid) {
    siginfo_t how = {.si_pid = 0};
    return waitid(P_PID, (id_t)pid, &how, WEXITED | WNOHANG | WNOWAIT) != 0 || how.si_pid == pid;
}

int main(int argc, char **argv) {
    if (argc == 2)
        return run_silently(argv[1]);
    struct sandbox sandbox = sandbox_make();
    struct limits_folder folder = limits_folder_make(&sandbox);
    struct vg_limits_page first = limits_page_of(&sandbox, 100, 100);
    char path[128];
    static const uint64_t limits[] = {100, 300, 60, 50, 4096, 77, 100};
    limits_page_write(&folder, &first, sizeof first);
    struct vg_limits_page *page = limits_page_open(&folder);
    snprintf(path, sizeof path, "%s/told", sandbox.directory);
    struct told *told = share(path);
    const char *const environment[] = {NULL_DRIVER, folder.preload, NULL};
    const char *const arguments[] = {sandbox_self(), path, NULL};
    struct sandbox_process process = sandbox_start(&sandbox, false, environment, arguments);
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        limits_page_set_memory(page, 0, limits[i] * MIB);
        while (atomic_load(&told->total) != limits[i] * MIB && !is_over(process.pid))
            sched_yield();
        CHECK_EQUAL(atomic_load(&told->total), limits[i] * MIB);
    }
    atomic_store(&told->enough, 1);
    char output[SANDBOX_OUTPUT];
    int status = sandbox_finish(&process, output);
    if (status == SKIPPED)
        printf("SKIPPED: filters of system calls are not to be had here\n");
    else if (!CHECK_EQUAL(status, 0))
        fputs(output, stderr);
    CHECK(status == SKIPPED || atomic_load(&told->rounds) >= sizeof limits / sizeof limits[0]);
    sandbox_remove(&sandbox);
    return status == SKIPPED ? SKIPPED : check_done();
}
