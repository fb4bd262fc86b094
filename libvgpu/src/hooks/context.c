/* A context takes memory of its card, and its end frees what was allocated in it: both are charged and given back. */
#include "account/overhead.h"
#include "allocation.h"
#include "compute/samples.h"

/* Handle of each device's primary context, once it was retained through us. */
static _Atomic(CUcontext) primary[VGI_MAX_DEVICES];

void vgi_forget_contexts(void) {
    vgi_overhead_forget();
    for (int i = 0; i < VGI_MAX_DEVICES; i++)
        atomic_store(&primary[i], NULL);
}

static bool in_range(CUdevice device) {
    return device >= 0 && device < VGI_MAX_DEVICES;
}

/* What was allocated and loaded in the context. */
static void give_back_content(CUcontext context) {
    struct vgi_entry entry;
    size_t cursor = 0;
    if (context == NULL || vgi_state() != VGI_ATTACHED)
        return;
    vgi_samples_forget(context);
    while (vgi_map_take_owned(&vgi_allocations, (uintptr_t)context, &cursor, &entry))
        vgi_give_back((int)entry.card, (enum vgi_kind)entry.kind, entry.bytes);
    vgi_overhead_drop_owned(context);
}

static void give_back_all_of(CUcontext context) {
    give_back_content(context);
    if (context != NULL)
        vgi_overhead_drop(context);
}

/* Whether the device's primary context certainly exists, or certainly does not. */
static bool primary_is(CUdevice device, int wanted) {
    unsigned flags = 0;
    int active = 0;
    return in_range(device) && VGI_CUDA(cuDevicePrimaryCtxGetState, device, &flags, &active) == CUDA_SUCCESS &&
           (active != 0) == wanted;
}

VGI_HOOK CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    struct vgi_overhead overhead = {.card = -1};
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    if (primary_is(device, false))
        vgi_overhead_begin(device, VGI_KIND_CONTEXT, &overhead);
    CUresult result = VGI_CUDA(cuDevicePrimaryCtxRetain, context, device);
    if (result == CUDA_SUCCESS && in_range(device)) {
        atomic_store(&primary[device], *context);
        vgi_overhead_end(&overhead, *context, NULL, false);
    }
    return result;
}

/* After a release or reset: if the context is no more, so is what it held. */
static CUresult settle_primary(CUresult result, CUdevice device) {
    if (result == CUDA_SUCCESS && primary_is(device, false))
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
        give_back_content(atomic_load(&primary[device]));
    return settle_primary(result, device);
}

VGI_HOOK CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    return vgi_bind_cuda() ? settle_reset(VGI_CUDA(cuDevicePrimaryCtxReset, device), device) : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return vgi_bind_cuda() ? settle_reset(VGI_CUDA(cuDevicePrimaryCtxReset_v2, device), device) : VGI_NO_DRIVER;
}

#define CREATE(symbol, parameters, ...)                                                                                \
    VGI_HOOK CUresult symbol parameters {                                                                              \
        struct vgi_overhead overhead;                                                                                  \
        if (!vgi_bind_cuda())                                                                                          \
            return VGI_NO_DRIVER;                                                                                      \
        vgi_overhead_begin(device, VGI_KIND_CONTEXT, &overhead);                                                       \
        CUresult result = VGI_CUDA(symbol, __VA_ARGS__);                                                               \
        if (result == CUDA_SUCCESS)                                                                                    \
            vgi_overhead_end(&overhead, *context, NULL, false);                                                        \
        return result;                                                                                                 \
    }

CREATE(cuCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device), context, flags, device)
CREATE(cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device), context, flags, device)
CREATE(cuCtxCreate_v3,
       (CUcontext * context, CUexecAffinityParam *params, int count, unsigned int flags, CUdevice device), context,
       params, count, flags, device)
CREATE(cuCtxCreate_v4, (CUcontext * context, CUctxCreateParams *params, unsigned int flags, CUdevice device), context,
       params, flags, device)

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
