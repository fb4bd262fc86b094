/* A context takes memory of its card, and its end frees what was allocated in it: both are charged and given back. */
#include "account/overhead.h"
#include "allocation.h"
#include "capture.h"
#include "compute/samples.h"

/* Handle of each device's primary context, once it was retained through us. */
static _Atomic(CUcontext) primary[VGI_MAX_DEVICES];

/* How often retaining it began and ended: meanwhile it may have begun anew, under the same handle. */
static _Atomic uint32_t retains_begun[VGI_MAX_DEVICES], retains_ended[VGI_MAX_DEVICES];

/* Green contexts: `card` is the CUDA ordinal, `owner` the handle of the same as an ordinary context. */
static struct vgi_map green_contexts;

void vgi_forget_contexts(void) {
    vgi_overhead_forget();
    vgi_map_reset(&green_contexts);
    for (int i = 0; i < VGI_MAX_DEVICES; i++) {
        atomic_store(&primary[i], NULL);
        atomic_store(&retains_begun[i], 0);
        atomic_store(&retains_ended[i], 0);
    }
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
    vgi_doubt_captures();
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
    if (!in_range(device))
        return VGI_CUDA(cuDevicePrimaryCtxRetain, context, device);
    if (primary_is(device, false))
        vgi_overhead_begin(device, VGI_KIND_CONTEXT, &overhead);
    atomic_fetch_add(&retains_begun[device], 1);
    CUresult result = VGI_CUDA(cuDevicePrimaryCtxRetain, context, device);
    atomic_fetch_add(&retains_ended[device], 1);
    if (result == CUDA_SUCCESS) {
        atomic_store(&primary[device], *context);
        vgi_overhead_end(&overhead, *context, NULL, false);
    }
    return result;
}

static CUcontext primary_of(CUdevice device) {
    return in_range(device) ? atomic_load(&primary[device]) : NULL;
}

/* Whether it certainly was not retained since `begun` was read. */
static bool no_retain_since(CUdevice device, uint32_t begun) {
    return atomic_load(&retains_begun[device]) == begun && atomic_load(&retains_ended[device]) == begun;
}

/* The last release ends the context, but which one that was only its state tells, and only while nobody retains it
 * anew: what was set apart then stays charged until the context that now has the handle ends. */
static void settle_release(CUdevice device, const struct ending *ending, uint32_t begun) {
    bool gone = primary_is(device, false);
    settle_ending(ending, gone, gone);
    /* What another release, not the last, had set apart and put back only now. */
    if (ending->apart != 0 && primary_is(device, false) && no_retain_since(device, begun))
        give_back_all_of(ending->context);
}

#define RELEASE(symbol)                                                                                                \
    VGI_HOOK CUresult symbol(CUdevice device) {                                                                        \
        struct ending ending;                                                                                          \
        if (!vgi_bind_cuda())                                                                                          \
            return VGI_NO_DRIVER;                                                                                      \
        uint32_t begun = in_range(device) ? atomic_load(&retains_begun[device]) : 0;                                   \
        set_apart(primary_of(device), &ending);                                                                        \
        CUresult result = VGI_CUDA(symbol, device);                                                                    \
        settle_release(device, &ending, begun);                                                                        \
        return result;                                                                                                 \
    }

RELEASE(cuDevicePrimaryCtxRelease)
RELEASE(cuDevicePrimaryCtxRelease_v2)

/* A reset destroys what the context held, whether or not it stays retained. */
#define RESET(symbol)                                                                                                  \
    VGI_HOOK CUresult symbol(CUdevice device) {                                                                        \
        struct ending ending;                                                                                          \
        if (!vgi_bind_cuda())                                                                                          \
            return VGI_NO_DRIVER;                                                                                      \
        set_apart(primary_of(device), &ending);                                                                        \
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
CREATE(cuGLCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device), context, flags, device)
CREATE(cuGLCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device), context, flags, device)
CREATE(cuVDPAUCtxCreate,
       (CUcontext * context, unsigned int flags, CUdevice device, uint32_t vdpDevice, void *vdpGetProcAddress), context,
       flags, device, vdpDevice, vdpGetProcAddress)
CREATE(cuVDPAUCtxCreate_v2,
       (CUcontext * context, unsigned int flags, CUdevice device, uint32_t vdpDevice, void *vdpGetProcAddress), context,
       flags, device, vdpDevice, vdpGetProcAddress)
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

/* Ends it where nobody has attached it besides. */
VGI_HOOK CUresult cuCtxDetach(CUcontext context) {
    struct ending ending;
    unsigned version = 0;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    set_apart(context, &ending);
    CUresult result = VGI_CUDA(cuCtxDetach, context);
    bool gone = result == CUDA_SUCCESS && VGI_CUDA(cuCtxGetApiVersion, context, &version) != CUDA_SUCCESS;
    settle_ending(&ending, gone, gone);
    return result;
}

/* ---- green contexts: each keeps its device's primary context, whose memory theirs is ---- */

/* The primary context's handle, also where the program never asked for it. It is kept alive meanwhile. */
static CUcontext find_primary(CUdevice device) {
    CUcontext context = primary_of(device);
    if (context != NULL || VGI_CUDA(cuDevicePrimaryCtxRetain, &context, device) != CUDA_SUCCESS)
        return context;
    (void)(vgi_cuda.cuDevicePrimaryCtxRelease_v2 != NULL ? vgi_cuda.cuDevicePrimaryCtxRelease_v2(device)
                                                         : VGI_CUDA(cuDevicePrimaryCtxRelease, device));
    atomic_store(&primary[device], context);
    return context;
}

VGI_HOOK CUresult cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc resources, CUdevice device,
                                   unsigned int flags) {
    struct vgi_overhead overhead = {.card = -1};
    CUcontext other = NULL;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    if (!in_range(device))
        return VGI_CUDA(cuGreenCtxCreate, context, resources, device, flags);
    if (primary_is(device, false))
        vgi_overhead_begin(device, VGI_KIND_CONTEXT, &overhead);
    atomic_fetch_add(&retains_begun[device], 1);
    CUresult result = VGI_CUDA(cuGreenCtxCreate, context, resources, device, flags);
    if (result == CUDA_SUCCESS && vgi_state() == VGI_ATTACHED) {
        vgi_overhead_end(&overhead, find_primary(device), NULL, false);
        (void)VGI_CUDA(cuCtxFromGreenCtx, &other, *context);
        struct vgi_entry entry = {.key = (uintptr_t)*context, .owner = (uintptr_t)other, .card = (uint32_t)device};
        (void)vgi_map_put(&green_contexts, &entry); /* if not, what it held is given back at the process's end */
    }
    atomic_fetch_add(&retains_ended[device], 1);
    return result;
}

VGI_HOOK CUresult cuGreenCtxDestroy(CUgreenCtx context) {
    struct vgi_entry entry;
    struct ending ending;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    if (vgi_state() != VGI_ATTACHED || !vgi_map_take(&green_contexts, (uintptr_t)context, &entry))
        return VGI_CUDA(cuGreenCtxDestroy, context);
    CUdevice device = (CUdevice)entry.card;
    uint32_t begun = atomic_load(&retains_begun[device]);
    if (entry.owner != 0) {
        vgi_map_change_owner(&vgi_allocations, entry.owner, (uintptr_t)primary_of(device));
        vgi_overhead_change_owner(entry.owner, (uintptr_t)primary_of(device));
    }
    set_apart(primary_of(device), &ending);
    CUresult result = VGI_CUDA(cuGreenCtxDestroy, context);
    settle_release(device, &ending, begun);
    if (result != CUDA_SUCCESS)
        (void)vgi_map_put(&green_contexts, &entry); /* its place in the table was free a moment ago */
    return result;
}
