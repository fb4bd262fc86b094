/* Every kind of memory that is not plain: how much of which card it counts for, and until when. */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "core/quota.h"
#include "reach.h"
#include "sandbox.h"
#include "vgpu/abi/nvml_fn.h"
#include "vgpu/shm_layout.h"

#define MIB (1024ull * 1024ull)

static void use_device(int device) {
    CUcontext context = NULL;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

static uint64_t seen_free(void) {
    size_t free_bytes = 0, total = 0;
    CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    return free_bytes;
}

/* ---- arrays ---- */

static CUDA_ARRAY3D_DESCRIPTOR floats(size_t width, size_t height, size_t depth, unsigned flags) {
    return (CUDA_ARRAY3D_DESCRIPTOR){.Width = width,
                                     .Height = height,
                                     .Depth = depth,
                                     .Format = CU_AD_FORMAT_FLOAT,
                                     .NumChannels = 1,
                                     .Flags = flags};
}

/* Claimed is what the driver's layout takes (rows of 512 bytes here), not what the texels are. */
static void body_arrays(void) {
    CUarray array = NULL, level = NULL;
    CUmipmappedArray mipmap = NULL;
    CUcontext own = NULL;
    use_device(0);
    CUDA_ARRAY3D_DESCRIPTOR thin = floats(1, 2048, 0, 0); /* 8 KiB of texels, 1 MiB of memory */
    CHECK_EQUAL(cuArray3DCreate_v2(&array, &thin), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 99 * MIB);
    CHECK_EQUAL(cuArrayDestroy(array), CUDA_SUCCESS);
    CUDA_ARRAY3D_DESCRIPTOR layers = floats(128, 2048, 101, CUDA_ARRAY3D_LAYERED);
    CHECK_EQUAL(cuArray3DCreate_v2(&array, &layers), CUDA_ERROR_OUT_OF_MEMORY);
    layers.Depth = 100;
    CHECK_EQUAL(cuArray3DCreate_v2(&array, &layers), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 0);
    CHECK_EQUAL(cuArrayDestroy(array), CUDA_SUCCESS);

    CUDA_ARRAY3D_DESCRIPTOR mapped_later = floats(4096, 65536, 0, CUDA_ARRAY3D_SPARSE);
    CHECK_EQUAL(cuArray3DCreate_v2(&array, &mapped_later), CUDA_SUCCESS); /* a GiB, when something is mapped */
    CHECK_EQUAL(seen_free(), 100 * MIB);
    CHECK_EQUAL(cuArrayDestroy(array), CUDA_SUCCESS);

    CUDA_ARRAY3D_DESCRIPTOR square = floats(1024, 1024, 0, 0); /* 4 MiB, 1 MiB, then rows of at least 512 */
    CHECK_EQUAL(cuMipmappedArrayCreate(&mipmap, &square, 2), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 95 * MIB);
    CHECK_EQUAL(cuMipmappedArrayGetLevel(&level, mipmap, 1), CUDA_SUCCESS);
    CHECK_EQUAL(cuArrayDestroy(level), CUDA_ERROR_INVALID_HANDLE);
    CHECK_EQUAL(seen_free(), 95 * MIB);
    CHECK_EQUAL(cuMipmappedArrayDestroy(mipmap), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 100 * MIB);

    CHECK_EQUAL(cuArray3DCreate_v2(NULL, &square), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuArray3DCreate_v2(&array, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuMipmappedArrayCreate(&mipmap, &square, 0), CUDA_ERROR_INVALID_VALUE);
    square.NumChannels = 3;
    CHECK_EQUAL(cuArray3DCreate_v2(&array, &square), CUDA_ERROR_INVALID_VALUE);
    CUDA_ARRAY3D_DESCRIPTOR endless = floats(SIZE_MAX / 2, SIZE_MAX / 2, 2, 0);
    CHECK_EQUAL(cuArray3DCreate_v2(&array, &endless), CUDA_ERROR_OUT_OF_MEMORY);

    /* A context takes its arrays and imports along. */
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = {
        .type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .handle.fd = open("/dev/null", O_RDWR), .size = 30 * MIB};
    CUexternalMemory imported = NULL;
    layers.Depth = 50;
    CHECK_EQUAL(cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuArray3DCreate_v2(&array, &layers), CUDA_SUCCESS);
    CHECK_EQUAL(cuImportExternalMemory(&imported, &from), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 20 * MIB);
    CHECK_EQUAL(cuCtxDestroy_v2(own), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 100 * MIB);
}

/* The driver is too old to tell: texels in whole tiles. */
static void body_arrays_reckoned(void) {
    CUarray array = NULL;
    use_device(0);
    CUDA_ARRAY3D_DESCRIPTOR d = floats(1000, 1001, 0, 0); /* 4,032 bytes by 1,008 rows */
    CHECK_EQUAL(cuArray3DCreate_v2(&array, &d), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 100 * MIB - 4032 * 1008);
    CHECK_EQUAL(cuArrayDestroy(array), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 100 * MIB);
    d = floats(1000, 1001, 26, CUDA_ARRAY3D_LAYERED);
    CHECK_EQUAL(cuArray3DCreate_v2(&array, &d), CUDA_ERROR_OUT_OF_MEMORY);
}

/* ---- memory of other interfaces ---- */

/* case CMM-04 */
static void body_external(void) {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = 60 * MIB};
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC part = {.size = 50 * MIB};
    CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC image = {.arrayDesc = floats(1024, 1024, 0, 0), .numLevels = 1};
    CUexternalMemory memory = NULL, more = NULL;
    CUmipmappedArray array = NULL;
    CUdeviceptr pointer = 0;
    use_device(0);
    from.handle.fd = open("/dev/null", O_RDWR);
    CHECK_EQUAL(cuImportExternalMemory(&memory, &from), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 40 * MIB);
    CHECK_EQUAL(cuImportExternalMemory(&more, &from), CUDA_ERROR_OUT_OF_MEMORY);
    /* What is mapped from it is the same memory. */
    CHECK_EQUAL(cuExternalMemoryGetMappedBuffer(&pointer, memory, &part), CUDA_SUCCESS);
    CHECK_EQUAL(cuExternalMemoryGetMappedMipmappedArray(&array, memory, &image), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 40 * MIB);
    CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
    CHECK_EQUAL(cuExternalMemoryGetMappedBuffer(&pointer, memory, &part), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemFreeAsync(pointer, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuMipmappedArrayDestroy(array), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 40 * MIB);
    CHECK_EQUAL(cuDestroyExternalMemory(memory), CUDA_SUCCESS);
    CHECK_EQUAL(cuDestroyExternalMemory(memory), CUDA_ERROR_INVALID_HANDLE);
    CHECK_EQUAL(seen_free(), 100 * MIB);
    from.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_NVSCIBUF; /* which the simulated driver lacks: its answer passes */
    CHECK_EQUAL(cuImportExternalMemory(&memory, &from), CUDA_ERROR_NOT_SUPPORTED);
    CHECK_EQUAL(seen_free(), 100 * MIB);
}

/* ---- host memory ---- */

static char registered[4096];

static void try_host_memory(uint64_t counted) {
    void *pointers[3] = {NULL, NULL, NULL};
    use_device(0);
    CHECK_EQUAL(cuMemAllocHost_v2(&pointers[0], 10 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemHostAlloc(&pointers[1], 20 * MIB, 1), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAllocHost(&pointers[2], 30 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemHostRegister_v2(registered, sizeof registered, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemHostRegister_v2(registered, sizeof registered, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    CHECK_EQUAL(seen_free(), 100 * MIB - counted);
    CHECK_EQUAL(cuMemFreeHost(registered), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuMemHostUnregister(registered), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemHostUnregister(registered), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    CHECK_EQUAL(cuMemHostRegister(registered, sizeof registered, 0), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 100 * MIB - counted);
    CHECK_EQUAL(cuMemHostUnregister(registered), CUDA_SUCCESS);
    void *large = NULL;
    CHECK_EQUAL(cuMemHostAlloc(&large, 41 * MIB, 0), counted > 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(cuMemFreeHost(pointers[i]), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 100 * MIB);
    /* What is not freed goes with the context. */
    CHECK_EQUAL(cuMemHostAlloc(&pointers[0], 20 * MIB, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
    use_device(0);
    CHECK_EQUAL(seen_free(), 100 * MIB);
}

static void body_host_discrete(void) {
    try_host_memory(0);
}

static void body_host_integrated(void) {
    try_host_memory(60 * MIB + sizeof registered);
}

/* ---- what the process sees ---- */

/* case CMM-03 */
static void body_missing_outputs(void) {
    size_t free_bytes = 0, total = 0;
    unsigned narrow = 0;
    CUdeviceptr pointer = 0;
    use_device(0);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 10 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemGetInfo_v2(NULL, &total), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemGetInfo_v2(NULL, NULL), CUDA_SUCCESS);
    CHECK(total == 100 * MIB && free_bytes == 90 * MIB);
    CHECK_EQUAL(cuMemGetInfo(NULL, &narrow), CUDA_SUCCESS);
    CHECK_EQUAL(narrow, 100 * MIB);
    CHECK_EQUAL(cuMemGetInfo(&narrow, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(narrow, 90 * MIB);
    CHECK_EQUAL(cuDeviceTotalMem(&narrow, 0), CUDA_SUCCESS);
    CHECK_EQUAL(narrow, 100 * MIB);
    CHECK_EQUAL(cuDeviceTotalMem(NULL, 0), CUDA_ERROR_INVALID_VALUE);
}

/* case CMM-12: a managed pointer is a managed pointer, and errors leave the outputs alone. */
static void body_pointer_attributes(void) {
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    CUdeviceptr managed = 0, plain = 0;
    unsigned is_managed = 7, type = 7;
    void *outputs[] = {&is_managed, &type}, *broken[] = {&is_managed, NULL};
    use_device(0);
    CHECK_EQUAL(cuMemAllocManaged(&managed, MIB, 1), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAlloc_v2(&plain, MIB), CUDA_SUCCESS);
    CHECK_EQUAL(cuPointerGetAttributes(2, asked, outputs, managed), CUDA_SUCCESS);
    CHECK(is_managed == 1 && type == 2);
    CHECK_EQUAL(cuPointerGetAttributes(2, asked, outputs, plain), CUDA_SUCCESS);
    CHECK_EQUAL(is_managed, 0);
    CHECK_EQUAL(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, managed), CUDA_SUCCESS);
    CHECK_EQUAL(is_managed, 1);
    is_managed = 7;
    CHECK_EQUAL(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, 0xdead000),
                CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuPointerGetAttributes(0, asked, outputs, managed), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(is_managed, 7);
    CHECK_EQUAL(cuPointerGetAttributes(2, asked, broken, managed), CUDA_ERROR_INVALID_VALUE);
}

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

/* ---- every entry that allocates, asked for more than the slice has ---- */

#define TOO_MUCH (200 * MIB)

static CUresult ask_linear(void) {
    CUdeviceptr pointer;
    return cuMemAlloc_v2(&pointer, TOO_MUCH);
}

static CUresult ask_linear_v1(void) {
    CUdeviceptr_v1 pointer;
    return cuMemAlloc(&pointer, TOO_MUCH);
}

static CUresult ask_managed(void) {
    CUdeviceptr pointer;
    return cuMemAllocManaged(&pointer, TOO_MUCH, 1);
}

static CUresult ask_pitch(void) {
    CUdeviceptr pointer;
    size_t pitch;
    return cuMemAllocPitch_v2(&pointer, &pitch, MIB, 200, 4);
}

static CUresult ask_pitch_v1(void) {
    CUdeviceptr_v1 pointer;
    unsigned pitch;
    return cuMemAllocPitch(&pointer, &pitch, MIB, 200, 4);
}

static CUresult ask_array(void) {
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR flat = {
        .Width = 4096, .Height = 25600, .Format = CU_AD_FORMAT_HALF, .NumChannels = 1}; /* 200 MiB */
    return cuArrayCreate_v2(&array, &flat);
}

static CUresult ask_array_v1(void) {
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR_v1 flat = {.Width = 4096, .Height = 25600, .Format = CU_AD_FORMAT_HALF, .NumChannels = 1};
    return cuArrayCreate(&array, &flat);
}

static CUresult ask_array3d(void) {
    CUarray array;
    CUDA_ARRAY3D_DESCRIPTOR cube = floats(512, 512, 200, 0);
    return cuArray3DCreate_v2(&array, &cube);
}

static CUresult ask_array3d_v1(void) {
    CUarray array;
    CUDA_ARRAY3D_DESCRIPTOR_v1 cube = {
        .Width = 512, .Height = 512, .Depth = 200, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    return cuArray3DCreate(&array, &cube);
}

static CUresult ask_mipmap(void) {
    CUmipmappedArray array;
    CUDA_ARRAY3D_DESCRIPTOR cube = floats(512, 512, 200, 0);
    return cuMipmappedArrayCreate(&array, &cube, 3);
}

static CUresult ask_external(void) {
    CUexternalMemory memory;
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = {
        .type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .handle.fd = STDIN_FILENO, .size = TOO_MUCH};
    return cuImportExternalMemory(&memory, &from);
}

static CUresult ask_async(void) {
    CUdeviceptr pointer;
    return cuMemAllocAsync(&pointer, TOO_MUCH, NULL);
}

static CUresult ask_async_per_thread(void) {
    CUdeviceptr pointer;
    return cuMemAllocAsync_ptsz(&pointer, TOO_MUCH, NULL);
}

static CUresult ask_pool(void) {
    CUdeviceptr pointer;
    CUmemoryPool pool = NULL;
    CHECK_EQUAL(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
    return cuMemAllocFromPoolAsync(&pointer, TOO_MUCH, pool, NULL);
}

static CUresult ask_vmm(void) {
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    return cuMemCreate(&handle, TOO_MUCH, &prop, 0);
}

static CUresult ask_vmm_domain(void) { /* a part of device 0 */
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, .id = 1 << 8}};
    return cuMemCreate(&handle, TOO_MUCH, &prop, 0);
}

static const struct {
    const char *name;
    CUresult (*ask)(void);
} asks[] = {
    {"cuMemAlloc_v2", ask_linear},
    {"cuMemAlloc", ask_linear_v1},
    {"cuMemAllocManaged", ask_managed},
    {"cuMemAllocPitch_v2", ask_pitch},
    {"cuMemAllocPitch", ask_pitch_v1},
    {"cuArrayCreate_v2", ask_array},
    {"cuArrayCreate", ask_array_v1},
    {"cuArray3DCreate_v2", ask_array3d},
    {"cuArray3DCreate", ask_array3d_v1},
    {"cuMipmappedArrayCreate", ask_mipmap},
    {"cuImportExternalMemory", ask_external},
    {"cuMemAllocAsync", ask_async},
    {"cuMemAllocAsync_ptsz", ask_async_per_thread},
    {"cuMemAllocFromPoolAsync", ask_pool},
    {"cuMemCreate", ask_vmm},
    {"cuMemCreate in a locality domain", ask_vmm_domain},
};

/* case CMM-10: code 2 from each, without the driver's help, and nothing stays charged. */
static void body_refusals(void) {
    use_device(0);
    sandbox_count_calls(NULL);
    for (size_t i = 0; i < sizeof asks / sizeof asks[0]; i++) {
        CHECK_EQUAL_THAT(asks[i].ask(), CUDA_ERROR_OUT_OF_MEMORY, asks[i].name);
        CHECK_EQUAL_THAT(seen_free(), 100 * MIB, asks[i].name);
        if (strstr(asks[i].name, " ") == NULL && strstr(asks[i].name, "rray") == NULL) /* arrays have a twin made */
            CHECK_EQUAL_THAT(sandbox_calls(NULL, asks[i].name), 0, asks[i].name);
    }
}

/* ---- between processes: each has one end of a socket ---- */

static int other(void) {
    return atoi(getenv("VGPU_TEST_SOCKET"));
}

static void tell(const void *what, size_t bytes) {
    CHECK_EQUAL(write(other(), what, bytes), bytes);
}

static void hear(void *what, size_t bytes) {
    CHECK_EQUAL(read(other(), what, bytes), bytes);
}

static void step(void) { /* both have come this far */
    char byte = 's';
    tell(&byte, 1);
    hear(&byte, 1);
}

static void send_descriptor(int descriptor) {
    char byte = 'd';
    char control[CMSG_SPACE(sizeof descriptor)] __attribute__((aligned(8))) = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header =
        (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof descriptor), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    CHECK_EQUAL(sendmsg(other(), &message, 0), 1);
    close(descriptor);
}

static int receive_descriptor(void) {
    char byte = 0;
    int descriptor = -1;
    char control[CMSG_SPACE(sizeof descriptor)] __attribute__((aligned(8)));
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    CHECK_EQUAL(recvmsg(other(), &message, 0), 1);
    if (CHECK(CMSG_FIRSTHDR(&message) != NULL))
        memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
    return descriptor;
}

static CUmemAllocationProp on_card(int device, CUmemAllocationHandleType type) {
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = type,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

/* Card 1's memory, made and shared with card 0's context. */
static void export_memory(uint64_t imported) {
    CUmemAllocationProp prop = on_card(1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmemGenericAllocationHandle handle = 0;
    int descriptor = -1;
    use_device(0);
    CHECK_EQUAL(cuMemCreate(&handle, 40 * MIB, &prop, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                CUDA_SUCCESS);
    send_descriptor(descriptor);
    step(); /* imported */
    use_device(1);
    CHECK_EQUAL(seen_free(), 60 * MIB - imported); /* counted here and there */
    CHECK_EQUAL(cuMemRelease(handle), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 100 * MIB - imported);
    step(); /* released; the importer lets go */
    step();
    CHECK_EQUAL(seen_free(), 100 * MIB);
}

static void body_vmm_export(void) {
    export_memory(40 * MIB);
}

static void body_vmm_export_unmeasured(void) {
    export_memory(0);
}

static void body_vmm_import(void) {
    CUmemGenericAllocationHandle handle = 0, again = 0;
    CUdeviceptr where = 0;
    use_device(1);
    int descriptor = receive_descriptor();
    void *shareable = (void *)(intptr_t)descriptor;
    use_device(0);
    CHECK_EQUAL(cuMemImportFromShareableHandle(&handle, shareable, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 100 * MIB);
    use_device(1);
    CHECK_EQUAL(seen_free(), 20 * MIB);
    CHECK_EQUAL(cuMemImportFromShareableHandle(&again, shareable, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(seen_free(), 20 * MIB);
    close(descriptor);
    step();
    step(); /* the exporter has released */
    CHECK_EQUAL(seen_free(), 60 * MIB);
    CHECK_EQUAL(cuMemAddressReserve(&where, 40 * MIB, 0, 0, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemMap(where, 2 * MIB, 0, handle, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemMap(where + 2 * MIB, 42 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuMemRelease(handle), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 60 * MIB); /* all of it lives while a part is mapped */
    CHECK_EQUAL(cuMemUnmap(where, 2 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 100 * MIB);
    step();
}

/* The driver's size cannot be tried out: no address space is left. Charged is what is mapped. */
static void body_vmm_import_unmeasured(void) {
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr where = 0;
    use_device(1);
    CHECK_EQUAL(cuMemAddressReserve(&where, 40 * MIB, 0, 0, 0), CUDA_SUCCESS);
    void *shareable = (void *)(intptr_t)receive_descriptor();
    sandbox_fail(NULL, "cuMemAddressReserve", CUDA_ERROR_OUT_OF_MEMORY, 0, 0);
    CHECK_EQUAL(cuMemImportFromShareableHandle(&handle, shareable, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 60 * MIB); /* the exporter's */
    step();
    step();
    CHECK_EQUAL(seen_free(), 100 * MIB);
    CHECK_EQUAL(cuMemMap(where, 10 * MIB, 0, handle, 0), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 90 * MIB);
    CHECK_EQUAL(cuMemUnmap(where, 10 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemMap(where, 40 * MIB, 0, handle, 0), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 60 * MIB);
    CHECK_EQUAL(cuMemUnmap(where, 40 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemRelease(handle), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 100 * MIB);
    step();
}

/* Legacy handles: the exporter holds the charge, the opener is not charged. */
static void body_ipc_export(void) {
    CUdeviceptr pointer = 0, managed = 0;
    CUipcMemHandle handle, none;
    use_device(0);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 60 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAllocManaged(&managed, MIB, 1), CUDA_SUCCESS);
    CHECK_EQUAL(cuIpcGetMemHandle(&none, managed), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuMemFree_v2(managed), CUDA_SUCCESS);
    CHECK_EQUAL(cuIpcGetMemHandle(&handle, pointer), CUDA_SUCCESS);
    CHECK_EQUAL(cuIpcOpenMemHandle_v2(&managed, handle, 1), CUDA_ERROR_INVALID_CONTEXT); /* its own */
    tell(&handle, sizeof handle);
    step(); /* opened and closed again */
    CHECK_EQUAL(seen_free(), 40 * MIB);
    CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 100 * MIB);
}

static void body_ipc_open(void) {
    CUdeviceptr pointer = 0, again = 0;
    CUipcMemHandle handle;
    use_device(0);
    hear(&handle, sizeof handle);
    CHECK_EQUAL(cuIpcOpenMemHandle_v2(&pointer, handle, 1), CUDA_SUCCESS);
    CHECK_EQUAL(cuIpcOpenMemHandle(&again, handle, 1), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 40 * MIB);
    CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuIpcCloseMemHandle(pointer), CUDA_SUCCESS);
    CHECK_EQUAL(cuIpcCloseMemHandle(again), CUDA_SUCCESS);
    CHECK_EQUAL(cuIpcCloseMemHandle(again), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(seen_free(), 40 * MIB);
    step();
}

static const struct {
    const char *name;
    void (*run)(void);
} bodies[] = {
    {"arrays", body_arrays},
    {"arrays-reckoned", body_arrays_reckoned},
    {"external", body_external},
    {"host-discrete", body_host_discrete},
    {"host-integrated", body_host_integrated},
    {"missing-outputs", body_missing_outputs},
    {"pointer-attributes", body_pointer_attributes},
    {"refusals", body_refusals},
    {"contexts", body_contexts},
    {"contexts-together", body_contexts_together},
    {"contexts-unlisted", body_contexts_unlisted},
    {"context-above-limit", body_context_above_limit},
    {"modules", body_modules},
    {"vmm-export", body_vmm_export},
    {"vmm-export-unmeasured", body_vmm_export_unmeasured},
    {"vmm-import", body_vmm_import},
    {"vmm-import-unmeasured", body_vmm_import_unmeasured},
    {"ipc-export", body_ipc_export},
    {"ipc-open", body_ipc_open},
};

static int run_body(const char *name) {
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++)
        if (strcmp(bodies[i].name, name) == 0) {
            bodies[i].run();
            return check_done();
        }
    return 99;
}

/* ---- the tests ---- */

static const char *const limit[] = {"CUDA_DEVICE_MEMORY_LIMIT=100m", NULL};

#define CARDS(more)                                                                                                    \
    "\"cards\": [{\"uuid\": \"GPU-11111111-2222-3333-4444-000000000000\", \"name\": \"A\", \"memory_mib\": 40960" more \
    "}, {\"uuid\": \"GPU-11111111-2222-3333-4444-000000000001\", \"name\": \"B\", \"memory_mib\": 40960" more "}]}"
#define ORDINARY "{" CARDS("")
#define OLD "{\"cuda_version\": \"11.5\", " CARDS("")
#define INTEGRATED "{" CARDS(", \"integrated\": true")
#define WITH_OVERHEAD "{" CARDS(", \"context_mib\": 30, \"module_mib\": 5")
#define LARGE_CONTEXT "{" CARDS(", \"context_mib\": 120")

static struct sandbox machine(const char *description) {
    struct sandbox made = sandbox_make();
    char path[128];
    snprintf(path, sizeof path, "%s/node.json", made.directory);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(description, file) >= 0 && fclose(file) == 0);
    return made;
}

/* Nothing is left of it, neither in the accounts nor in the driver's books. */
static void check_empty(const struct sandbox *sandbox, const char *what) {
    struct vg_region *region = sandbox_region(sandbox);
    for (unsigned card = 0; card < 2 && CHECK_THAT(region != NULL, what); card++) {
        CHECK_EQUAL_THAT(vgi_quota_used(region, card), 0, what);
        CHECK_EQUAL_THAT(sandbox_books_used(sandbox, card, 0), 0, what);
    }
}

static void test_alone(void) {
    static const struct {
        const char *body, *description, *more;
    } rows[] = {{"arrays", ORDINARY, NULL},
                {"arrays-reckoned", OLD, NULL},
                {"external", ORDINARY, NULL},
                {"host-discrete", ORDINARY, NULL},
                {"host-integrated", INTEGRATED, NULL},
                {"missing-outputs", ORDINARY, NULL},
                {"refusals", ORDINARY, NULL},
                {"pointer-attributes", ORDINARY, NULL},
                {"contexts", WITH_OVERHEAD, NULL},
                {"contexts-together", WITH_OVERHEAD, NULL},
                {"contexts-unlisted", WITH_OVERHEAD, NULL},
                {"context-above-limit", LARGE_CONTEXT, NULL},
                {"modules", WITH_OVERHEAD, NULL},
                {"modules", WITH_OVERHEAD, "CUDA_MODULE_LOADING=LAZY"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sandbox sandbox = machine(rows[i].description);
        const char *argv[] = {sandbox_self(), rows[i].body, NULL};
        const char *environment[] = {limit[0], rows[i].more, NULL};
        char output[SANDBOX_OUTPUT];
        if (!CHECK_EQUAL_THAT(sandbox_run(&sandbox, true, environment, argv, output), 0, rows[i].body))
            fputs(output, stderr);
        check_empty(&sandbox, rows[i].body);
        sandbox_remove(&sandbox);
    }
}

static void test_pairs(void) {
    static const char *const rows[][2] = {
        {"vmm-export", "vmm-import"}, {"vmm-export-unmeasured", "vmm-import-unmeasured"}, {"ipc-export", "ipc-open"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sandbox sandbox = machine(ORDINARY);
        struct sandbox_process members[2];
        char output[SANDBOX_OUTPUT], socket_of[2][32];
        int ends[2];
        CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
        for (int m = 0; m < 2; m++) {
            snprintf(socket_of[m], sizeof socket_of[m], "VGPU_TEST_SOCKET=%d", ends[m]);
            const char *environment[] = {limit[0], socket_of[m], NULL};
            const char *argv[] = {sandbox_self(), rows[i][m], NULL};
            members[m] = sandbox_start(&sandbox, true, environment, argv);
        }
        close(ends[0]);
        close(ends[1]);
        for (int m = 0; m < 2; m++)
            if (!CHECK_EQUAL_THAT(sandbox_finish(&members[m], output), 0, rows[i][m]))
                fputs(output, stderr);
        check_empty(&sandbox, rows[i][1]);
        sandbox_remove(&sandbox);
    }
}

int main(int argc, char **argv) {
    if (argc == 2)
        return run_body(argv[1]);
    test_alone();
    test_pairs();
    return check_done();
}
