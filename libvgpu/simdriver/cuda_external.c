/* Memory of other interfaces (Vulkan and its like), and memory of other processes by legacy IPC handles. There is no
 * Vulkan here: imported memory comes into being with its import. What another process wrote is not seen. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "objects.h"

SIM_API CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *d) {
    CUcontext context = NULL;
    struct sim_object *made = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (memory == NULL || d == NULL || d->size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (d->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (fcntl(d->handle.fd, F_GETFD) < 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_object wanted = {.kind = SIM_EXTERNAL_MEMORY, .bytes = d->size, .size = d->size};
    result = sim_object_make(&wanted, &made);
    if (result != CUDA_SUCCESS)
        return result;
    close(d->handle.fd); /* the descriptor is the driver's from here on */
    *memory = (CUexternalMemory)(void *)made;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
    return sim_object_destroy(SIM_EXTERNAL_MEMORY, memory);
}

/* Enters an address that stands for memory which is charged elsewhere. */
static CUresult map_foreign(CUdeviceptr *pointer, size_t bytes, int device, CUcontext context,
                            enum sim_allocation_kind kind) {
    struct sim_allocation made = {.bytes = bytes, .device = device, .kind = kind, .context = context};
    made.address = sim_address_take(bytes);
    pthread_mutex_lock(&sim.lock);
    bool entered = made.address != 0 && sim_allocation_add(made);
    pthread_mutex_unlock(&sim.lock);
    if (!entered) {
        if (made.address != 0)
            sim_address_give_back(made.address, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_count_allocations(device, 1);
    *pointer = made.address;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *pointer, CUexternalMemory memory,
                                                 const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *d) {
    struct sim_object found;
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!sim_object_find(SIM_EXTERNAL_MEMORY, memory, &found))
        return CUDA_ERROR_INVALID_HANDLE;
    if (pointer == NULL || d == NULL || d->size == 0 || d->flags != 0 || d->offset > found.size ||
        d->size > found.size - d->offset)
        return CUDA_ERROR_INVALID_VALUE;
    return map_foreign(pointer, d->size, found.device, context, SIM_EXTERNAL_BUFFER);
}

SIM_API CUresult cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *array, CUexternalMemory memory,
                                                         const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *d) {
    struct sim_object found, *made = NULL;
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!sim_object_find(SIM_EXTERNAL_MEMORY, memory, &found))
        return CUDA_ERROR_INVALID_HANDLE;
    if (array == NULL || d == NULL || d->numLevels == 0 || d->offset >= found.size)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_object wanted = {.kind = SIM_MIPMAPPED, .array = d->arrayDesc, .levels = d->numLevels};
    result = sim_object_make(&wanted, &made);
    if (result == CUDA_SUCCESS)
        *array = (CUmipmappedArray)(void *)made;
    return result;
}

/* ---- legacy IPC: the handle says which process holds which bytes of which card ---- */

#define HANDLE_MAGIC 0x53494d4950433031ull

struct ipc_handle {
    uint64_t magic;
    uint64_t pid_namespace;
    CUdeviceptr address;
    uint64_t bytes;
    int32_t pid;
    uint32_t process, card;
};
_Static_assert(sizeof(struct ipc_handle) <= CU_IPC_HANDLE_SIZE, "fits the driver's handle");

SIM_API CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (handle == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    const struct sim_allocation *found = sim_allocation_containing(pointer);
    bool shareable = found != NULL && found->kind == SIM_LINEAR; /* what cuMemAlloc gave, nothing else */
    struct ipc_handle made = {.magic = HANDLE_MAGIC};
    if (shareable) {
        made.address = found->address;
        made.bytes = found->bytes;
        made.card = sim.cards[found->device];
    }
    pthread_mutex_unlock(&sim.lock);
    if (!shareable)
        return CUDA_ERROR_INVALID_VALUE;
    made.pid = sim.process->pid;
    made.pid_namespace = sim.process->pid_namespace;
    made.process = (uint32_t)(sim.process - sim.books->processes);
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &made, sizeof made);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {
    struct ipc_handle given;
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    memcpy(&given, &handle, sizeof given);
    if (pointer == NULL || flags != 1 || given.magic != HANDLE_MAGIC || given.process >= SIM_MAX_PROCESSES)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sim_process *exporter = &sim.books->processes[given.process];
    if (exporter == sim.process)
        return CUDA_ERROR_INVALID_CONTEXT; /* not in the process that exported it */
    if (!exporter->in_use || exporter->pid != given.pid || exporter->pid_namespace != given.pid_namespace)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim.cards[context->device] != given.card)
        return CUDA_ERROR_INVALID_DEVICE;
    return map_foreign(pointer, given.bytes, context->device, context, SIM_IPC);
}

SIM_API CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {
    return cuIpcOpenMemHandle_v2(pointer, handle, flags);
}

SIM_API CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
    struct sim_allocation removed;
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim.lock);
    const struct sim_allocation *found = sim_allocation_find(pointer);
    bool opened = found != NULL && found->kind == SIM_IPC && sim_allocation_remove(pointer, &removed);
    pthread_mutex_unlock(&sim.lock);
    if (!opened)
        return CUDA_ERROR_INVALID_VALUE;
    sim_allocation_released(&removed);
    return CUDA_SUCCESS;
}
