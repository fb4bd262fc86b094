/* Copies, fills and questions about pointers. Device memory is host memory, so a copy is a copy. */
#include <string.h>

#include "graph.h"

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

/* Whether the stream is captured, and the copy a node of its graph. */
static bool capture_copy(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream, CUresult *result) {
    struct sim_capture *capture = sim_capture_of(stream, false);
    struct CUgraphNode_st content = {
        .type = CU_GRAPH_NODE_TYPE_MEMCPY,
        .copy = {.destination = destination, .source = source, .width = bytes, .height = 1, .depth = 1}};
    CUgraphNode made = NULL;
    if (capture != NULL)
        *result = sim_capture_add(capture, stream, false, &content, &made);
    return capture != NULL;
}

SIM_API CUresult cuMemcpyAsync(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream) {
    CUresult result;
    return capture_copy(destination, source, bytes, stream, &result) ? result : cuMemcpy(destination, source, bytes);
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
    CUresult result;
    return capture_copy(destination, (CUdeviceptr)(uintptr_t)source, bytes, stream, &result)
               ? result
               : cuMemcpyHtoD_v2(destination, source, bytes);
}

SIM_API CUresult cuMemcpyDtoHAsync_v2(void *destination, CUdeviceptr source, size_t bytes, CUstream stream) {
    CUresult result;
    return capture_copy((CUdeviceptr)(uintptr_t)destination, source, bytes, stream, &result)
               ? result
               : cuMemcpyDtoH_v2(destination, source, bytes);
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
    struct sim_capture *capture = sim_capture_of(stream, false);
    struct CUgraphNode_st content = {
        .type = CU_GRAPH_NODE_TYPE_MEMSET,
        .fill = {.dst = pointer, .value = value, .elementSize = 1, .width = count, .height = 1}};
    CUgraphNode made = NULL;
    return capture != NULL ? sim_capture_add(capture, stream, false, &content, &made)
                           : cuMemsetD8_v2(pointer, value, count);
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

/* One attribute of an allocation; of no allocation (address 0) its documented null. */
static CUresult tell(void *data, CUpointer_attribute attribute, CUdeviceptr pointer, const struct sim_allocation *a) {
    bool host = a->kind == SIM_HOST || a->kind == SIM_REGISTERED;
    bool known = a->address != 0;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = a->context;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned int *)data = !known ? 0 : host ? 1 : 2; /* CU_MEMORYTYPE_HOST, _DEVICE */
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = known ? pointer : 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned int *)data = known && a->kind == SIM_MANAGED;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = known ? a->device : -2;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

static struct sim_allocation look_up(CUdeviceptr pointer) {
    pthread_mutex_lock(&sim.lock);
    const struct sim_allocation *found = sim_allocation_containing(pointer);
    struct sim_allocation copy = found == NULL ? (struct sim_allocation){0} : *found;
    pthread_mutex_unlock(&sim.lock);
    return copy;
}

SIM_API CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    struct sim_allocation a = look_up(pointer);
    if (data == NULL || a.address == 0)
        return CUDA_ERROR_INVALID_VALUE;
    return tell(data, attribute, pointer, &a);
}

/* Unlike its sibling, it answers for pointers that CUDA does not know. */
SIM_API CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data,
                                        CUdeviceptr pointer) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (count == 0 || attributes == NULL || data == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_allocation a = look_up(pointer);
    for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = data[i] == NULL ? CUDA_ERROR_INVALID_VALUE : tell(data[i], attributes[i], pointer, &a);
    return result;
}
