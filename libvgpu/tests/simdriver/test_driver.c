/* The simulated driver by itself, in real processes: it limits nothing but its memory, sees other processes, forgets
 * the dead, and answers for what it lacks. */
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "reach.h"
#include "sandbox.h"
#include "vgpu/abi/nvml_fn.h"

#define MIB (1024ull * 1024ull)
#define CARD_0 "GPU-11111111-2222-3333-4444-000000000000"
#define TOOL VGPU_BINARY_DIR "/bin/sim-driver"

static void use_device(int device) {
    CUcontext context = NULL;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

static uint64_t seen_free(void) {
    size_t free_bytes = 0, total = 0;
    CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    CHECK_EQUAL(total, 40960 * MIB);
    return free_bytes;
}

static void body_memory(void) {
    CUdeviceptr a = 0, b = 0;
    size_t pitch = 0;
    char text[16] = "", sent[16] = "over and back";
    use_device(0);
    CHECK_EQUAL(cuMemAlloc_v2(&a, 41000 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cuMemAlloc_v2(&a, 40960 * MIB), CUDA_SUCCESS); /* nothing is backed until it is touched */
    CHECK_EQUAL(cuMemAlloc_v2(&b, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cuMemcpyHtoD_v2(a + 40000 * MIB, sent, sizeof sent), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemcpyDtoH_v2(text, a + 40000 * MIB, sizeof text), CUDA_SUCCESS);
    CHECK(strcmp(text, sent) == 0);
    CHECK_EQUAL(cuMemcpyHtoD_v2(a + 40960 * MIB - 4, sent, sizeof sent), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuMemFree_v2(a), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemFree_v2(a), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuMemAllocPitch_v2(&a, &pitch, 100, 10, 4), CUDA_SUCCESS);
    CHECK_EQUAL(pitch, 512);
    CHECK_EQUAL(seen_free(), 40960 * MIB - 5120);
    CHECK_EQUAL(a % (2 * MIB), 0);
}

/* A pool keeps what its threshold says and gives the rest back. */
static void body_pool(void) {
    CUmemoryPool pool = NULL;
    CUdeviceptr pointer = 0;
    cuuint64_t value = 0, threshold = UINT64_MAX;
    use_device(0);
    CHECK_EQUAL(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAllocAsync(&pointer, 10 * MIB, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemFreeAsync(pointer, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 40950 * MIB); /* until something waits */
    CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 40960 * MIB);
    CHECK_EQUAL(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), CUDA_SUCCESS);
    for (int i = 0; i < 5; i++) {
        CHECK_EQUAL(cuMemAllocAsync(&pointer, 10 * MIB, NULL), CUDA_SUCCESS);
        CHECK_EQUAL(cuMemFreeAsync(pointer, NULL), CUDA_SUCCESS);
    }
    CHECK_EQUAL(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value), CUDA_SUCCESS);
    CHECK_EQUAL(value, 10 * MIB);
    CHECK_EQUAL(seen_free(), 40950 * MIB);
    CHECK_EQUAL(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 40960 * MIB);
}

static CUresult ask(const char *name, int version, cuuint64_t flags, void **found,
                    CUdriverProcAddressQueryResult *status) {
    return cuGetProcAddress_v2(name, found, version, flags, status);
}

static void body_symbols(void) {
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    void *found = NULL;
    CHECK_EQUAL(ask("cuMemAlloc", 3020, 0, &found, &status), CUDA_SUCCESS);
    CHECK(found == (void *)cuMemAlloc_v2);
    CHECK_EQUAL(ask("cuMemCreate", 10010, 0, &found, &status), CUDA_ERROR_NOT_FOUND);
    CHECK_EQUAL(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    CHECK_EQUAL(ask("cuNoSuchThing", 12080, 0, &found, &status), CUDA_ERROR_NOT_FOUND);
    CHECK_EQUAL(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    CHECK_EQUAL(ask("", 0, 0, &found, &status), CUDA_ERROR_NOT_FOUND);
    CHECK_EQUAL(ask("cuInit", 13010, 0, &found, &status), CUDA_ERROR_INVALID_VALUE); /* newer than the driver */
    CHECK_EQUAL(ask("cuLaunchKernel", 12080, VG_PROC_ADDRESS_PER_THREAD_STREAM, &found, &status), CUDA_SUCCESS);
    CHECK(found == (void *)cuLaunchKernel_ptsz);
    CHECK_EQUAL(ask("cuLaunchKernel", 12080, VG_PROC_ADDRESS_LEGACY_STREAM, &found, &status), CUDA_SUCCESS);
    CHECK(found == (void *)cuLaunchKernel);
    CHECK_EQUAL(ask("cuMemAlloc", 12080, VG_PROC_ADDRESS_PER_THREAD_STREAM, &found, &status), CUDA_SUCCESS);
    CHECK(found == (void *)cuMemAlloc_v2); /* the name has one entry for both */
    CHECK_EQUAL(ask("cuGetProcAddress", 11030, 0, &found, &status), CUDA_SUCCESS);
    CHECK(found == (void *)cuGetProcAddress);
    CHECK_EQUAL(ask("cuGetProcAddress", 12000, 0, &found, &status), CUDA_SUCCESS);
    CHECK(found == (void *)cuGetProcAddress_v2);
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CUresult (*lacking)(void) = (CUresult (*)(void))(uintptr_t)dlsym(RTLD_DEFAULT, "cuProfilerStart");
    CHECK(lacking != NULL && lacking() == CUDA_ERROR_NOT_SUPPORTED);
}

/* Kernels take their time on the card's clock, and NVML shows who kept it busy. */
static void body_launch(void) {
    CUmodule module = NULL;
    CUfunction function = NULL;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    PFN_nvmlInit_v2 init = (PFN_nvmlInit_v2)(uintptr_t)dlsym(library, "nvmlInit_v2");
    PFN_nvmlDeviceGetHandleByUUID by_uuid =
        (PFN_nvmlDeviceGetHandleByUUID)(uintptr_t)dlsym(library, "nvmlDeviceGetHandleByUUID");
    PFN_nvmlDeviceGetProcessUtilization utilisation =
        (PFN_nvmlDeviceGetProcessUtilization)(uintptr_t)dlsym(library, "nvmlDeviceGetProcessUtilization");
    nvmlDevice_t device = NULL;
    nvmlProcessUtilizationSample_t sample = {0};
    unsigned count = 1;
    use_device(0);
    CHECK_EQUAL(init(), NVML_SUCCESS);
    CHECK_EQUAL(by_uuid(CARD_0, &device), NVML_SUCCESS);
    CHECK_EQUAL(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleGetFunction(&function, module, "kernel"), CUDA_SUCCESS);
    CHECK_EQUAL(cuLaunchKernel(function, 1, 1, 1, 2000, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuLaunchKernel(NULL, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
    do { /* until a whole second of samples shows the load, however long this machine takes for it */
        CHECK_EQUAL(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
        count = 1;
        CHECK_EQUAL(utilisation(device, &sample, &count, 0), NVML_SUCCESS);
    } while (sample.smUtil < 20 && check_failures == 0);
    CHECK_EQUAL(count, 1);
    CHECK_EQUAL(sample.pid, getpid());
    CHECK(sample.smUtil <= 100);
}

static void body_events(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    nvmlDevice_t device = NULL;
    nvmlEventSet_t set = NULL;
    nvmlEventData_t data;
#define NVML(symbol) ((PFN_##symbol)(uintptr_t)dlsym(library, #symbol))
    CHECK_EQUAL(NVML(nvmlEventSetCreate)(&set), NVML_ERROR_UNINITIALIZED);
    CHECK_EQUAL(NVML(nvmlInit_v2)(), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlDeviceGetHandleByUUID)(CARD_0, &device), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlEventSetCreate)(&set), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlDeviceRegisterEvents)(device, VG_NVML_EVENT_XID | VG_NVML_EVENT_DOUBLE_BIT_ECC, set),
                NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlEventSetWait_v2)(set, &data, 0), NVML_ERROR_TIMEOUT);
    printf("waiting\n");
    fflush(stdout);
    CHECK_EQUAL(NVML(nvmlEventSetWait_v2)(set, &data, 60000), NVML_SUCCESS);
    CHECK(data.device == device && data.eventType == VG_NVML_EVENT_XID && data.eventData == 13);
    CHECK_EQUAL(data.gpuInstanceId, VG_NVML_INSTANCE_NONE);
    CHECK_EQUAL(NVML(nvmlEventSetWait_v2)(set, &data, 60000), NVML_SUCCESS);
    CHECK(data.device == device && data.eventData == 94 && data.gpuInstanceId == 2);
    CHECK_EQUAL(NVML(nvmlEventSetWait_v2)(set, &data, 60000), NVML_SUCCESS);
    CHECK(data.device == NULL && data.eventData == 62);
    CHECK_EQUAL(NVML(nvmlEventSetWait_v2)(set, &data, 60000), NVML_SUCCESS);
    CHECK(data.device == device && data.eventType == VG_NVML_EVENT_DOUBLE_BIT_ECC);
    CHECK_EQUAL(NVML(nvmlEventSetWait_v2)(set, &data, 60000), NVML_SUCCESS);
    CHECK_EQUAL(data.eventData, 79);
    nvmlMemory_t memory;
    CHECK_EQUAL(NVML(nvmlDeviceGetMemoryInfo)(device, &memory), NVML_ERROR_GPU_IS_LOST);
    CHECK_EQUAL(NVML(nvmlEventSetFree)(set), NVML_SUCCESS);
}

static const struct {
    const char *name;
    void (*run)(void);
} bodies[] = {{"memory", body_memory},
              {"pool", body_pool},
              {"symbols", body_symbols},
              {"launch", body_launch},
              {"events", body_events}};

static void test_bodies(void) {
    for (size_t i = 0; i < 4; i++) {
        struct sandbox sandbox = sandbox_make();
        char output[SANDBOX_OUTPUT];
        const char *environment[] = {"HAMI_SIM_KERNEL_MICROSECONDS=1000", NULL};
        const char *argv[] = {sandbox_self(), bodies[i].name, NULL};
        if (!CHECK_EQUAL_THAT(sandbox_run(&sandbox, false, environment, argv, output), 0, bodies[i].name))
            fputs(output, stderr);
        CHECK_EQUAL(sandbox_books_used(&sandbox, 0, 0), 0);
        sandbox_remove(&sandbox);
    }
}

static void test_processes_see_each_other(void) {
    struct sandbox sandbox = sandbox_make();
    char output[SANDBOX_OUTPUT];
    const char *argv[] = {WORKLOAD, "alloc", "--mib", "30000", "--hold-until-signal", NULL};
    const char *more[] = {WORKLOAD, "alloc", "--mib", "11000", NULL};
    struct sandbox_process holder = sandbox_start(&sandbox, false, NULL, argv);
    CHECK(sandbox_await(&holder, "allocated"));
    CHECK_EQUAL(sandbox_books_used(&sandbox, 0, holder.pid), 30000 * MIB);
    CHECK_EQUAL(sandbox_run(&sandbox, false, NULL, more, output), 4);
    kill(holder.pid, SIGKILL);
    CHECK_EQUAL(sandbox_finish(&holder, NULL), -SIGKILL);
    CHECK_EQUAL(sandbox_run(&sandbox, false, NULL, more, output), 0);
    sandbox_remove(&sandbox);
}

static void test_events(void) {
    struct sandbox sandbox = sandbox_make();
    char output[SANDBOX_OUTPUT];
    const char *argv[] = {sandbox_self(), "events", NULL};
    const char *other[] = {TOOL, "xid", "1", "48", NULL};
    const char *xid[] = {TOOL, "xid", CARD_0, "13", NULL};
    const char *lose[] = {TOOL, "lose", "0", NULL};
    const char *instance[] = {TOOL, "xid", "0", "94", "2", NULL};
    const char *unknown[] = {TOOL, "xid", "unknown", "62", NULL};
    const char *ecc[] = {TOOL, "double-bit-ecc", "0", NULL};
    const char *wrong[] = {TOOL, "xid", "7", "1", NULL};
    struct sandbox_process waiter = sandbox_start(&sandbox, false, NULL, argv);
    CHECK(sandbox_await(&waiter, "waiting\n"));
    CHECK_EQUAL(sandbox_run(&sandbox, false, NULL, other, output), 0);
    CHECK_EQUAL(sandbox_run(&sandbox, false, NULL, xid, output), 0);
    CHECK_EQUAL(sandbox_run(&sandbox, false, NULL, instance, output), 0);
    CHECK_EQUAL(sandbox_run(&sandbox, false, NULL, unknown, output), 0);
    CHECK_EQUAL(sandbox_run(&sandbox, false, NULL, ecc, output), 0);
    CHECK_EQUAL(sandbox_run(&sandbox, false, NULL, lose, output), 0);
    CHECK_EQUAL(sandbox_run(&sandbox, false, NULL, wrong, output), 1);
    if (!CHECK_EQUAL(sandbox_finish(&waiter, output), 0))
        fputs(output, stderr);
    sandbox_remove(&sandbox);
}

/* Limits and region are none of its business. */
static void test_reads_no_limits(void) {
    struct sandbox sandbox = sandbox_make();
    char output[SANDBOX_OUTPUT];
    const char *environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=10m", "NVIDIA_VISIBLE_DEVICES=void", NULL};
    const char *argv[] = {WORKLOAD, "alloc", "--mib", "40960", NULL};
    CHECK_EQUAL(sandbox_run(&sandbox, false, environment, argv, output), 0);
    sandbox_remove(&sandbox);
}

static void test_unsupported_is_counted(void) {
    struct sandbox sandbox = sandbox_make();
    char output[SANDBOX_OUTPUT];
    const char *argv[] = {sandbox_self(), "symbols", NULL};
    const char *books[] = {TOOL, "books", NULL};
    CHECK_EQUAL(sandbox_run(&sandbox, false, NULL, argv, output), 0);
    CHECK_EQUAL(sandbox_run(&sandbox, false, NULL, books, output), 0);
    CHECK_THAT(strstr(output, "\"unsupported_cuda\": {\"cuProfilerStart\": 1}") != NULL, output);
    sandbox_remove(&sandbox);
}

int main(int argc, char **argv) {
    if (argc == 2) {
        for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++)
            if (strcmp(bodies[i].name, argv[1]) == 0) {
                bodies[i].run();
                return check_done();
            }
        return 99;
    }
    test_bodies();
    test_processes_see_each_other();
    test_events();
    test_reads_no_limits();
    test_unsupported_is_counted();
    return check_done();
}
