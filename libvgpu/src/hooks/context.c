/* Destroying a context frees what was allocated in it: its charges go too. */
#include "allocation.h"
#include "compute/samples.h"

/* Handle of each device's primary context, once it was retained through us. */
static _Atomic(CUcontext) primary[VGI_MAX_DEVICES];

void vgi_forget_contexts(void) {
    for (int i = 0; i < VGI_MAX_DEVICES; i++)
        atomic_store(&primary[i], NULL);
}

static bool in_range(CUdevice device) {
    return device >= 0 && device < VGI_MAX_DEVICES;
}

static void give_back_all_of(CUcontext context) {
    struct vgi_entry entry;
    size_t cursor = 0;
    if (context == NULL || vgi_state() != VGI_ATTACHED)
        return;
    vgi_samples_forget(context);
    while (vgi_map_take_owned(&vgi_allocations, (uintptr_t)context, &cursor, &entry))
        vgi_give_back((int)entry.card, (enum vgi_kind)entry.kind, entry.bytes);
}

VGI_HOOK CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    CUresult result = VGI_CUDA(cuDevicePrimaryCtxRetain, context, device);
    if (result == CUDA_SUCCESS && in_range(device))
        atomic_store(&primary[device], *context);
    return result;
}

/* After a release or reset: if the context is no more, so is what it held. */
static CUresult settle_primary(CUresult result, CUdevice device) {
    unsigned flags = 0;
    int active = 1;
    if (result == CUDA_SUCCESS && in_range(device) &&
        VGI_CUDA(cuDevicePrimaryCtxGetState, device, &flags, &active) == CUDA_SUCCESS && !active)
        give_back_all_of(atomic_load(&primary[device]));
    return result;
}

VGI_HOOK CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    return vgi_bind_cuda() ? settle_primary(VGI_CUDA(cuDevicePrimaryCtxRelease, device), device) : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return vgi_bind_cuda() ? settle_primary(VGI_CUDA(cuDevicePrimaryCtxRelease_v2, device), device) : VGI_NO_DRIVER;
}

/* A reset destroys what the context held, whether or not it stays retained. */
static CUresult settle_reset(CUresult result, CUdevice device) {
    if (result == CUDA_SUCCESS && in_range(device))
        give_back_all_of(atomic_load(&primary[device]));
    return result;
}

VGI_HOOK CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    return vgi_bind_cuda() ? settle_reset(VGI_CUDA(cuDevicePrimaryCtxReset, device), device) : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return vgi_bind_cuda() ? settle_reset(VGI_CUDA(cuDevicePrimaryCtxReset_v2, device), device) : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuCtxDestroy_v2(CUcontext context) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    CUresult result = VGI_CUDA(cuCtxDestroy_v2, context);
    if (result == CUDA_SUCCESS)
        give_back_all_of(context);
    return result;
}

VGI_HOOK CUresult cuCtxDestroy(CUcontext context) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    CUresult result = VGI_CUDA(cuCtxDestroy, context);
    if (result == CUDA_SUCCESS)
        give_back_all_of(context);
    return result;
}
