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
static void give_back_owned(uint64_t owner) {
    struct vgi_entry entry;
    size_t cursor = 0;
    while (vgi_map_take_owned(&vgi_allocations, owner, &cursor, &entry))
        vgi_give_back((int)entry.card, (enum vgi_kind)entry.kind, entry.bytes);
    vgi_overhead_drop_owned(owner);
}

static void give_back_all_of(CUcontext context) {
    if (context == NULL || vgi_state() != VGI_ATTACHED)
        return;
    vgi_samples_forget(context);
    give_back_owned((uintptr_t)context);
    vgi_overhead_drop(context);
}

/* Around a call that destroys a context or what it holds. Before it all of that is set apart: afterwards another thread
 * may have been given the same handle, for a context that lives. */
struct ending {
    CUcontext context;
    uint64_t apart; /* owner of what was set apart; no address. 0 = nothing is counted */
    bool known;
    struct vgi_entry overhead;
};

static void set_apart(CUcontext context, struct ending *ending) {
    static _Atomic uint64_t serial;
    *ending = (struct ending){.context = context};
    if (context == NULL || vgi_state() != VGI_ATTACHED)
        return;
    ending->apart = 1ull << 63 | (atomic_fetch_add(&serial, 1) + 1);
    vgi_map_change_owner(&vgi_allocations, (uintptr_t)context, ending->apart);
    vgi_overhead_change_owner((uintptr_t)context, ending->apart);
    ending->known = vgi_overhead_take(context, &ending->overhead);
}

static void settle_ending(const struct ending *ending, bool content_gone, bool context_gone) {
    if (ending->apart == 0)
        return;
    if (content_gone) {
        vgi_samples_forget(ending->context);
        give_back_owned(ending->apart);
    } else {
        vgi_map_change_owner(&vgi_allocations, ending->apart, (uintptr_t)ending->context);
        vgi_overhead_change_owner(ending->apart, (uintptr_t)ending->context);
    }
    if (ending->known)
        vgi_overhead_settle(context_gone ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN, &ending->overhead);
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
#define RESET(symbol)                                                                                                  \
    VGI_HOOK CUresult symbol(CUdevice device) {                                                                        \
        struct ending ending;                                                                                          \
        if (!vgi_bind_cuda())                                                                                          \
            return VGI_NO_DRIVER;                                                                                      \
        set_apart(in_range(device) ? atomic_load(&primary[device]) : NULL, &ending);                                   \
        CUresult result = VGI_CUDA(symbol, device);                                                                    \
        bool gone = result == CUDA_SUCCESS;                                                                            \
        settle_ending(&ending, gone, gone && primary_is(device, false));                                               \
        return result;                                                                                                 \
    }

RESET(cuDevicePrimaryCtxReset)
RESET(cuDevicePrimaryCtxReset_v2)

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

#define DESTROY(symbol)                                                                                                \
    VGI_HOOK CUresult symbol(CUcontext context) {                                                                      \
        struct ending ending;                                                                                          \
        if (!vgi_bind_cuda())                                                                                          \
            return VGI_NO_DRIVER;                                                                                      \
        set_apart(context, &ending);                                                                                   \
        CUresult result = VGI_CUDA(symbol, context);                                                                   \
        settle_ending(&ending, result == CUDA_SUCCESS, result == CUDA_SUCCESS);                                        \
        return result;                                                                                                 \
    }

DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)
