/* Pinned host memory. On a card integrated with its host it is the card's own memory, and charged. */
#include <stdlib.h>

#include "driver.h"

static bool is_integrated(int device) {
    return sim_card_of(device)->integrated;
}

void sim_host_released(const struct sim_allocation *removed) {
    if (is_integrated(removed->device))
        sim_uncharge(removed->device, removed->bytes);
    if (removed->kind == SIM_HOST)
        free((void *)(uintptr_t)removed->address);
}

/* Enters host memory; charged where the card is integrated. */
static CUresult enter(void *memory, size_t bytes, CUcontext context, enum sim_allocation_kind kind) {
    struct sim_allocation made = {.address = (CUdeviceptr)(uintptr_t)memory,
                                  .bytes = bytes,
                                  .device = context->device,
                                  .kind = kind,
                                  .context = context};
    CUresult result = is_integrated(made.device) ? sim_charge(made.device, bytes) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim.lock);
    bool free_place = sim_allocation_find(made.address) == NULL;
    bool entered = free_place && sim_allocation_add(made);
    pthread_mutex_unlock(&sim.lock);
    if (!entered && is_integrated(made.device))
        sim_uncharge(made.device, bytes);
    return entered ? CUDA_SUCCESS : free_place ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

static CUresult allocate_host(void **pointer, size_t bytes) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (pointer == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    void *memory = calloc(1, bytes);
    if (memory == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = enter(memory, bytes, context, SIM_HOST);
    if (result != CUDA_SUCCESS)
        free(memory);
    else
        *pointer = memory;
    return result;
}

SIM_API CUresult cuMemAllocHost_v2(void **pointer, size_t bytes) {
    return allocate_host(pointer, bytes);
}

SIM_API CUresult cuMemAllocHost(void **pointer, unsigned int bytes) {
    return allocate_host(pointer, bytes);
}

SIM_API CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned int flags) {
    return flags > 7 ? CUDA_ERROR_INVALID_VALUE : allocate_host(pointer, bytes);
}

SIM_API CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned int flags) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (pointer == NULL || bytes == 0 || flags > 15)
        return CUDA_ERROR_INVALID_VALUE;
    return enter(pointer, bytes, context, SIM_REGISTERED);
}

SIM_API CUresult cuMemHostRegister(void *pointer, size_t bytes, unsigned int flags) {
    return cuMemHostRegister_v2(pointer, bytes, flags);
}

static CUresult leave(void *pointer, enum sim_allocation_kind kind, CUresult otherwise) {
    struct sim_allocation removed;
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)pointer;
    pthread_mutex_lock(&sim.lock);
    const struct sim_allocation *found = sim_allocation_find(address);
    bool left = found != NULL && found->kind == kind && sim_allocation_remove(address, &removed);
    pthread_mutex_unlock(&sim.lock);
    if (!left)
        return otherwise;
    sim_host_released(&removed);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemFreeHost(void *pointer) {
    return leave(pointer, SIM_HOST, CUDA_ERROR_INVALID_VALUE);
}

SIM_API CUresult cuMemHostUnregister(void *pointer) {
    return leave(pointer, SIM_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

SIM_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pointer, void *host, unsigned int flags) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (pointer == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    const struct sim_allocation *found = sim_allocation_containing((CUdeviceptr)(uintptr_t)host);
    bool known = found != NULL && (found->kind == SIM_HOST || found->kind == SIM_REGISTERED);
    pthread_mutex_unlock(&sim.lock);
    if (!known)
        return CUDA_ERROR_INVALID_VALUE;
    *pointer = (CUdeviceptr)(uintptr_t)host; /* one address space */
    return CUDA_SUCCESS;
}
