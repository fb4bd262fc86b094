/* cuInit, and cuGetProcAddress: the driver answers first, and what it answers is replaced where it is hooked. */
#include "allocation.h"
#include "bind/hook_index.h"

VGI_HOOK CUresult cuInit(unsigned int flags) {
    if (!vgi_limits_are_valid())
        return CUDA_ERROR_NOT_PERMITTED;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    CUresult result = VGI_CUDA(cuInit, flags);
    return result == CUDA_SUCCESS ? vgi_attach() : result;
}

static void replace(CUresult result, void **pfn) {
    void *hook = result == CUDA_SUCCESS && pfn != NULL ? vgi_hook_by_pointer(*pfn) : NULL;
    if (hook != NULL)
        *pfn = hook;
}

VGI_HOOK CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    CUresult result = VGI_CUDA(cuGetProcAddress, symbol, pfn, cudaVersion, flags);
    replace(result, pfn);
    return result;
}

VGI_HOOK CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                      CUdriverProcAddressQueryResult *symbolStatus) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    CUresult result = VGI_CUDA(cuGetProcAddress_v2, symbol, pfn, cudaVersion, flags, symbolStatus);
    replace(result, pfn);
    return result;
}

/* NVIDIA's headers have it as an inline function; a driver may give it for per-thread streams. Without a mode in the
 * flags it means that one. */
VGI_HOOK CUresult cuGetProcAddress_v2_ptsz(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                           CUdriverProcAddressQueryResult *symbolStatus) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    CUresult result = VGI_CUDA(cuGetProcAddress_v2_ptsz, symbol, pfn, cudaVersion, flags, symbolStatus);
    replace(result, pfn);
    return result;
}
