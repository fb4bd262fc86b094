/* Stream-ordered memory. Counted are the bytes handed out, on the current context's device; what a pool keeps reserved
 * beyond them is not (README.md). Pool memory outlives contexts, so it has no owner. */
#include "allocation.h"

static CUresult undo_pooled(CUdeviceptr pointer) {
    return VGI_CUDA(cuMemFree_v2, pointer);
}

static CUresult allocate(PFN_cuMemAllocAsync_v11020 driver, CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    struct vgi_claim claim;
    CUcontext context = NULL;
    if (driver == NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (pointer == NULL || bytes == 0)
        return driver(pointer, bytes, stream);
    CUresult result = vgi_claim_current(bytes, &claim, &context);
    if (result != CUDA_SUCCESS)
        return result;
    result = driver(pointer, bytes, stream);
    return vgi_settle(result, &claim, *pointer, 0, undo_pooled);
}

VGI_HOOK CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return vgi_bind_cuda() ? allocate(vgi_cuda.cuMemAllocAsync, pointer, bytes, stream) : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return vgi_bind_cuda() ? allocate(vgi_cuda.cuMemAllocAsync_ptsz, pointer, bytes, stream) : VGI_NO_DRIVER;
}

static CUresult allocate_from(PFN_cuMemAllocFromPoolAsync_v11020 driver, CUdeviceptr *pointer, size_t bytes,
                              CUmemoryPool pool, CUstream stream) {
    struct vgi_claim claim;
    CUcontext context = NULL;
    if (driver == NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (pointer == NULL || bytes == 0)
        return driver(pointer, bytes, pool, stream);
    CUresult result = vgi_claim_current(bytes, &claim, &context);
    if (result != CUDA_SUCCESS)
        return result;
    result = driver(pointer, bytes, pool, stream);
    return vgi_settle(result, &claim, *pointer, 0, undo_pooled);
}

VGI_HOOK CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return vgi_bind_cuda() ? allocate_from(vgi_cuda.cuMemAllocFromPoolAsync, pointer, bytes, pool, stream)
                           : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return vgi_bind_cuda() ? allocate_from(vgi_cuda.cuMemAllocFromPoolAsync_ptsz, pointer, bytes, pool, stream)
                           : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    struct vgi_freeing freeing = vgi_begin_free(pointer);
    return vgi_end_free(VGI_CUDA(cuMemFreeAsync, pointer, stream), &freeing);
}

VGI_HOOK CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    struct vgi_freeing freeing = vgi_begin_free(pointer);
    return vgi_end_free(VGI_CUDA(cuMemFreeAsync_ptsz, pointer, stream), &freeing);
}
