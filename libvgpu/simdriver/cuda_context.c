#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define CONTEXT_MAGIC 0x43545831u
#define MAX_STACK 32

static CUcontext contexts; /* all living ones; guarded by sim.lock */
static CUcontext primary[SIM_MAX_CARDS];
static unsigned primary_flags[SIM_MAX_CARDS];
static _Thread_local CUcontext stack[MAX_STACK];
static _Thread_local unsigned depth;

static bool is_alive(CUcontext context) {
    for (CUcontext c = contexts; c != NULL; c = c->next)
        if (c == context)
            return true;
    return false;
}

CUcontext sim_current_context(void) {
    return depth == 0 ? NULL : stack[depth - 1];
}

CUresult sim_require_context(CUcontext *context) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    *context = sim_current_context();
    if (*context == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&sim.lock);
    bool alive = is_alive(*context);
    pthread_mutex_unlock(&sim.lock);
    if (!alive)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if ((*context)->parent != NULL)
        *context = (*context)->parent;
    return sim_card_fault((*context)->device);
}

static CUresult make_context(int device, unsigned flags, bool is_primary, CUcontext *made) {
    sim_card_is_used(device);
    CUresult result = sim_charge(device, sim_card_of(device)->context_bytes);
    if (result != CUDA_SUCCESS)
        return result;
    CUcontext context = calloc(1, sizeof *context);
    if (context == NULL) {
        sim_uncharge(device, sim_card_of(device)->context_bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    context->magic = CONTEXT_MAGIC;
    context->device = device;
    context->flags = flags;
    context->primary = is_primary;
    sim_reset_limits(context);
    context->next = contexts;
    contexts = context;
    sim_books_lock(sim.books);
    sim_own_card(device)->contexts++;
    sim_books_unlock(sim.books);
    *made = context;
    return CUDA_SUCCESS;
}

static void unlink_context(CUcontext context) {
    for (CUcontext *link = &contexts; *link != NULL; link = &(*link)->next)
        if (*link == context) {
            *link = context->next;
            break;
        }
}

/* The caller does not hold sim.lock. A primary context keeps its address for the process's life, as in CUDA. */
static void destroy_context(CUcontext context) {
    sim_free_context_memory(context);
    sim_uncharge(context->device, sim_card_of(context->device)->context_bytes + context->limit_bytes);
    sim_reset_limits(context);
    sim_books_lock(sim.books);
    sim_own_card(context->device)->contexts--;
    sim_books_unlock(sim.books);
    pthread_mutex_lock(&sim.lock);
    unlink_context(context);
    pthread_mutex_unlock(&sim.lock);
    if (!context->primary)
        free(context);
}

static CUresult check_device(CUdevice device) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    return sim_valid_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult sim_retain_primary(CUcontext *context, CUdevice device) {
    CUresult result = check_device(device);
    if (result != CUDA_SUCCESS)
        return result;
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    CUcontext existing = primary[device];
    if (existing == NULL) {
        result = make_context(device, primary_flags[device], true, &primary[device]);
    } else if (existing->references == 0) {
        result = sim_charge(device, sim_card_of(device)->context_bytes);
        if (result == CUDA_SUCCESS) {
            existing->next = contexts;
            contexts = existing;
            sim_books_lock(sim.books);
            sim_own_card(device)->contexts++;
            sim_books_unlock(sim.books);
        }
    }
    if (result == CUDA_SUCCESS) {
        primary[device]->references++;
        *context = primary[device];
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    return sim_retain_primary(context, device);
}

void sim_link_context(CUcontext context) {
    pthread_mutex_lock(&sim.lock);
    context->next = contexts;
    contexts = context;
    pthread_mutex_unlock(&sim.lock);
}

void sim_unlink_context(CUcontext context) {
    pthread_mutex_lock(&sim.lock);
    unlink_context(context);
    pthread_mutex_unlock(&sim.lock);
}

static CUresult drop_primary(CUdevice device, bool all) {
    CUresult result = check_device(device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim.lock);
    CUcontext context = primary[device];
    bool active = context != NULL && context->references > 0;
    if (active)
        context->references = all ? 0 : context->references - 1;
    bool last = active && context->references == 0;
    pthread_mutex_unlock(&sim.lock);
    if (last)
        destroy_context(context);
    return active || all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

SIM_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return drop_primary(device, false);
}

SIM_API CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    return drop_primary(device, false);
}

SIM_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return drop_primary(device, true);
}

SIM_API CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    return drop_primary(device, true);
}

SIM_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
    CUresult result = check_device(device);
    if (result != CUDA_SUCCESS)
        return result;
    if (flags == NULL || active == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    *flags = primary_flags[device];
    *active = primary[device] != NULL && primary[device]->references > 0;
    pthread_mutex_unlock(&sim.lock);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
    CUresult result = check_device(device);
    if (result == CUDA_SUCCESS)
        primary_flags[device] = flags;
    return result;
}

static CUresult create(CUcontext *context, unsigned int flags, CUdevice device) {
    CUresult result = check_device(device);
    if (result != CUDA_SUCCESS)
        return result;
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    result = sim_card_fault(device);
    if (result != CUDA_SUCCESS)
        return result;
    if (depth == MAX_STACK)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&sim.lock);
    result = make_context(device, flags, false, context);
    pthread_mutex_unlock(&sim.lock);
    if (result == CUDA_SUCCESS)
        stack[depth++] = *context;
    return result;
}

SIM_API CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) {
    return create(context, flags, device);
}

SIM_API CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
    return create(context, flags, device);
}

SIM_API CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *params, int count, unsigned int flags,
                                CUdevice device) {
    return params != NULL || count != 0 ? CUDA_ERROR_NOT_SUPPORTED : create(context, flags, device);
}

SIM_API CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice device) {
    return params != NULL ? CUDA_ERROR_NOT_SUPPORTED : create(context, flags, device);
}

SIM_API CUresult cuCtxDestroy_v2(CUcontext context) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim.lock);
    bool alive = context != NULL && is_alive(context);
    pthread_mutex_unlock(&sim.lock);
    if (!alive || context->primary || context->parent != NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (sim_current_context() == context)
        depth--;
    destroy_context(context);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxDestroy(CUcontext context) {
    return cuCtxDestroy_v2(context);
}

SIM_API CUresult cuCtxAttach(CUcontext *context, unsigned int flags) {
    CUcontext current = NULL;
    CUresult result = sim_require_context(&current);
    if (result == CUDA_SUCCESS && (context == NULL || flags != 0))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    current->references++;
    *context = current;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxDetach(CUcontext context) {
    CUcontext current = NULL;
    CUresult result = sim_require_context(&current);
    if (result != CUDA_SUCCESS)
        return result;
    if (context != current || context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context->references == 0)
        return cuCtxDestroy_v2(context);
    context->references--;
    return CUDA_SUCCESS;
}

static CUresult check_context(CUcontext context) {
    pthread_mutex_lock(&sim.lock);
    bool alive = is_alive(context);
    pthread_mutex_unlock(&sim.lock);
    return alive ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

SIM_API CUresult cuCtxSetCurrent(CUcontext context) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (context == NULL) {
        if (depth > 0)
            depth--;
        return CUDA_SUCCESS;
    }
    result = check_context(context);
    if (result == CUDA_SUCCESS) {
        if (depth == 0)
            depth = 1;
        stack[depth - 1] = context;
    }
    return result;
}

SIM_API CUresult cuCtxGetCurrent(CUcontext *context) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *context = sim_current_context();
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    CUresult result = sim_ready();
    if (result == CUDA_SUCCESS)
        result = check_context(context);
    if (result == CUDA_SUCCESS && depth == MAX_STACK)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        stack[depth++] = context;
    return result;
}

SIM_API CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context != NULL)
        *context = stack[depth];
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetDevice(CUdevice *device) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    CUcontext context = sim_current_context();
    if (context == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *device = context->device;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetFlags(unsigned int *flags) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result == CUDA_SUCCESS && flags == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *flags = context->flags;
    return result;
}

SIM_API CUresult cuCtxGetApiVersion(CUcontext context, unsigned int *version) {
    CUresult result = sim_ready();
    if (result == CUDA_SUCCESS && context != NULL)
        result = check_context(context);
    if (result == CUDA_SUCCESS && version == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *version = 3020;
    return result;
}
