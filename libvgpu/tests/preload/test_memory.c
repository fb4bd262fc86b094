/* Every kind of memory that is not plain, and what the process sees of it. */
#include <fcntl.h>
#include <unistd.h>

#include "bodies.h"

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

/* Memory mapped into a sparse array outlives its handle, until the array goes. */
static void body_arrays_mapped(void) {
    CUarray array = NULL, plain = NULL;
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    use_device(0);
    CUDA_ARRAY3D_DESCRIPTOR sparse = floats(4096, 4096, 0, CUDA_ARRAY3D_SPARSE), full = floats(128, 2, 0, 0);
    CHECK_EQUAL(cuArray3DCreate_v2(&array, &sparse), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemCreate(&handle, 40 * MIB, &prop, 0), CUDA_SUCCESS);
    CUarrayMapInfo tiles[2];
    for (int i = 0; i < 2; i++)
        tiles[i] = (CUarrayMapInfo){.resource.array = array,
                                    .memOperationType = CU_MEM_OPERATION_TYPE_MAP,
                                    .memHandle.memHandle = handle,
                                    .deviceBitMask = 1};
    CHECK_EQUAL(cuMemMapArrayAsync(tiles, 2, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemMapArrayAsync_ptsz(tiles, 1, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemRelease(handle), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 60 * MIB);
    CHECK_EQUAL(cuArrayDestroy(array), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 100 * MIB);
    CHECK_EQUAL(cuArray3DCreate_v2(&plain, &full), CUDA_SUCCESS);
    tiles[0].resource.array = plain;
    CHECK_EQUAL(cuMemMapArrayAsync(tiles, 1, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuArrayDestroy(plain), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemMapArrayAsync(NULL, 1, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(seen_free(), 100 * MIB);
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

static const struct body bodies[] = {
    {"arrays", body_arrays},
    {"arrays-reckoned", body_arrays_reckoned},
    {"arrays-mapped", body_arrays_mapped},
    {"external", body_external},
    {"host-discrete", body_host_discrete},
    {"host-integrated", body_host_integrated},
    {"missing-outputs", body_missing_outputs},
    {"pointer-attributes", body_pointer_attributes},
};

int main(int argc, char **argv) {
    if (argc == 2)
        return RUN_BODY(bodies, argv[1]);
    check_body("arrays", ORDINARY_MACHINE, NULL);
    check_body("arrays-reckoned", "{\"cuda_version\": \"11.5\", " CARDS(""), NULL);
    check_body("arrays-mapped", ORDINARY_MACHINE, NULL);
    check_body("external", ORDINARY_MACHINE, NULL);
    check_body("host-discrete", ORDINARY_MACHINE, NULL);
    check_body("host-integrated", "{" CARDS(", \"integrated\": true"), NULL);
    check_body("missing-outputs", ORDINARY_MACHINE, NULL);
    check_body("pointer-attributes", ORDINARY_MACHINE, NULL);
    return check_done();
}
