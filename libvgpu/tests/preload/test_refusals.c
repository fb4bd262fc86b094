/* Every entry that allocates, asked for more than the slice has. */
#include <string.h>
#include <unistd.h>

#include "bodies.h"

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
    CUDA_ARRAY3D_DESCRIPTOR cube = {
        .Width = 512, .Height = 512, .Depth = 200, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
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
    CUDA_ARRAY3D_DESCRIPTOR cube = {
        .Width = 512, .Height = 512, .Depth = 200, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
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

static const struct body bodies[] = {{"refusals", body_refusals}};

int main(int argc, char **argv) {
    if (argc == 2)
        return RUN_BODY(bodies, argv[1]);
    check_body("refusals", ORDINARY_MACHINE, NULL);
    return check_done();
}
