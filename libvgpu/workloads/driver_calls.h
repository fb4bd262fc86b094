/* The driver calls that the workloads make, and the three ways a real program reaches them. */
#ifndef WORKLOAD_DRIVER_CALLS_H
#define WORKLOAD_DRIVER_CALLS_H

#include <stdbool.h>

#include "vgpu/abi/cuda_fn.h"
#include "vgpu/abi/nvml_fn.h"

/* X(field, symbol to link or dlsym, base for cuGetProcAddress, version, type) */
#define WORKLOAD_CALLS(X)                                                                                              \
    X(init, cuInit, cuInit, 2000, PFN_cuInit_v2000)                                                                    \
    X(driver_version, cuDriverGetVersion, cuDriverGetVersion, 2020, PFN_cuDriverGetVersion_v2020)                      \
    X(error_name, cuGetErrorName, cuGetErrorName, 6000, PFN_cuGetErrorName_v6000)                                      \
    X(device_count, cuDeviceGetCount, cuDeviceGetCount, 2000, PFN_cuDeviceGetCount_v2000)                              \
    X(device_get, cuDeviceGet, cuDeviceGet, 2000, PFN_cuDeviceGet_v2000)                                               \
    X(device_name, cuDeviceGetName, cuDeviceGetName, 2000, PFN_cuDeviceGetName_v2000)                                  \
    X(device_uuid, cuDeviceGetUuid_v2, cuDeviceGetUuid, 11040, PFN_cuDeviceGetUuid_v11040)                             \
    X(device_total, cuDeviceTotalMem_v2, cuDeviceTotalMem, 3020, PFN_cuDeviceTotalMem_v3020)                           \
    X(primary_retain, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, PFN_cuDevicePrimaryCtxRetain_v7000)    \
    X(set_current, cuCtxSetCurrent, cuCtxSetCurrent, 4000, PFN_cuCtxSetCurrent_v4000)                                  \
    X(synchronize, cuCtxSynchronize, cuCtxSynchronize, 2000, PFN_cuCtxSynchronize_v2000)                               \
    X(mem_info, cuMemGetInfo_v2, cuMemGetInfo, 3020, PFN_cuMemGetInfo_v3020)                                           \
    X(mem_alloc, cuMemAlloc_v2, cuMemAlloc, 3020, PFN_cuMemAlloc_v3020)                                                \
    X(mem_free, cuMemFree_v2, cuMemFree, 3020, PFN_cuMemFree_v3020)                                                    \
    X(module_load, cuModuleLoadData, cuModuleLoadData, 2000, PFN_cuModuleLoadData_v2000)                               \
    X(get_function, cuModuleGetFunction, cuModuleGetFunction, 2000, PFN_cuModuleGetFunction_v2000)                     \
    X(launch, cuLaunchKernel, cuLaunchKernel, 4000, PFN_cuLaunchKernel_v4000)

enum reach { REACH_LINK, REACH_DLSYM, REACH_GETPROC };

struct driver_calls {
#define FIELD(field, symbol, base, version, type) type field;
    WORKLOAD_CALLS(FIELD)
#undef FIELD
};

/* Fills every field or says on stderr what was not found. */
bool driver_calls_resolve(struct driver_calls *calls, enum reach reach);

#endif
