/* Linear, pitched and managed memory, and what the process sees of it. */
#include "allocation.h"
#include "core/quota.h"

static CUresult undo_linear(CUdeviceptr pointer) {
    return VGI_CUDA(cuMemFree_v2, pointer);
}

VGI_HOOK CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    struct vgi_claim claim;
    CUcontext context = NULL;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    if (pointer == NULL || bytes == 0)
        return VGI_CUDA(cuMemAlloc_v2, pointer, bytes); /* the driver says what is wrong with it */
    CUresult result = vgi_claim_current(bytes, &claim, &context);
    if (result != CUDA_SUCCESS)
        return result;
    result = VGI_CUDA(cuMemAlloc_v2, pointer, bytes);
    return vgi_settle(result, &claim, *pointer, (uintptr_t)context, undo_linear);
}

VGI_HOOK CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags) {
    struct vgi_claim claim;
    CUcontext context = NULL;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    if (pointer == NULL || bytes == 0)
        return VGI_CUDA(cuMemAllocManaged, pointer, bytes, flags);
    CUresult result = vgi_claim_current(bytes, &claim, &context);
    if (result != CUDA_SUCCESS)
        return result;
    result = VGI_CUDA(cuMemAllocManaged, pointer, bytes, flags);
    return vgi_settle(result, &claim, *pointer, (uintptr_t)context, undo_linear);
}

VGI_HOOK CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t widthInBytes, size_t height,
                                     unsigned int elementSizeBytes) {
    struct vgi_claim claim;
    CUcontext context = NULL;
    size_t actual = 0;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    if (pointer == NULL || pitch == NULL || widthInBytes == 0 || height == 0)
        return VGI_CUDA(cuMemAllocPitch_v2, pointer, pitch, widthInBytes, height, elementSizeBytes);
    CUresult result = vgi_claim_rows(widthInBytes, height, &claim, &context);
    if (result != CUDA_SUCCESS)
        return result;
    result = VGI_CUDA(cuMemAllocPitch_v2, pointer, pitch, widthInBytes, height, elementSizeBytes);
    if (result == CUDA_SUCCESS && (__builtin_mul_overflow(*pitch, height, &actual) || !vgi_resize(&claim, actual))) {
        (void)undo_linear(*pointer);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return vgi_settle(result, &claim, *pointer, (uintptr_t)context, undo_linear);
}

VGI_HOOK CUresult cuMemFree_v2(CUdeviceptr pointer) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    struct vgi_freeing freeing = vgi_begin_free(pointer);
    return vgi_end_free(VGI_CUDA(cuMemFree_v2, pointer), &freeing);
}

/* The card's index in the region, or -1 where nothing is counted. */
static int card_of(CUdevice device) {
    bool counted = vgi_state() == VGI_ATTACHED && device >= 0 && device < VGI_MAX_DEVICES;
    return counted ? vgi_card_of_device[device] : -1;
}

VGI_HOOK CUresult cuMemGetInfo_v2(size_t *freeBytes, size_t *totalBytes) {
    CUdevice device = 0;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    CUresult result = VGI_CUDA(cuMemGetInfo_v2, freeBytes, totalBytes);
    if (result != CUDA_SUCCESS || VGI_CUDA(cuCtxGetDevice, &device) != CUDA_SUCCESS)
        return result;
    int card = card_of(device);
    uint64_t limit = card < 0 ? 0 : vgi_shown_limit((unsigned)card);
    if (limit == 0)
        return result;
    vgi_sweep();
    uint64_t card_total = totalBytes != NULL ? *totalBytes : UINT64_MAX;
    uint64_t card_free = freeBytes != NULL ? *freeBytes : 0;
    struct vgi_memory_view view =
        vgi_quota_view(limit, vgi_quota_used(vgi_region, (unsigned)card), card_total, card_free);
    if (totalBytes != NULL)
        *totalBytes = view.total;
    if (freeBytes != NULL)
        *freeBytes = view.free;
    return result;
}

VGI_HOOK CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    CUresult result = VGI_CUDA(cuDeviceTotalMem_v2, bytes, device);
    if (result != CUDA_SUCCESS || bytes == NULL)
        return result;
    int card = card_of(device);
    uint64_t limit = card < 0 ? 0 : vgi_shown_limit((unsigned)card);
    if (limit != 0 && limit < *bytes)
        *bytes = limit;
    return result;
}
