/* A driver that does next to nothing, so that what is measured over it is libvgpu: one card, memory from a counter,
 * launches that return. No locks, no system calls, no memory of its own. Names it has no use for are in null_names.c.
 */
#include <string.h>

#include "null_driver.h"

#define CARD_BYTES (80ull << 30)
#define FIRST_ADDRESS 0x7f0000000000ull
#define ADDRESS_STEP 512ull /* a real driver hands small allocations out side by side */

static struct CUctx_st {
    int unused;
} the_context;
static struct CUmod_st {
    int unused;
} the_module;
static struct CUfunc_st {
    int unused;
} the_function;
static uint64_t live; /* allocations; the last one is freed first by those who measure */

NULL_API CUresult cuInit(unsigned int flags) {
    return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

NULL_API CUresult cuDriverGetVersion(int *version) {
    *version = 12080;
    return CUDA_SUCCESS;
}

NULL_API CUresult cuDeviceGetCount(int *count) {
    *count = 1;
    return CUDA_SUCCESS;
}

NULL_API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* The first card of the description that NVML has beside it (tests/preload/sandbox.c). */
NULL_API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    static const unsigned char bytes[16] = {0x11, 0x11, 0x11, 0x11, 0x22, 0x22, 0x33, 0x33, 0x44, 0x44};
    memcpy(uuid->bytes, bytes, sizeof bytes);
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

NULL_API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    return cuDeviceGetUuid_v2(uuid, device);
}

NULL_API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    *bytes = CARD_BYTES;
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

NULL_API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    *value = attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT             ? 108
             : attribute == CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR ? 2048
                                                                               : 0;
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

NULL_API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = (CUcontext)&the_context;
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

NULL_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
    *flags = 0;
    *active = 1;
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

NULL_API CUresult cuCtxSetCurrent(CUcontext context) {
    (void)context;
    return CUDA_SUCCESS;
}

NULL_API CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = (CUcontext)&the_context;
    return CUDA_SUCCESS;
}

NULL_API CUresult cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return CUDA_SUCCESS;
}

NULL_API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    *free_bytes = *total = CARD_BYTES;
    return CUDA_SUCCESS;
}

NULL_API CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    (void)bytes;
    *pointer = FIRST_ADDRESS + live++ * ADDRESS_STEP;
    return CUDA_SUCCESS;
}

NULL_API CUresult cuMemFree_v2(CUdeviceptr pointer) {
    if (pointer < FIRST_ADDRESS)
        return CUDA_ERROR_INVALID_VALUE;
    live--;
    return CUDA_SUCCESS;
}

/* Kernels take next to no time of the card, and are over at once. */
#define KERNEL_MILLISECONDS 5e-5f

NULL_API CUresult cuStreamQuery(CUstream stream) {
    (void)stream;
    return CUDA_SUCCESS;
}

NULL_API CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    static struct CUevent_st {
        int unused;
    } the_event;
    (void)flags;
    *event = (CUevent)&the_event;
    return CUDA_SUCCESS;
}

NULL_API CUresult cuEventRecord(CUevent event, CUstream stream) {
    (void)event, (void)stream;
    return CUDA_SUCCESS;
}

NULL_API CUresult cuEventQuery(CUevent event) {
    (void)event;
    return CUDA_SUCCESS;
}

NULL_API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    (void)start, (void)end;
    *milliseconds = KERNEL_MILLISECONDS;
    return CUDA_SUCCESS;
}

NULL_API CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    (void)image;
    *module = (CUmodule)&the_module;
    return CUDA_SUCCESS;
}

NULL_API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    (void)module, (void)name;
    *function = (CUfunction)&the_function;
    return CUDA_SUCCESS;
}

#define NULL_LAUNCH(symbol, parameters)                                                                                \
    NULL_API CUresult symbol parameters {                                                                              \
        return function == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;                                            \
    }
#define UNUSED __attribute__((unused))
#define GRID                                                                                                           \
    CUfunction function, UNUSED unsigned int gridX, UNUSED unsigned int gridY, UNUSED unsigned int gridZ,              \
        UNUSED unsigned int blockX, UNUSED unsigned int blockY, UNUSED unsigned int blockZ,                            \
        UNUSED unsigned int shared, UNUSED CUstream stream, UNUSED void **arguments
NULL_LAUNCH(cuLaunchKernel, (GRID, UNUSED void **extra))
NULL_LAUNCH(cuLaunchKernel_ptsz, (GRID, UNUSED void **extra))
NULL_LAUNCH(cuLaunchCooperativeKernel, (GRID))
NULL_LAUNCH(cuLaunchKernelEx,
            (UNUSED const CUlaunchConfig *config, CUfunction function, UNUSED void **arguments, UNUSED void **extra))

NULL_API CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    static struct CUgraphExec_st {
        int unused;
    } the_exec;
    (void)graph, (void)flags;
    *exec = (CUgraphExec)&the_exec;
    return CUDA_SUCCESS;
}

NULL_API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    (void)graph, (void)nodes;
    *count = 0;
    return CUDA_SUCCESS;
}

NULL_API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    (void)stream;
    return exec == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

static const struct {
    const char *base;
    void *address;
} named[] = {
#define CUDA_HOOK(symbol, base, type, version, streams, area) {#symbol, (void *)symbol},
#define CUDA_CALL CUDA_HOOK
#define CUDA_NAME(symbol, base, version, streams)
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME
};

/* By the name as it is exported; programs that measure know it. */
NULL_API CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                                      CUdriverProcAddressQueryResult *status) {
    char second[64];
    (void)version, (void)flags, (void)status;
    strncpy(second, symbol, sizeof second - 4);
    second[sizeof second - 4] = '\0';
    strcat(second, "_v2");
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++)
        if (strcmp(named[i].base, symbol) == 0 || strcmp(named[i].base, second) == 0) {
            *function = named[i].address;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

NULL_API CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}
