/* Pinned host memory: not the card's, unless the card is integrated with its host, where both are one. */
#include "allocation.h"

/* Whether the current context's device is integrated: asked once a device. */
static bool on_integrated_card(void) {
    enum { UNKNOWN, DISCRETE, INTEGRATED };
    static _Atomic unsigned char known[VGI_MAX_DEVICES];
    CUdevice device = 0;
    int integrated = 0;
    if (VGI_CUDA(cuCtxGetDevice, &device) != CUDA_SUCCESS || device < 0 || device >= VGI_MAX_DEVICES)
        return false;
    unsigned char kind = atomic_load_explicit(&known[device], memory_order_relaxed);
    if (kind == UNKNOWN &&
        VGI_CUDA(cuDeviceGetAttribute, &integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED, device) == CUDA_SUCCESS) {
        kind = integrated == 1 ? INTEGRATED : DISCRETE;
        atomic_store_explicit(&known[device], kind, memory_order_relaxed);
    }
    return kind == INTEGRATED;
}

static CUresult undo_allocation(CUdeviceptr pointer) {
    return VGI_CUDA(cuMemFreeHost, (void *)(uintptr_t)pointer);
}

static CUresult undo_registration(CUdeviceptr pointer) {
    return VGI_CUDA(cuMemHostUnregister, (void *)(uintptr_t)pointer);
}

#define ALLOCATE(symbol, parameters, ...)                                                                              \
    VGI_HOOK CUresult symbol parameters {                                                                              \
        struct vgi_claim claim;                                                                                        \
        CUcontext context = NULL;                                                                                      \
        if (!vgi_bind_cuda())                                                                                          \
            return VGI_NO_DRIVER;                                                                                      \
        if (pointer == NULL || bytes == 0 || !on_integrated_card())                                                    \
            return VGI_CUDA(symbol, __VA_ARGS__);                                                                      \
        CUresult result = vgi_claim_current(bytes, &claim, &context);                                                  \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        result = VGI_CUDA(symbol, __VA_ARGS__);                                                                        \
        return vgi_settle(result, &claim, (uintptr_t)*pointer, (uintptr_t)context, undo_allocation);                   \
    }

ALLOCATE(cuMemAllocHost, (void **pointer, unsigned int bytes), pointer, bytes)
ALLOCATE(cuMemAllocHost_v2, (void **pointer, size_t bytes), pointer, bytes)
ALLOCATE(cuMemHostAlloc, (void **pointer, size_t bytes, unsigned int flags), pointer, bytes, flags)

static CUresult register_host(PFN_cuMemHostRegister_v6050 driver, void *pointer, size_t bytes, unsigned int flags) {
    struct vgi_claim claim;
    CUcontext context = NULL;
    if (driver == NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (pointer == NULL || bytes == 0 || !on_integrated_card())
        return driver(pointer, bytes, flags);
    CUresult result = vgi_claim_current(bytes, &claim, &context);
    if (result != CUDA_SUCCESS)
        return result;
    return vgi_settle(driver(pointer, bytes, flags), &claim, (uintptr_t)pointer, (uintptr_t)context, undo_registration);
}

VGI_HOOK CUresult cuMemHostRegister(void *pointer, size_t bytes, unsigned int flags) {
    return vgi_bind_cuda() ? register_host(vgi_cuda.cuMemHostRegister, pointer, bytes, flags) : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned int flags) {
    return vgi_bind_cuda() ? register_host(vgi_cuda.cuMemHostRegister_v2, pointer, bytes, flags) : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuMemHostUnregister(void *pointer) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    struct vgi_freeing freeing = vgi_begin_free((uintptr_t)pointer);
    return vgi_end_free(VGI_CUDA(cuMemHostUnregister, pointer), &freeing);
}

VGI_HOOK CUresult cuMemFreeHost(void *pointer) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    struct vgi_freeing freeing = vgi_begin_free((uintptr_t)pointer);
    return vgi_end_free(VGI_CUDA(cuMemFreeHost, pointer), &freeing);
}
