/* The ways a program comes by a driver function. */
#ifndef VGPU_TEST_REACH_H
#define VGPU_TEST_REACH_H

#include "vgpu/abi/cuda_fn.h"

enum reach {
    REACH_LINK,
    REACH_DLSYM_DEFAULT,
    REACH_DLSYM_NEXT,
    REACH_DLOPEN,
    REACH_GETPROC_V1,
    REACH_GETPROC_V2,
    REACH_GETPROC_PER_THREAD,
    REACH_COUNT
};

extern const char *const reach_names[REACH_COUNT];

/* The function of that symbol; base and version are what cuGetProcAddress is asked. NULL when it is not found. */
void *reach_function(enum reach reach, const char *symbol, const char *base, int version, void *linked);

/* A call of a driver function by the chosen way, for functions of hooks/cuda.def. */
#define REACH(reach, symbol, base, version, type)                                                                      \
    ((type)(uintptr_t)reach_function(reach, #symbol, #base, version, (void *)(uintptr_t)symbol))

#define DECLARED(symbol, type) extern __typeof__(*(type)0) symbol
DECLARED(cuInit, PFN_cuInit_v2000);
DECLARED(cuGetProcAddress, PFN_cuGetProcAddress_v11030);
DECLARED(cuGetProcAddress_v2, PFN_cuGetProcAddress_v12000);
DECLARED(cuDeviceGetCount, PFN_cuDeviceGetCount_v2000);
DECLARED(cuDeviceTotalMem_v2, PFN_cuDeviceTotalMem_v3020);
DECLARED(cuDevicePrimaryCtxRetain, PFN_cuDevicePrimaryCtxRetain_v7000);
DECLARED(cuDevicePrimaryCtxRelease_v2, PFN_cuDevicePrimaryCtxRelease_v11000);
DECLARED(cuDevicePrimaryCtxReset_v2, PFN_cuDevicePrimaryCtxReset_v11000);
DECLARED(cuCtxCreate_v2, PFN_cuCtxCreate_v3020);
DECLARED(cuCtxDestroy_v2, PFN_cuCtxDestroy_v4000);
DECLARED(cuCtxSetCurrent, PFN_cuCtxSetCurrent_v4000);
DECLARED(cuMemGetInfo_v2, PFN_cuMemGetInfo_v3020);
DECLARED(cuMemAlloc_v2, PFN_cuMemAlloc_v3020);
DECLARED(cuMemAllocPitch_v2, PFN_cuMemAllocPitch_v3020);
DECLARED(cuMemAllocManaged, PFN_cuMemAllocManaged_v6000);
DECLARED(cuMemFree_v2, PFN_cuMemFree_v3020);
DECLARED(cuMemAllocAsync, PFN_cuMemAllocAsync_v11020);
DECLARED(cuMemAllocFromPoolAsync, PFN_cuMemAllocFromPoolAsync_v11020);
DECLARED(cuMemFreeAsync, PFN_cuMemFreeAsync_v11020);
DECLARED(cuDeviceGetDefaultMemPool, PFN_cuDeviceGetDefaultMemPool_v11020);
DECLARED(cuMemCreate, PFN_cuMemCreate_v10020);
DECLARED(cuMemRelease, PFN_cuMemRelease_v10020);
DECLARED(cuMemMap, PFN_cuMemMap_v10020);
DECLARED(cuMemUnmap, PFN_cuMemUnmap_v10020);
DECLARED(cuMemAddressReserve, PFN_cuMemAddressReserve_v10020);
DECLARED(cuMemAddressFree, PFN_cuMemAddressFree_v10020);
DECLARED(cuMemRetainAllocationHandle, PFN_cuMemRetainAllocationHandle_v11000);
DECLARED(cuPointerGetAttribute, PFN_cuPointerGetAttribute_v4000);
DECLARED(cuModuleLoadData, PFN_cuModuleLoadData_v2000);
DECLARED(cuModuleGetFunction, PFN_cuModuleGetFunction_v2000);
DECLARED(cuLaunchKernel, PFN_cuLaunchKernel_v4000);
DECLARED(cuLaunchKernel_ptsz, PFN_cuLaunchKernel_v4000);
DECLARED(cuLaunchKernelEx, PFN_cuLaunchKernelEx_v11060);
DECLARED(cuLaunchCooperativeKernel, PFN_cuLaunchCooperativeKernel_v9000);
DECLARED(cuMemPoolGetAttribute, PFN_cuMemPoolGetAttribute_v11020);
DECLARED(cuMemPoolSetAttribute, PFN_cuMemPoolSetAttribute_v11020);
DECLARED(cuMemPoolTrimTo, PFN_cuMemPoolTrimTo_v11020);
DECLARED(cuMemcpyHtoD_v2, PFN_cuMemcpyHtoD_v3020);
DECLARED(cuMemcpyDtoH_v2, PFN_cuMemcpyDtoH_v3020);
#undef DECLARED

#endif
