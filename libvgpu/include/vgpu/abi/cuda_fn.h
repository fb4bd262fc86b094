/* Function types of the driver calls in hooks/cuda.def, named by NVIDIA's scheme: PFN_<base>_v<first version>.
 * Source: the public reference of the CUDA driver API. */
#ifndef VGPU_ABI_CUDA_FN_H
#define VGPU_ABI_CUDA_FN_H

#include "vgpu/abi/cuda_graph.h"
#include "vgpu/abi/cuda_types.h"

typedef CUresult (*PFN_cuInit_v2000)(unsigned int flags);
typedef CUresult (*PFN_cuGetProcAddress_v11030)(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags);
typedef CUresult (*PFN_cuGetProcAddress_v12000)(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                                CUdriverProcAddressQueryResult *symbolStatus);
typedef CUresult (*PFN_cuDriverGetVersion_v2020)(int *driverVersion);
typedef CUresult (*PFN_cuGetErrorString_v6000)(CUresult error, const char **text);
typedef CUresult (*PFN_cuGetErrorName_v6000)(CUresult error, const char **text);

typedef CUresult (*PFN_cuDeviceGet_v2000)(CUdevice *device, int ordinal);
typedef CUresult (*PFN_cuDeviceGetCount_v2000)(int *count);
typedef CUresult (*PFN_cuDeviceGetName_v2000)(char *name, int length, CUdevice device);
typedef CUresult (*PFN_cuDeviceGetUuid_v9020)(CUuuid *uuid, CUdevice device);
typedef CUresult (*PFN_cuDeviceGetUuid_v11040)(CUuuid *uuid, CUdevice device);
typedef CUresult (*PFN_cuDeviceTotalMem_v3020)(size_t *bytes, CUdevice device);
typedef CUresult (*PFN_cuDeviceGetAttribute_v2000)(int *value, CUdevice_attribute attribute, CUdevice device);
typedef CUresult (*PFN_cuDeviceComputeCapability_v2000)(int *major, int *minor, CUdevice device);
typedef CUresult (*PFN_cuDeviceGetPCIBusId_v4010)(char *busId, int length, CUdevice device);
typedef CUresult (*PFN_cuDeviceGetByPCIBusId_v4010)(CUdevice *device, const char *busId);
typedef CUresult (*PFN_cuDeviceCanAccessPeer_v4000)(int *canAccess, CUdevice device, CUdevice peer);
typedef CUresult (*PFN_cuDeviceGetP2PAttribute_v8000)(int *value, CUdevice_P2PAttribute attribute, CUdevice from,
                                                      CUdevice to);

typedef CUresult (*PFN_cuDevicePrimaryCtxRetain_v7000)(CUcontext *context, CUdevice device);
typedef CUresult (*PFN_cuDevicePrimaryCtxRelease_v7000)(CUdevice device);
typedef CUresult (*PFN_cuDevicePrimaryCtxRelease_v11000)(CUdevice device);
typedef CUresult (*PFN_cuDevicePrimaryCtxReset_v7000)(CUdevice device);
typedef CUresult (*PFN_cuDevicePrimaryCtxReset_v11000)(CUdevice device);
typedef CUresult (*PFN_cuDevicePrimaryCtxGetState_v7000)(CUdevice device, unsigned int *flags, int *active);
typedef CUresult (*PFN_cuDevicePrimaryCtxSetFlags_v11000)(CUdevice device, unsigned int flags);
typedef CUresult (*PFN_cuCtxCreate_v2000)(CUcontext *context, unsigned int flags, CUdevice device);
typedef CUresult (*PFN_cuCtxCreate_v3020)(CUcontext *context, unsigned int flags, CUdevice device);
typedef CUresult (*PFN_cuCtxCreate_v11040)(CUcontext *context, CUexecAffinityParam *params, int count,
                                           unsigned int flags, CUdevice device);
typedef CUresult (*PFN_cuCtxCreate_v12050)(CUcontext *context, CUctxCreateParams *params, unsigned int flags,
                                           CUdevice device);
typedef CUresult (*PFN_cuCtxDestroy_v2000)(CUcontext context);
typedef CUresult (*PFN_cuCtxDestroy_v4000)(CUcontext context);
typedef CUresult (*PFN_cuCtxAttach_v2000)(CUcontext *context, unsigned int flags);
typedef CUresult (*PFN_cuCtxDetach_v2000)(CUcontext context);
typedef CUresult (*PFN_cuGLCtxCreate_v2000)(CUcontext *context, unsigned int flags, CUdevice device);
typedef CUresult (*PFN_cuGLCtxCreate_v3020)(CUcontext *context, unsigned int flags, CUdevice device);
/* VdpDevice and VdpGetProcAddress * by their width: VDPAU has a header of its own. */
typedef CUresult (*PFN_cuVDPAUCtxCreate_v3010)(CUcontext *context, unsigned int flags, CUdevice device,
                                               uint32_t vdpDevice, void *vdpGetProcAddress);
typedef CUresult (*PFN_cuVDPAUCtxCreate_v3020)(CUcontext *context, unsigned int flags, CUdevice device,
                                               uint32_t vdpDevice, void *vdpGetProcAddress);
typedef CUresult (*PFN_cuGreenCtxCreate_v12040)(CUgreenCtx *context, CUdevResourceDesc resources, CUdevice device,
                                                unsigned int flags);
typedef CUresult (*PFN_cuGreenCtxDestroy_v12040)(CUgreenCtx context);
typedef CUresult (*PFN_cuCtxFromGreenCtx_v12040)(CUcontext *context, CUgreenCtx greenContext);
typedef CUresult (*PFN_cuCtxSetLimit_v3010)(CUlimit limit, size_t value);
typedef CUresult (*PFN_cuCtxGetLimit_v3010)(size_t *value, CUlimit limit);
typedef CUresult (*PFN_cuCtxSetCurrent_v4000)(CUcontext context);
typedef CUresult (*PFN_cuCtxGetCurrent_v4000)(CUcontext *context);
typedef CUresult (*PFN_cuCtxPushCurrent_v4000)(CUcontext context);
typedef CUresult (*PFN_cuCtxPopCurrent_v4000)(CUcontext *context);
typedef CUresult (*PFN_cuCtxGetDevice_v2000)(CUdevice *device);
typedef CUresult (*PFN_cuCtxGetFlags_v7000)(unsigned int *flags);
typedef CUresult (*PFN_cuCtxGetApiVersion_v3020)(CUcontext context, unsigned int *version);
typedef CUresult (*PFN_cuCtxSynchronize_v2000)(void);
typedef CUresult (*PFN_cuCtxSynchronize_v13000)(CUcontext context);

typedef CUresult (*PFN_cuMemGetInfo_v3020)(size_t *freeBytes, size_t *totalBytes);
typedef CUresult (*PFN_cuMemAlloc_v3020)(CUdeviceptr *pointer, size_t bytes);
typedef CUresult (*PFN_cuMemAllocPitch_v3020)(CUdeviceptr *pointer, size_t *pitch, size_t widthInBytes, size_t height,
                                              unsigned int elementSizeBytes);
typedef CUresult (*PFN_cuMemAllocManaged_v6000)(CUdeviceptr *pointer, size_t bytes, unsigned int flags);
typedef CUresult (*PFN_cuMemFree_v3020)(CUdeviceptr pointer);
typedef CUresult (*PFN_cuMemAllocHost_v3020)(void **pointer, size_t bytes);
typedef CUresult (*PFN_cuMemHostAlloc_v2020)(void **pointer, size_t bytes, unsigned int flags);
typedef CUresult (*PFN_cuMemFreeHost_v2000)(void *pointer);
typedef CUresult (*PFN_cuMemGetAddressRange_v3020)(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer);
typedef CUresult (*PFN_cuPointerGetAttribute_v4000)(void *data, CUpointer_attribute attribute, CUdeviceptr pointer);
typedef CUresult (*PFN_cuMemcpy_v4000)(CUdeviceptr destination, CUdeviceptr source, size_t bytes);
typedef CUresult (*PFN_cuMemcpyAsync_v4000)(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream);
typedef CUresult (*PFN_cuMemcpyHtoD_v3020)(CUdeviceptr destination, const void *source, size_t bytes);
typedef CUresult (*PFN_cuMemcpyDtoH_v3020)(void *destination, CUdeviceptr source, size_t bytes);
typedef CUresult (*PFN_cuMemcpyDtoD_v3020)(CUdeviceptr destination, CUdeviceptr source, size_t bytes);
typedef CUresult (*PFN_cuMemcpyHtoDAsync_v3020)(CUdeviceptr destination, const void *source, size_t bytes,
                                                CUstream stream);
typedef CUresult (*PFN_cuMemcpyDtoHAsync_v3020)(void *destination, CUdeviceptr source, size_t bytes, CUstream stream);
typedef CUresult (*PFN_cuMemsetD8_v3020)(CUdeviceptr pointer, unsigned char value, size_t count);
typedef CUresult (*PFN_cuMemsetD32_v3020)(CUdeviceptr pointer, unsigned int value, size_t count);
typedef CUresult (*PFN_cuMemsetD8Async_v3020)(CUdeviceptr pointer, unsigned char value, size_t count, CUstream stream);

typedef CUresult (*PFN_cuPointerGetAttributes_v7000)(unsigned int count, CUpointer_attribute *attributes, void **data,
                                                     CUdeviceptr pointer);
typedef CUresult (*PFN_cuMemHostRegister_v4000)(void *pointer, size_t bytes, unsigned int flags);
typedef CUresult (*PFN_cuMemHostRegister_v6050)(void *pointer, size_t bytes, unsigned int flags);
typedef CUresult (*PFN_cuMemHostUnregister_v4000)(void *pointer);
typedef CUresult (*PFN_cuMemHostGetDevicePointer_v3020)(CUdeviceptr *pointer, void *host, unsigned int flags);

typedef CUresult (*PFN_cuMemAlloc_v2000)(CUdeviceptr_v1 *pointer, unsigned int bytes);
typedef CUresult (*PFN_cuMemAllocPitch_v2000)(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int widthInBytes,
                                              unsigned int height, unsigned int elementSizeBytes);
typedef CUresult (*PFN_cuMemFree_v2000)(CUdeviceptr_v1 pointer);
typedef CUresult (*PFN_cuMemGetInfo_v2000)(unsigned int *freeBytes, unsigned int *totalBytes);
typedef CUresult (*PFN_cuDeviceTotalMem_v2000)(unsigned int *bytes, CUdevice device);
typedef CUresult (*PFN_cuMemAllocHost_v2000)(void **pointer, unsigned int bytes);
typedef CUresult (*PFN_cuMemGetAddressRange_v2000)(CUdeviceptr_v1 *base, unsigned int *bytes, CUdeviceptr_v1 pointer);

typedef CUresult (*PFN_cuArrayCreate_v2000)(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *descriptor);
typedef CUresult (*PFN_cuArrayCreate_v3020)(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor);
typedef CUresult (*PFN_cuArray3DCreate_v2000)(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *descriptor);
typedef CUresult (*PFN_cuArray3DCreate_v3020)(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor);
typedef CUresult (*PFN_cuArrayDestroy_v2000)(CUarray array);
typedef CUresult (*PFN_cuArrayGetMemoryRequirements_v11060)(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, CUarray array,
                                                            CUdevice device);
typedef CUresult (*PFN_cuMipmappedArrayCreate_v5000)(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                                     unsigned int levels);
typedef CUresult (*PFN_cuMipmappedArrayGetLevel_v5000)(CUarray *levelArray, CUmipmappedArray array, unsigned int level);
typedef CUresult (*PFN_cuMipmappedArrayDestroy_v5000)(CUmipmappedArray array);
typedef CUresult (*PFN_cuMipmappedArrayGetMemoryRequirements_v11060)(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements,
                                                                     CUmipmappedArray array, CUdevice device);

typedef CUresult (*PFN_cuImportExternalMemory_v10000)(CUexternalMemory *memory,
                                                      const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *descriptor);
typedef CUresult (*PFN_cuExternalMemoryGetMappedBuffer_v10000)(CUdeviceptr *pointer, CUexternalMemory memory,
                                                               const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *descriptor);
typedef CUresult (*PFN_cuExternalMemoryGetMappedMipmappedArray_v10000)(
    CUmipmappedArray *array, CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *descriptor);
typedef CUresult (*PFN_cuDestroyExternalMemory_v10000)(CUexternalMemory memory);

typedef CUresult (*PFN_cuIpcGetMemHandle_v4010)(CUipcMemHandle *handle, CUdeviceptr pointer);
typedef CUresult (*PFN_cuIpcOpenMemHandle_v4010)(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags);
typedef CUresult (*PFN_cuIpcOpenMemHandle_v11000)(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags);
typedef CUresult (*PFN_cuIpcCloseMemHandle_v4010)(CUdeviceptr pointer);

typedef CUresult (*PFN_cuMemAllocAsync_v11020)(CUdeviceptr *pointer, size_t bytes, CUstream stream);
typedef CUresult (*PFN_cuMemAllocFromPoolAsync_v11020)(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                                       CUstream stream);
typedef CUresult (*PFN_cuMemFreeAsync_v11020)(CUdeviceptr pointer, CUstream stream);
typedef CUresult (*PFN_cuMemPoolCreate_v11020)(CUmemoryPool *pool, const CUmemPoolProps *props);
typedef CUresult (*PFN_cuMemPoolDestroy_v11020)(CUmemoryPool pool);
typedef CUresult (*PFN_cuMemPoolTrimTo_v11020)(CUmemoryPool pool, size_t bytesToKeep);
typedef CUresult (*PFN_cuMemPoolGetAttribute_v11020)(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
typedef CUresult (*PFN_cuMemPoolSetAttribute_v11020)(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
typedef CUresult (*PFN_cuMemPoolGetAccess_v11020)(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location);
typedef CUresult (*PFN_cuDeviceGetDefaultMemPool_v11020)(CUmemoryPool *pool, CUdevice device);
typedef CUresult (*PFN_cuDeviceGetMemPool_v11020)(CUmemoryPool *pool, CUdevice device);
typedef CUresult (*PFN_cuDeviceSetMemPool_v11020)(CUdevice device, CUmemoryPool pool);
typedef CUresult (*PFN_cuMemGetDefaultMemPool_v13000)(CUmemoryPool *pool, CUmemLocation *location,
                                                      CUmemAllocationType type);
typedef CUresult (*PFN_cuMemGetMemPool_v13000)(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type);
typedef CUresult (*PFN_cuMemSetMemPool_v13000)(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool);
typedef CUresult (*PFN_cuMemPoolSetAccess_v11020)(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count);
typedef CUresult (*PFN_cuMemPoolExportToShareableHandle_v11020)(void *handle, CUmemoryPool pool,
                                                                CUmemAllocationHandleType type,
                                                                unsigned long long flags);
typedef CUresult (*PFN_cuMemPoolImportFromShareableHandle_v11020)(CUmemoryPool *pool, void *handle,
                                                                  CUmemAllocationHandleType type,
                                                                  unsigned long long flags);
typedef CUresult (*PFN_cuMemPoolExportPointer_v11020)(CUmemPoolPtrExportData *data, CUdeviceptr pointer);
typedef CUresult (*PFN_cuMemPoolImportPointer_v11020)(CUdeviceptr *pointer, CUmemoryPool pool,
                                                      CUmemPoolPtrExportData *data);

typedef CUresult (*PFN_cuMemCreate_v10020)(CUmemGenericAllocationHandle *handle, size_t bytes,
                                           const CUmemAllocationProp *prop, unsigned long long flags);
typedef CUresult (*PFN_cuMemRelease_v10020)(CUmemGenericAllocationHandle handle);
typedef CUresult (*PFN_cuMemMap_v10020)(CUdeviceptr pointer, size_t bytes, size_t offset,
                                        CUmemGenericAllocationHandle handle, unsigned long long flags);
typedef CUresult (*PFN_cuMemUnmap_v10020)(CUdeviceptr pointer, size_t bytes);
typedef CUresult (*PFN_cuMemRetainAllocationHandle_v11000)(CUmemGenericAllocationHandle *handle, void *address);
typedef CUresult (*PFN_cuMemAddressReserve_v10020)(CUdeviceptr *pointer, size_t bytes, size_t alignment,
                                                   CUdeviceptr address, unsigned long long flags);
typedef CUresult (*PFN_cuMemAddressFree_v10020)(CUdeviceptr pointer, size_t bytes);
typedef CUresult (*PFN_cuMemSetAccess_v10020)(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *descriptors,
                                              size_t count);
typedef CUresult (*PFN_cuMemGetAllocationGranularity_v10020)(size_t *granularity, const CUmemAllocationProp *prop,
                                                             CUmemAllocationGranularity_flags option);
typedef CUresult (*PFN_cuMemExportToShareableHandle_v10020)(void *shareable, CUmemGenericAllocationHandle handle,
                                                            CUmemAllocationHandleType type, unsigned long long flags);
typedef CUresult (*PFN_cuMemImportFromShareableHandle_v10020)(CUmemGenericAllocationHandle *handle, void *shareable,
                                                              CUmemAllocationHandleType type);
typedef CUresult (*PFN_cuMemGetAllocationPropertiesFromHandle_v10020)(CUmemAllocationProp *prop,
                                                                      CUmemGenericAllocationHandle handle);
typedef CUresult (*PFN_cuMemMapArrayAsync_v11010)(CUarrayMapInfo *list, unsigned int count, CUstream stream);
typedef CUresult (*PFN_cuMulticastCreate_v12010)(CUmemGenericAllocationHandle *handle,
                                                 const CUmulticastObjectProp *prop);
typedef CUresult (*PFN_cuMulticastAddDevice_v12010)(CUmemGenericAllocationHandle handle, CUdevice device);
typedef CUresult (*PFN_cuMulticastGetGranularity_v12010)(size_t *granularity, const CUmulticastObjectProp *prop,
                                                         CUmulticastGranularity_flags option);

typedef CUresult (*PFN_cuStreamCreate_v2000)(CUstream *stream, unsigned int flags);
typedef CUresult (*PFN_cuStreamCreateWithPriority_v5050)(CUstream *stream, unsigned int flags, int priority);
typedef CUresult (*PFN_cuStreamDestroy_v2000)(CUstream stream);
typedef CUresult (*PFN_cuStreamDestroy_v4000)(CUstream stream);
typedef CUresult (*PFN_cuGreenCtxStreamCreate_v12050)(CUstream *stream, CUgreenCtx context, unsigned int flags,
                                                      int priority);
typedef CUresult (*PFN_cuStreamGetCtx_v9020)(CUstream stream, CUcontext *context);
typedef CUresult (*PFN_cuStreamGetDevice_v12080)(CUstream stream, CUdevice *device);
typedef CUresult (*PFN_cuStreamSynchronize_v2000)(CUstream stream);
typedef CUresult (*PFN_cuStreamQuery_v2000)(CUstream stream);
typedef CUresult (*PFN_cuStreamWaitEvent_v3020)(CUstream stream, CUevent event, unsigned int flags);
typedef CUresult (*PFN_cuEventCreate_v2000)(CUevent *event, unsigned int flags);
typedef CUresult (*PFN_cuEventRecord_v2000)(CUevent event, CUstream stream);
typedef CUresult (*PFN_cuEventRecordWithFlags_v11010)(CUevent event, CUstream stream, unsigned int flags);
typedef CUresult (*PFN_cuEventQuery_v2000)(CUevent event);
typedef CUresult (*PFN_cuEventSynchronize_v2000)(CUevent event);
typedef CUresult (*PFN_cuEventElapsedTime_v2000)(float *milliseconds, CUevent start, CUevent end);
typedef CUresult (*PFN_cuEventDestroy_v4000)(CUevent event);

typedef CUresult (*PFN_cuModuleLoad_v2000)(CUmodule *module, const char *path);
typedef CUresult (*PFN_cuModuleLoadData_v2000)(CUmodule *module, const void *image);
typedef CUresult (*PFN_cuModuleLoadDataEx_v2010)(CUmodule *module, const void *image, unsigned int count,
                                                 CUjit_option *options, void **values);
typedef CUresult (*PFN_cuModuleLoadFatBinary_v2000)(CUmodule *module, const void *image);
typedef CUresult (*PFN_cuModuleGetLoadingMode_v11070)(CUmoduleLoadingMode *mode);
typedef CUresult (*PFN_cuLibraryLoadData_v12000)(CUlibrary *library, const void *code, CUjit_option *jitOptions,
                                                 void **jitValues, unsigned int jitCount, CUlibraryOption *options,
                                                 void **values, unsigned int count);
typedef CUresult (*PFN_cuLibraryLoadFromFile_v12000)(CUlibrary *library, const char *path, CUjit_option *jitOptions,
                                                     void **jitValues, unsigned int jitCount, CUlibraryOption *options,
                                                     void **values, unsigned int count);
typedef CUresult (*PFN_cuLibraryUnload_v12000)(CUlibrary library);
typedef CUresult (*PFN_cuLibraryGetKernel_v12000)(CUkernel *kernel, CUlibrary library, const char *name);
typedef CUresult (*PFN_cuLibraryGetModule_v12000)(CUmodule *module, CUlibrary library);
typedef CUresult (*PFN_cuKernelGetFunction_v12000)(CUfunction *function, CUkernel kernel);
typedef CUresult (*PFN_cuModuleUnload_v2000)(CUmodule module);
typedef CUresult (*PFN_cuModuleGetFunction_v2000)(CUfunction *function, CUmodule module, const char *name);
typedef CUresult (*PFN_cuFuncGetAttribute_v2020)(int *value, CUfunction_attribute attribute, CUfunction function);
typedef CUresult (*PFN_cuFuncSetAttribute_v9000)(CUfunction function, CUfunction_attribute attribute, int value);
typedef CUresult (*PFN_cuFuncSetBlockShape_v2000)(CUfunction function, int x, int y, int z);

typedef CUresult (*PFN_cuLaunchKernel_v4000)(CUfunction function, unsigned int gridDimX, unsigned int gridDimY,
                                             unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                             unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream stream,
                                             void **kernelParams, void **extra);
typedef CUresult (*PFN_cuLaunchKernelEx_v11060)(const CUlaunchConfig *config, CUfunction function, void **kernelParams,
                                                void **extra);
typedef CUresult (*PFN_cuLaunchCooperativeKernel_v9000)(CUfunction function, unsigned int gridDimX,
                                                        unsigned int gridDimY, unsigned int gridDimZ,
                                                        unsigned int blockDimX, unsigned int blockDimY,
                                                        unsigned int blockDimZ, unsigned int sharedMemBytes,
                                                        CUstream stream, void **kernelParams);
typedef CUresult (*PFN_cuLaunchCooperativeKernelMultiDevice_v9000)(CUDA_LAUNCH_PARAMS *launchParamsList,
                                                                   unsigned int numDevices, unsigned int flags);
typedef CUresult (*PFN_cuLaunch_v2000)(CUfunction function);
typedef CUresult (*PFN_cuLaunchGrid_v2000)(CUfunction function, int grid_width, int grid_height);
typedef CUresult (*PFN_cuLaunchGridAsync_v2000)(CUfunction function, int grid_width, int grid_height, CUstream stream);

#endif
