/* The entries from before CUDA 3.2, which 64-bit drivers still export: sizes and device addresses of 32 bits. */
#include "driver.h"

static unsigned int narrow(size_t bytes) {
    return bytes > UINT32_MAX ? UINT32_MAX : (unsigned int)bytes;
}

SIM_API CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int bytes) {
    CUdeviceptr wide = 0;
    CUresult result = sim_allocate(pointer == NULL ? NULL : &wide, bytes, SIM_LINEAR, sim_address_take_low);
    if (result == CUDA_SUCCESS)
        *pointer = (CUdeviceptr_v1)wide;
    return result;
}

SIM_API CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int widthInBytes,
                                 unsigned int height, unsigned int elementSizeBytes) {
    if (pitch == NULL || widthInBytes == 0 || height == 0 || widthInBytes > UINT32_MAX - 511 ||
        (elementSizeBytes != 4 && elementSizeBytes != 8 && elementSizeBytes != 16))
        return CUDA_ERROR_INVALID_VALUE;
    unsigned int row = (widthInBytes + 511) & ~511u, bytes = 0;
    if (__builtin_mul_overflow(row, height, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = cuMemAlloc(pointer, bytes);
    if (result == CUDA_SUCCESS)
        *pitch = row;
    return result;
}

SIM_API CUresult cuMemFree(CUdeviceptr_v1 pointer) {
    return cuMemFree_v2(pointer);
}

SIM_API CUresult cuMemGetInfo(unsigned int *freeBytes, unsigned int *totalBytes) {
    size_t wide_free = 0, wide_total = 0;
    CUresult result = cuMemGetInfo_v2(&wide_free, &wide_total);
    if (result == CUDA_SUCCESS && freeBytes != NULL)
        *freeBytes = narrow(wide_free);
    if (result == CUDA_SUCCESS && totalBytes != NULL)
        *totalBytes = narrow(wide_total);
    return result;
}

SIM_API CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device) {
    size_t wide = 0;
    CUresult result = cuDeviceTotalMem_v2(bytes == NULL ? NULL : &wide, device);
    if (result == CUDA_SUCCESS)
        *bytes = narrow(wide);
    return result;
}

SIM_API CUresult cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned int *bytes, CUdeviceptr_v1 pointer) {
    CUdeviceptr wide_base = 0;
    size_t wide_bytes = 0;
    CUresult result = cuMemGetAddressRange_v2(&wide_base, &wide_bytes, pointer);
    if (result == CUDA_SUCCESS && base != NULL)
        *base = (CUdeviceptr_v1)wide_base;
    if (result == CUDA_SUCCESS && bytes != NULL)
        *bytes = narrow(wide_bytes);
    return result;
}
