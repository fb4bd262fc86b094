/* Contexts of other kinds, and the limits of contexts. */
#include <stdlib.h>

#include "driver.h"

/* ---- limits: the card's memory that a context sets aside for its kernels ---- */

static const size_t first_limits[SIM_LIMITS] = {1024, 1 << 20, 8 << 20};

void sim_reset_limits(CUcontext context) {
    for (int i = 0; i < SIM_LIMITS; i++)
        context->limits[i] = first_limits[i];
    context->limit_bytes = 0;
    context->heap_in_place = false;
}

/* What the limits take beyond what they begin with. False: more than there are numbers for. */
static bool bytes_of(CUcontext context, const size_t limits[SIM_LIMITS], size_t *bytes) {
    const struct sim_card *card = sim_card_of(context->device);
    const size_t units[SIM_LIMITS] = {(size_t)card->sm_count * card->threads_per_sm, 1, context->heap_in_place};
    *bytes = 0;
    for (int i = 0; i < SIM_LIMITS; i++) {
        size_t more = limits[i] > first_limits[i] ? limits[i] - first_limits[i] : 0, taken = 0;
        if (__builtin_mul_overflow(more, units[i], &taken) || __builtin_add_overflow(*bytes, taken, bytes))
            return false;
    }
    return true;
}

static CUresult take(CUcontext context, const size_t limits[SIM_LIMITS]) {
    size_t bytes = 0;
    CUresult result = CUDA_SUCCESS;
    if (!bytes_of(context, limits, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes > context->limit_bytes)
        result = sim_charge(context->device, bytes - context->limit_bytes);
    else
        sim_uncharge(context->device, context->limit_bytes - bytes);
    if (result == CUDA_SUCCESS)
        context->limit_bytes = bytes;
    return result;
}

CUresult sim_reserve_heap(CUcontext context) {
    bool before = context->heap_in_place;
    context->heap_in_place = true;
    CUresult result = take(context, context->limits);
    if (result != CUDA_SUCCESS)
        context->heap_in_place = before;
    return result;
}

/* Rounds up to 16 bytes. */
SIM_API CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    size_t limits[SIM_LIMITS];
    if (result != CUDA_SUCCESS)
        return result;
    if ((unsigned)limit >= SIM_LIMITS)
        return CUDA_ERROR_NOT_SUPPORTED;
    for (int i = 0; i < SIM_LIMITS; i++)
        limits[i] = context->limits[i];
    if (__builtin_add_overflow(value, 15, &limits[limit]) ||
        (limit == CU_LIMIT_MALLOC_HEAP_SIZE && context->heap_in_place))
        return CUDA_ERROR_INVALID_VALUE;
    limits[limit] &= ~(size_t)15;
    result = take(context, limits);
    if (result == CUDA_SUCCESS)
        context->limits[limit] = limits[limit];
    return result;
}

SIM_API CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result == CUDA_SUCCESS && value == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && (unsigned)limit >= SIM_LIMITS)
        result = CUDA_ERROR_NOT_SUPPORTED;
    if (result == CUDA_SUCCESS)
        *value = context->limits[limit];
    return result;
}

/* ---- of other interfaces ---- */

SIM_API CUresult cuGLCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) {
    return cuCtxCreate_v2(context, flags, device);
}

SIM_API CUresult cuGLCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
    return cuCtxCreate_v2(context, flags, device);
}

SIM_API CUresult cuVDPAUCtxCreate(CUcontext *context, unsigned int flags, CUdevice device, uint32_t vdpDevice,
                                  void *vdpGetProcAddress) {
    (void)vdpDevice, (void)vdpGetProcAddress;
    return cuCtxCreate_v2(context, flags, device);
}

SIM_API CUresult cuVDPAUCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device, uint32_t vdpDevice,
                                     void *vdpGetProcAddress) {
    return cuVDPAUCtxCreate(context, flags, device, vdpDevice, vdpGetProcAddress);
}

/* ---- green contexts: parts of a device, which are not told apart here. Each keeps the primary context. ---- */

struct CUgreenCtx_st {
    struct CUctx_st context;
    struct CUgreenCtx_st *next;
};

static CUgreenCtx green_contexts; /* guarded by sim.lock */

SIM_API CUresult cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc resources, CUdevice device,
                                  unsigned int flags) {
    CUcontext primary = NULL;
    (void)resources;
    if (context == NULL || flags != 1)
        return CUDA_ERROR_INVALID_VALUE;
    CUgreenCtx made = calloc(1, sizeof *made);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = sim_retain_primary(&primary, device);
    if (result != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    made->context = (struct CUctx_st){.device = device, .parent = primary};
    sim_link_context(&made->context);
    pthread_mutex_lock(&sim.lock);
    made->next = green_contexts;
    green_contexts = made;
    pthread_mutex_unlock(&sim.lock);
    *context = made;
    return CUDA_SUCCESS;
}

static bool is_green(CUgreenCtx context, bool take) {
    pthread_mutex_lock(&sim.lock);
    CUgreenCtx *link = &green_contexts;
    while (*link != NULL && *link != context)
        link = &(*link)->next;
    bool found = context != NULL && *link != NULL;
    if (found && take)
        *link = context->next;
    pthread_mutex_unlock(&sim.lock);
    return found;
}

SIM_API CUresult cuGreenCtxDestroy(CUgreenCtx context) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (!is_green(context, true))
        return CUDA_ERROR_INVALID_VALUE;
    CUdevice device = context->context.device;
    sim_unlink_context(&context->context);
    free(context);
    return cuDevicePrimaryCtxRelease_v2(device);
}

SIM_API CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx greenContext) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (context == NULL || !is_green(greenContext, false))
        return CUDA_ERROR_INVALID_VALUE;
    *context = &greenContext->context;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx context, unsigned int flags, int priority) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (!is_green(context, false))
        return CUDA_ERROR_INVALID_VALUE;
    result = cuCtxPushCurrent_v2(&context->context);
    if (result == CUDA_SUCCESS)
        result = cuStreamCreateWithPriority(stream, flags, priority);
    (void)cuCtxPopCurrent_v2(NULL);
    return result;
}
