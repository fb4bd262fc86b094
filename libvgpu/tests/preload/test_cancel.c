/* Threads that are cancelled: the driver's calls are no places where that happens, so ours are none, and no thread goes
 * with a lock in its hands that the whole container waits for. Over the null driver, which has no such place either. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "reach.h"
#include "sandbox.h"

#define MIB (1024ull * 1024ull)
#define NULL_DRIVER "LD_LIBRARY_PATH=" VGPU_BINARY_DIR "/bench/driver:" VGPU_BINARY_DIR "/sim"
#define HELD_MIB 10 /* of 100, by another process: whoever is refused looks whether it lives */
#define LAUNCHES 100000

static CUcontext context;

static void use_device(void) {
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

/* ---- what a thread does that is to be cancelled ---- */

static void begin(void) {
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
}

static void retain(void) {
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
}

static void be_refused(void) {
    CUdeviceptr pointer = 0;
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 91 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
}

static void allocate_and_free(void) {
    CUdeviceptr pointer = 0;
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 90 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
}

static void ask(void) {
    size_t free_bytes = 0, total = 0;
    CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    CHECK_EQUAL(free_bytes, 90 * MIB);
}

/* Waits for its share of compute, which is small. */
static void launch(void) {
    CUmodule module = NULL;
    CUfunction function = NULL;
    CHECK_EQUAL(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleGetFunction(&function, module, "kernel"), CUDA_SUCCESS);
    for (int i = 0; i < LAUNCHES && check_failures == 0; i++)
        CHECK_EQUAL(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
}

static const struct {
    const char *name;
    void (*call)(void);
} calls[] = {{"cuInit", begin}, {"context", retain}, {"refused", be_refused}, {"granted", allocate_and_free},
             {"asks", ask},     {"launches", launch}};

static bool has_returned;

/* Cancelled at the first place where that can be. */
static void *call_while_cancelled(void *call) {
    pthread_cancel(pthread_self());
    calls[*(size_t *)call].call();
    has_returned = true;
    pthread_testcancel();
    return NULL;
}

static void run_cancelled(void) {
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        pthread_t thread;
        void *ended = NULL;
        has_returned = false;
        CHECK_EQUAL(pthread_create(&thread, NULL, call_while_cancelled, &i), 0);
        CHECK_EQUAL(pthread_join(thread, &ended), 0);
        CHECK_THAT(has_returned, calls[i].name);
        CHECK_THAT(ended == PTHREAD_CANCELED, calls[i].name); /* and is not kept from being cancelled afterwards */
    }
    be_refused();
    allocate_and_free();
    if (check_failures > 0)
        return;
    printf("all returned\n");
    fflush(stdout);
    pause();
}

/* ---- other processes of the container ---- */

static void hold(void) {
    CUdeviceptr pointer = 0;
    use_device();
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, HELD_MIB * MIB), CUDA_SUCCESS);
    printf("holding\n");
    fflush(stdout);
    pause();
}

static void come_later(void) {
    use_device();
    be_refused();
    allocate_and_free();
}

static const struct {
    const char *name;
    void (*run)(void);
} bodies[] = {{"cancelled", run_cancelled}, {"hold", hold}, {"come-later", come_later}};

static struct sandbox_process start(const struct sandbox *sandbox, const char *body) {
    static const char *const environment[] = {NULL_DRIVER, "CUDA_DEVICE_MEMORY_LIMIT=100m", "CUDA_DEVICE_SM_LIMIT=5",
                                              NULL};
    return sandbox_start(sandbox, true, environment, (const char *[]){sandbox_self(), body, NULL});
}

int main(int argc, char **argv) {
    for (size_t i = 0; argc == 2 && i < sizeof bodies / sizeof bodies[0]; i++)
        if (strcmp(bodies[i].name, argv[1]) == 0) {
            bodies[i].run();
            return check_done();
        }
    char output[SANDBOX_OUTPUT];
    struct sandbox sandbox = sandbox_make();
    struct sandbox_process holder = start(&sandbox, "hold");
    CHECK(sandbox_await(&holder, "holding\n"));
    struct sandbox_process cancelled = start(&sandbox, "cancelled");
    CHECK(sandbox_await(&cancelled, "all returned\n"));
    struct sandbox_process later = start(&sandbox, "come-later");
    if (!CHECK_EQUAL(sandbox_finish(&later, output), 0))
        fputs(output, stderr);
    kill(cancelled.pid, SIGKILL);
    CHECK_EQUAL(sandbox_finish(&cancelled, output), -SIGKILL);
    CHECK_THAT(*output == '\0', output);
    kill(holder.pid, SIGKILL);
    CHECK_EQUAL(sandbox_finish(&holder, NULL), -SIGKILL);
    sandbox_remove(&sandbox);
    return check_done();
}
