/* case CVM-03: no lock of ours is held across a driver call: while one thread is stuck in the driver, other threads and
 * other processes of the container allocate, free, ask, are refused and join. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "reach.h"
#include "sandbox.h"

#define MIB (1024ull * 1024ull)
#define REFUSED 4 /* exit status of a workload whose allocation was refused */

static void use_device(int device) {
    CUcontext context = NULL;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

static struct sandbox own_sandbox(void) {
    struct sandbox here = {.directory = ""};
    snprintf(here.directory, sizeof here.directory, "%s", getenv("VGPU_TEST_DIRECTORY"));
    snprintf(here.region, sizeof here.region, "%s", getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"));
    return here;
}

static CUdeviceptr held;
static CUcontext second;
static atomic_bool has_returned;

static void call_alloc(void) {
    CUdeviceptr pointer = 0;
    (void)cuMemAlloc_v2(&pointer, MIB);
}

static void call_free(void) {
    (void)cuMemFree_v2(held);
}

static void call_alloc_async(void) {
    CUdeviceptr pointer = 0;
    (void)cuMemAllocAsync(&pointer, MIB, NULL);
}

static void call_create(void) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle handle = 0;
    (void)cuMemCreate(&handle, 2 * MIB, &prop, 0);
}

static void call_destroy(void) {
    (void)cuCtxDestroy_v2(second);
}

static void call_info(void) {
    size_t free_bytes = 0, total = 0;
    (void)cuMemGetInfo_v2(&free_bytes, &total);
}

static void call_synchronise(void) {
    (void)cuCtxSynchronize();
}

static const struct {
    const char *symbol;
    void (*call)(void);
} stuck[] = {{"cuMemAlloc_v2", call_alloc},         {"cuMemFree_v2", call_free},
             {"cuMemAllocAsync", call_alloc_async}, {"cuMemCreate", call_create},
             {"cuCtxDestroy_v2", call_destroy},     {"cuMemGetInfo_v2", call_info},
             {"cuCtxSynchronize", call_synchronise}};

static void *call_and_wait(void *row) {
    use_device(0);
    stuck[*(size_t *)row].call();
    atomic_store(&has_returned, true);
    return NULL;
}

static void make_slow(const char *symbol) {
    char line[256];
    snprintf(line, sizeof line, "%s/bin/sim-driver slow %s --microseconds 2000000000 --times 1", VGPU_BINARY_DIR,
             symbol);
    CHECK_EQUAL(system(line), 0);
}

/* Everything that takes a lock somewhere: charging, settling, a refusal (which looks for the dead), joining. */
static void work_beside(void) {
    static const char *const environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=100m", NULL};
    static const char *const fits[] = {WORKLOAD, "alloc", "--mib", "20", NULL};
    static const char *const does_not[] = {WORKLOAD, "alloc", "--mib", "101", NULL};
    struct sandbox here = own_sandbox();
    char output[SANDBOX_OUTPUT];
    CUdeviceptr pointer = 0;
    for (int i = 0; i < 100; i++) {
        CHECK_EQUAL(cuMemAllocManaged(&pointer, MIB, 1), CUDA_SUCCESS);
        CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
    }
    CHECK_EQUAL(cuMemAllocManaged(&pointer, 200 * MIB, 1), CUDA_ERROR_OUT_OF_MEMORY);
    call_info();
    CHECK_EQUAL(sandbox_run(&here, true, environment, fits, output), 0);
    CHECK_EQUAL(sandbox_run(&here, true, environment, does_not, output), REFUSED);
}

static void body_driver_hangs(size_t row) {
    pthread_t thread;
    use_device(0);
    CHECK_EQUAL(cuMemAlloc_v2(&held, MIB), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxCreate_v2(&second, 0, 0), CUDA_SUCCESS);
    use_device(0);
    make_slow(stuck[row].symbol);
    pthread_create(&thread, NULL, call_and_wait, &row);
    while (!sandbox_has_met(NULL, stuck[row].symbol)) /* nobody else can be caught by it from here on */
        sched_yield();
    work_beside();
    CHECK(!atomic_load(&has_returned)); /* it was in the driver all the while */
    fflush(NULL);
    _exit(check_done());
}

static void test_stuck_in(const char *symbol) {
    struct sandbox sandbox = sandbox_make();
    char output[SANDBOX_OUTPUT], directory[128];
    snprintf(directory, sizeof directory, "VGPU_TEST_DIRECTORY=%s", sandbox.directory);
    const char *environment[] = {directory, "CUDA_DEVICE_MEMORY_LIMIT=100m", NULL};
    const char *argv[] = {sandbox_self(), symbol, NULL};
    if (!CHECK_EQUAL_THAT(sandbox_run(&sandbox, true, environment, argv, output), 0, symbol))
        fputs(output, stderr);
    sandbox_remove(&sandbox);
}

int main(int argc, char **argv) {
    for (size_t i = 0; i < sizeof stuck / sizeof stuck[0]; i++)
        if (argc != 2)
            test_stuck_in(stuck[i].symbol);
        else if (strcmp(stuck[i].symbol, argv[1]) == 0)
            body_driver_hangs(i);
    return check_done();
}
