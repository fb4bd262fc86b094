/* Copies, fills and questions about pointers. Device memory is host memory, so a copy is a copy. */
#include <string.h>

#include "driver.h"

/* Whether [pointer, pointer + bytes) lies within one allocation, which is then about to be touched. */
static bool covers(CUdeviceptr pointer, size_t bytes) {
    pthread_mutex_lock(&sim.lock);
    struct sim_allocation *a = sim_allocation_containing(pointer);
    bool inside = a != NULL && bytes <= a->bytes - (size_t)(pointer - a->address);
    if (inside)
        a->touched = true;
    pthread_mutex_unlock(&sim.lock);
    return inside;
}

static CUresult copy(void *destination, const void *source, size_t bytes, CUdeviceptr check1, CUdeviceptr check2) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if ((check1 != 0 && !covers(check1, bytes)) || (check2 != 0 && !covers(check2, bytes)) || destination == NULL ||
        source == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memmove(destination, source, bytes);
    return CUDA_SUCCESS;
}

static void *host_view(CUdeviceptr pointer) {
    return (void *)(uintptr_t)pointer;
}

SIM_API CUresult cuMemcpy(CUdeviceptr destination, CUdeviceptr source, size_t bytes) {
    (void)covers(destination, bytes); /* either side may be the host */
    return copy(host_view(destination), host_view(source), bytes, 0, 0);
}

SIM_API CUresult cuMemcpyAsync(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream) {
    (void)stream;
    return cuMemcpy(destination, source, bytes);
}

SIM_API CUresult cuMemcpyHtoD_v2(CUdeviceptr destination, const void *source, size_t bytes) {
    return copy(host_view(destination), source, bytes, destination, 0);
}

SIM_API CUresult cuMemcpyDtoH_v2(void *destination, CUdeviceptr source, size_t bytes) {
    return copy(destination, host_view(source), bytes, source, 0);
}

SIM_API CUresult cuMemcpyDtoD_v2(CUdeviceptr destination, CUdeviceptr source, size_t bytes) {
    return copy(host_view(destination), host_view(source), bytes, destination, source);
}

SIM_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr destination, const void *source, size_t bytes, CUstream stream) {
    (void)stream;
    return cuMemcpyHtoD_v2(destination, source, bytes);
}

SIM_API CUresult cuMemcpyDtoHAsync_v2(void *destination, CUdeviceptr source, size_t bytes, CUstream stream) {
    (void)stream;
    return cuMemcpyDtoH_v2(destination, source, bytes);
}

static CUresult check_fill(CUdeviceptr pointer, size_t bytes) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    return covers(pointer, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemsetD8_v2(CUdeviceptr pointer, unsigned char value, size_t count) {
    CUresult result = check_fill(pointer, count);
    if (result == CUDA_SUCCESS)
        memset(host_view(pointer), value, count);
    return result;
}

SIM_API CUresult cuMemsetD8Async(CUdeviceptr pointer, unsigned char value, size_t count, CUstream stream) {
    (void)stream;
    return cuMemsetD8_v2(pointer, value, count);
}

SIM_API CUresult cuMemsetD32_v2(CUdeviceptr pointer, unsigned int value, size_t count) {
    size_t bytes = 0;
    if (__builtin_mul_overflow(count, sizeof value, &bytes) || pointer % sizeof value != 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check_fill(pointer, bytes);
    for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++)
        ((unsigned int *)host_view(pointer))[i] = value;
    return result;
}

SIM_API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim.lock);
    const struct sim_allocation *a = sim_allocation_containing(pointer);
    if (a != NULL && base != NULL)
        *base = a->address;
    if (a != NULL && bytes != NULL)
        *bytes = a->bytes;
    pthread_mutex_unlock(&sim.lock);
    return a != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

SIM_API CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (data == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    const struct sim_allocation *found = sim_allocation_containing(pointer);
    struct sim_allocation a = found == NULL ? (struct sim_allocation){0} : *found;
    pthread_mutex_unlock(&sim.lock);
    if (found == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = a.context;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned int *)data = a.kind == SIM_HOST ? 1 : 2; /* CU_MEMORYTYPE_HOST, _DEVICE */
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = pointer;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned int *)data = a.kind == SIM_MANAGED;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = a.device;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}
