/* What comes along with contexts and modules. */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bodies.h"
#include "limits_folder.h"
#include "vgpu/abi/nvml_fn.h"
#include "vgpu/shm_layout.h"

/* ---- contexts and modules: 30 MiB and 5 MiB each ---- */

static struct vg_usage own_usage(unsigned card) {
    struct sandbox here = {.directory = ""};
    struct vg_usage found = {.total = 0};
    snprintf(here.region, sizeof here.region, "%s", getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"));
    struct vg_region *region = sandbox_region(&here);
    for (int i = 0; region != NULL && i < VG_MAX_SLOTS; i++)
        if (region->slots[i].pid == getpid())
            found = region->slots[i].used[card];
    return found;
}

/* case CMM-13 */
static void body_contexts(void) {
    CUcontext primary = NULL, own = NULL, more = NULL;
    CUdeviceptr pointer = 0;
    use_device(1);
    CHECK_EQUAL(seen_free(), 70 * MIB);
    use_device(0);
    CHECK_EQUAL(seen_free(), 70 * MIB);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS); /* the same once more */
    CHECK_EQUAL(seen_free(), 70 * MIB);
    CHECK_EQUAL(cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 10 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 30 * MIB);
    CHECK_EQUAL(cuCtxCreate_v4(&more, NULL, 0, 0), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 0);
    CHECK(own_usage(0).context == 90 * MIB && own_usage(0).data == 10 * MIB && own_usage(0).total == 100 * MIB);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cuCtxDestroy_v2(more), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxDestroy_v2(own), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 70 * MIB);
    CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 70 * MIB);
    CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    CHECK_EQUAL(own_usage(0).total, 0);
    use_device(0);
    CHECK_EQUAL(own_usage(0).total, 30 * MIB);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 10 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
    CHECK_EQUAL(own_usage(0).total, 0);
    use_device(0);
    CHECK_EQUAL(seen_free(), 70 * MIB);
}

static pthread_barrier_t barrier;

static void *retain_together(void *unused) {
    pthread_barrier_wait(&barrier);
    use_device(0);
    return unused;
}

/* Threads that make the same context at once do not make it twice. */
static void body_contexts_together(void) {
    pthread_t threads[8];
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    pthread_barrier_init(&barrier, NULL, 8);
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, retain_together, NULL);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    use_device(0);
    CHECK_EQUAL(seen_free(), 70 * MIB);
}

/* NVML does not list processes: the card's own sum tells. Nothing tells: nothing is counted. */
static void body_contexts_unlisted(void) {
    CUcontext own = NULL;
    sandbox_fail(NULL, "nvmlDeviceGetComputeRunningProcesses_v3", NVML_ERROR_NOT_SUPPORTED, 0, 0);
    use_device(0);
    CHECK_EQUAL(seen_free(), 70 * MIB);
    CHECK_EQUAL(cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 40 * MIB);
    CHECK_EQUAL(cuCtxDestroy_v2(own), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 70 * MIB);
    sandbox_fail(NULL, "nvmlDeviceGetMemoryInfo", NVML_ERROR_NOT_SUPPORTED, 0, 0);
    use_device(1);
    CHECK_EQUAL(own_usage(1).total, 0);
    CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    CHECK_EQUAL(own_usage(0).total, 0);
}

/* NVML lists us by a pid that nobody has told us: we are who is new, whatever others take of the card meanwhile. */
static void body_contexts_by_unknown_pid(void) {
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    int file = open(getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"), O_RDWR | O_CLOEXEC);
    struct vg_region *region = mmap(NULL, VG_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(region != MAP_FAILED);
    for (int i = 0; region != MAP_FAILED && i < VG_MAX_SLOTS; i++)
        if (region->slots[i].pid == getpid())
            region->slots[i].host_pid = 1 << 30;
    sandbox_fail(NULL, "nvmlDeviceGetMemoryInfo", NVML_ERROR_NOT_SUPPORTED, 0, 0);
    use_device(0);
    CHECK_EQUAL(own_usage(0).context, 30 * MIB);
}

/* case REQ-06, CMM-02: a context of 120 MiB in a slice of 100. */
static void body_context_above_limit(void) {
    size_t free_bytes = 7, total = 7;
    CUdeviceptr pointer = 0;
    nvmlMemory_t v1;
    nvmlMemory_v2_t v2 = {.version = VG_NVML_MEMORY_V2};
    nvmlDevice_t device = NULL;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    use_device(0);
    CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    CHECK(free_bytes == 0 && total == 100 * MIB);
    CHECK_EQUAL(((PFN_nvmlInit_v2)(uintptr_t)dlsym(library, "nvmlInit_v2"))(), NVML_SUCCESS);
    CHECK_EQUAL(
        ((PFN_nvmlDeviceGetHandleByIndex_v2)(uintptr_t)dlsym(library, "nvmlDeviceGetHandleByIndex_v2"))(0, &device),
        NVML_SUCCESS);
    CHECK_EQUAL(((PFN_nvmlDeviceGetMemoryInfo)(uintptr_t)dlsym(library, "nvmlDeviceGetMemoryInfo"))(device, &v1),
                NVML_SUCCESS);
    CHECK(v1.free == 0 && v1.total == 100 * MIB && v1.used == 120 * MIB);
    CHECK_EQUAL(((PFN_nvmlDeviceGetMemoryInfo_v2)(uintptr_t)dlsym(library, "nvmlDeviceGetMemoryInfo_v2"))(device, &v2),
                NVML_SUCCESS);
    CHECK(v2.free == 0 && v2.total == 100 * MIB && v2.used == 120 * MIB);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_OUT_OF_MEMORY);
}

static void body_modules(void) {
    CUcontext own = NULL;
    CUmodule modules[4];
    CUlibrary libraries[2];
    CUfunction function = NULL;
    CUkernel kernel = NULL;
    bool lazy = getenv("CUDA_MODULE_LOADING") != NULL;
    use_device(0);
    CHECK_EQUAL(cuModuleLoad(&modules[0], "path"), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleLoadData(&modules[1], "image"), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleLoadDataEx(&modules[2], "image", 0, NULL, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleLoadFatBinary(&modules[3], "image"), CUDA_SUCCESS);
    CHECK_EQUAL(cuLibraryLoadData(&libraries[0], "image", NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuLibraryLoadFromFile(&libraries[1], "path", NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
    CHECK_EQUAL(own_usage(0).module, lazy ? 0 : 30 * MIB);
    for (int i = 0; i < 4; i++)
        CHECK_EQUAL(cuModuleGetFunction(&function, modules[i], "kernel"), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleGetFunction(&function, modules[0], "another"), CUDA_SUCCESS);
    CHECK_EQUAL(cuLibraryGetKernel(&kernel, libraries[0], "kernel"), CUDA_SUCCESS);
    CHECK_EQUAL(cuKernelGetFunction(&function, kernel), CUDA_SUCCESS);
    CHECK_EQUAL(own_usage(0).module, (lazy ? 20 : 30) * MIB);
    CHECK_EQUAL(cuModuleUnload(NULL), CUDA_ERROR_INVALID_HANDLE);
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(cuModuleUnload(modules[i]), CUDA_SUCCESS);
    CHECK_EQUAL(own_usage(0).module, (lazy ? 5 : 15) * MIB);
    CHECK_EQUAL(cuLibraryUnload(libraries[0]), CUDA_SUCCESS);
    CHECK_EQUAL(cuLibraryUnload(libraries[1]), CUDA_SUCCESS);
    CHECK_EQUAL(own_usage(0).module, 5 * MIB);
    CHECK_EQUAL(cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleLoadData(&modules[0], "image"), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleGetFunction(&function, modules[0], "kernel"), CUDA_SUCCESS);
    CHECK(own_usage(0).module == 10 * MIB && own_usage(0).context == 60 * MIB);
    CHECK_EQUAL(cuCtxDestroy_v2(own), CUDA_SUCCESS); /* takes its modules along */
    CHECK(own_usage(0).module == 5 * MIB && own_usage(0).context == 30 * MIB);
    CHECK_EQUAL(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
    CHECK_EQUAL(own_usage(0).total, 0);
}

/* The page knows better than NVML. */
static void body_contexts_told(void) {
    CUcontext own = NULL;
    use_device(0);
    CHECK_EQUAL(own_usage(0).context, 17 * MIB);
    CHECK_EQUAL(cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
    CHECK_EQUAL(own_usage(0).context, 34 * MIB);
    CHECK_EQUAL(cuCtxDestroy_v2(own), CUDA_SUCCESS);
    use_device(1); /* of which the page does not tell */
    CHECK_EQUAL(own_usage(1).context, 30 * MIB);
    CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    CHECK_EQUAL(own_usage(0).total, 0);
}

/* ---- what a context sets aside for its kernels: 8 MiB of heap and 1 MiB of output are part of it ---- */

static uint64_t books_of(unsigned card) {
    struct sandbox here = {.directory = ""};
    const char *description = getenv("HAMI_SIM_DRIVER");
    snprintf(here.directory, sizeof here.directory, "%.*s", (int)(strrchr(description, '/') - description),
             description);
    return sandbox_books_used(&here, card, getpid());
}

static void check_exact(uint64_t mib, const char *what) {
    CHECK_EQUAL_THAT(own_usage(0).total, mib * MIB, what);
    CHECK_EQUAL_THAT(books_of(0), mib * MIB, what);
}

static void body_context_limits(void) {
    CUcontext own = NULL, current = NULL;
    CUmodule module = NULL;
    size_t value = 0;
    use_device(0);
    CHECK_EQUAL(cuCtxGetCurrent(&current), CUDA_SUCCESS);
    check_exact(30, "a context");
    CHECK_EQUAL(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 21 * MIB), CUDA_SUCCESS);
    check_exact(50, "output");
    CHECK_EQUAL(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 11 * MIB - 7), CUDA_SUCCESS);
    check_exact(40, "less output, rounded by the driver");
    CHECK_EQUAL(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 1024), CUDA_SUCCESS);
    check_exact(30, "less than it began with");
    CHECK_EQUAL(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 72 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    check_exact(30, "refused");
    CHECK_EQUAL(cuCtxGetLimit(&value, CU_LIMIT_PRINTF_FIFO_SIZE), CUDA_SUCCESS);
    CHECK_EQUAL(value, 1024);
    CHECK_EQUAL(cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 1ull << 40), CUDA_ERROR_NOT_SUPPORTED);
    CHECK_EQUAL(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024 + 128), CUDA_SUCCESS); /* of 8 x 2048 threads */
    check_exact(32, "stacks");
    CHECK_EQUAL(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 79 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 48 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(own_usage(0).total, 70 * MIB);
    CHECK_EQUAL(books_of(0), 30 * MIB); /* the driver takes it with the first module */
    CHECK_EQUAL(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
    check_exact(75, "heap and module");
    CHECK_EQUAL(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
    check_exact(80, "another module");
    CHECK_EQUAL(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 50 * MIB), CUDA_ERROR_INVALID_VALUE);
    check_exact(80, "the driver refused");
    CHECK_EQUAL(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
    check_exact(0, "reset");
    CHECK_EQUAL(cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 31 * MIB), CUDA_SUCCESS);
    check_exact(60, "output of a context of its own");
    CHECK_EQUAL(cuCtxDestroy_v2(own), CUDA_SUCCESS);
    check_exact(0, "destroyed");
}

static void body_context_kinds(void) {
    CUcontext context = NULL, attached = NULL;
    CUgreenCtx green[2] = {NULL};
    CUstream stream = NULL;
    CUdeviceptr pointer = 0;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuGLCtxCreate(&context, 0, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, MIB), CUDA_SUCCESS);
    check_exact(31, "a context for OpenGL");
    CHECK_EQUAL(cuCtxAttach(&attached, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxDetach(attached), CUDA_SUCCESS);
    check_exact(31, "detached once");
    CHECK_EQUAL(cuCtxDetach(context), CUDA_SUCCESS);
    check_exact(0, "detached");
    CHECK_EQUAL(cuVDPAUCtxCreate_v2(&context, 0, 0, 0, NULL), CUDA_SUCCESS);
    check_exact(30, "a context for VDPAU");
    CHECK_EQUAL(cuCtxDestroy(context), CUDA_SUCCESS);
    check_exact(0, "destroyed");
    for (int i = 0; i < 2; i++)
        CHECK_EQUAL(cuGreenCtxCreate(&green[i], NULL, 0, 1), CUDA_SUCCESS);
    check_exact(30, "two green contexts keep the primary one");
    CHECK_EQUAL(cuCtxFromGreenCtx(&context, green[0]), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 10 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 61 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cuGreenCtxStreamCreate(&stream, green[0], 1, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
    CHECK_EQUAL(cuGreenCtxDestroy(green[0]), CUDA_SUCCESS);
    CHECK_EQUAL(cuGreenCtxDestroy(green[0]), CUDA_ERROR_INVALID_VALUE);
    check_exact(40, "its memory is the primary context's");
    CHECK_EQUAL(cuGreenCtxDestroy(green[1]), CUDA_SUCCESS);
    check_exact(0, "which ended with the last of them");
}

static const struct body bodies[] = {
    {"context-limits", body_context_limits},
    {"context-kinds", body_context_kinds},
    {"contexts", body_contexts},
    {"contexts-together", body_contexts_together},
    {"contexts-unlisted", body_contexts_unlisted},
    {"contexts-by-unknown-pid", body_contexts_by_unknown_pid},
    {"contexts-told", body_contexts_told},
    {"context-above-limit", body_context_above_limit},
    {"modules", body_modules},
};

#define WITH_OVERHEAD "{" CARDS(", \"context_mib\": 30, \"module_mib\": 5")

static void test_told_by_page(void) {
    struct sandbox sandbox = make_machine(WITH_OVERHEAD);
    struct limits_folder folder = limits_folder_make(&sandbox);
    struct vg_limits_page page = limits_page_of(&sandbox, 100, 100);
    char output[SANDBOX_OUTPUT];
    atomic_store(&page.cards[0].context_bytes, 17 * MIB);
    limits_page_write(&folder, &page, sizeof page);
    const char *argv[] = {sandbox_self(), "contexts-told", NULL};
    const char *environment[] = {folder.preload, NULL};
    if (!CHECK_EQUAL(sandbox_run(&sandbox, true, environment, argv, output), 0))
        fputs(output, stderr);
    sandbox_remove(&sandbox);
}

int main(int argc, char **argv) {
    if (argc == 2)
        return RUN_BODY(bodies, argv[1]);
    check_body("contexts", WITH_OVERHEAD, NULL);
    check_body("contexts-together", WITH_OVERHEAD, NULL);
    check_body("contexts-unlisted", WITH_OVERHEAD, NULL);
    check_body("contexts-by-unknown-pid", WITH_OVERHEAD, NULL);
    test_told_by_page();
    check_body("context-above-limit", "{" CARDS(", \"context_mib\": 120"), NULL);
    check_body("context-limits", "{" CARDS(", \"context_mib\": 30, \"module_mib\": 5, \"sm_count\": 8"), NULL);
    check_body("context-kinds", WITH_OVERHEAD, NULL);
    check_body("modules", WITH_OVERHEAD, NULL);
    check_body("modules", WITH_OVERHEAD, "CUDA_MODULE_LOADING=LAZY");
    return check_done();
}
