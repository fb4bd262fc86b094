/* A program that opens the driver itself, closes it and opens it again, and has children by vfork, which share its
 * memory until they exec or end: what is held stays counted, and the limit holds all along. */
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "sandbox.h"
#include "vgpu/abi/cuda_fn.h"

#define MIB (1024ull * 1024ull)

static void *function(void *library, const char *name) {
    void *found = dlsym(library, name);
    CHECK(found != NULL);
    return found;
}
#define FUNCTION(library, symbol, type) ((type)(uintptr_t)function(library, #symbol))

static CUdeviceptr hold(void *library, uint64_t mib, CUresult expected) {
    CUdeviceptr pointer = 0;
    CHECK_EQUAL(FUNCTION(library, cuMemAlloc_v2, PFN_cuMemAlloc_v3020)(&pointer, mib * MIB), expected);
    return pointer;
}

static void run_by_vfork(const char *program) {
    int status = 0;
    pid_t pid = vfork();
    if (pid == 0) {
        if (program != NULL)
            execl(program, program, NULL);
        _exit(0);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void *start(void) {
    CUcontext context = NULL;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(library != NULL);
    CHECK_EQUAL(FUNCTION(library, cuInit, PFN_cuInit_v2000)(0), CUDA_SUCCESS);
    CHECK_EQUAL(FUNCTION(library, cuDevicePrimaryCtxRetain, PFN_cuDevicePrimaryCtxRetain_v7000)(&context, 0),
                CUDA_SUCCESS);
    CHECK_EQUAL(FUNCTION(library, cuCtxSetCurrent, PFN_cuCtxSetCurrent_v4000)(context), CUDA_SUCCESS);
    return library;
}

static void body(void) {
    void *library = start();
    CUdeviceptr first = hold(library, 6, CUDA_SUCCESS);
    run_by_vfork(NULL);
    run_by_vfork("/bin/true");
    (void)hold(library, 5, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(dlclose(library), 0);
    library = start();
    (void)hold(library, 5, CUDA_ERROR_OUT_OF_MEMORY);
    CUdeviceptr second = hold(library, 4, CUDA_SUCCESS);
    PFN_cuMemFree_v3020 release = FUNCTION(library, cuMemFree_v2, PFN_cuMemFree_v3020);
    CHECK_EQUAL(release(first), CUDA_SUCCESS);
    run_by_vfork("/bin/true");
    CUdeviceptr third = hold(library, 6, CUDA_SUCCESS);
    (void)hold(library, 1, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(release(second), CUDA_SUCCESS);
    CHECK_EQUAL(release(third), CUDA_SUCCESS);
}

int main(int argc, char **argv) {
    if (argc == 2 && argv[1][0] == 'c') {
        body();
        return check_done();
    }
    struct sandbox sandbox = sandbox_make();
    char output[SANDBOX_OUTPUT];
    const char *environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=10m", NULL};
    if (!CHECK_EQUAL(sandbox_run(&sandbox, true, environment, (const char *[]){sandbox_self(), "child", NULL}, output),
                     0))
        fputs(output, stderr);
    CHECK_EQUAL(sandbox_books_used(&sandbox, 0, 0), 0);
    sandbox_remove(&sandbox);
    return check_done();
}
