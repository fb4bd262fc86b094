/* The entries from before CUDA 3.2, with sizes and addresses of 32 bits. 64-bit drivers still export them. */
#include "allocation.h"

static CUresult undo_linear(CUdeviceptr pointer) {
    return VGI_CUDA(cuMemFree, (CUdeviceptr_v1)pointer);
}

VGI_HOOK CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int bytes) {
    struct vgi_claim claim;
    CUcontext context = NULL;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    if (pointer == NULL || bytes == 0)
        return VGI_CUDA(cuMemAlloc, pointer, bytes);
    CUresult result = vgi_claim_current(bytes, &claim, &context);
    if (result != CUDA_SUCCESS)
        return result;
    result = VGI_CUDA(cuMemAlloc, pointer, bytes);
    return vgi_settle(result, &claim, *pointer, (uintptr_t)context, undo_linear);
}

VGI_HOOK CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int widthInBytes,
                                  unsigned int height, unsigned int elementSizeBytes) {
    struct vgi_claim claim;
    CUcontext context = NULL;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    if (pointer == NULL || pitch == NULL || widthInBytes == 0 || height == 0)
        return VGI_CUDA(cuMemAllocPitch, pointer, pitch, widthInBytes, height, elementSizeBytes);
    CUresult result = vgi_claim_rows(widthInBytes, height, &claim, &context);
    if (result != CUDA_SUCCESS)
        return result;
    result = VGI_CUDA(cuMemAllocPitch, pointer, pitch, widthInBytes, height, elementSizeBytes);
    if (result == CUDA_SUCCESS && !vgi_resize(&claim, (uint64_t)*pitch * height)) {
        (void)undo_linear(*pointer);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return vgi_settle(result, &claim, *pointer, (uintptr_t)context, undo_linear);
}

VGI_HOOK CUresult cuMemFree(CUdeviceptr_v1 pointer) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    struct vgi_freeing freeing = vgi_begin_free(pointer);
    return vgi_end_free(VGI_CUDA(cuMemFree, pointer), &freeing);
}

static unsigned int narrow(uint64_t bytes) {
    return bytes > UINT32_MAX ? UINT32_MAX : (unsigned int)bytes;
}

/* The driver cuts its own numbers at 32 bits; so the card's are asked wide, and cut after the slice is taken. */
VGI_HOOK CUresult cuMemGetInfo(unsigned int *freeBytes, unsigned int *totalBytes) {
    size_t wide_free = 0, wide_total = 0;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    CUresult result = VGI_CUDA(cuMemGetInfo, freeBytes, totalBytes);
    if (result != CUDA_SUCCESS || cuMemGetInfo_v2(&wide_free, &wide_total) != CUDA_SUCCESS)
        return result;
    if (freeBytes != NULL)
        *freeBytes = narrow(wide_free);
    if (totalBytes != NULL)
        *totalBytes = narrow(wide_total);
    return result;
}

VGI_HOOK CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device) {
    size_t wide = 0;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    CUresult result = VGI_CUDA(cuDeviceTotalMem, bytes, device);
    if (result == CUDA_SUCCESS && bytes != NULL && cuDeviceTotalMem_v2(&wide, device) == CUDA_SUCCESS)
        *bytes = narrow(wide);
    return result;
}
