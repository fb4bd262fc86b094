/* Pools of one process for another: by a file that says whose card they are on. Contents are not shared. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pool.h"

#define POOL_MAGIC 0x53494d504f4f4cull

struct shared_pool {
    uint64_t magic;
    uint32_t card; /* of the description */
};

struct shared_pointer {
    uint64_t magic;
    uint64_t bytes;
};
_Static_assert(sizeof(struct shared_pointer) <= sizeof(CUmemPoolPtrExportData), "fits the driver's data");

SIM_API CUresult cuMemPoolExportToShareableHandle(void *handle, CUmemoryPool pool, CUmemAllocationHandleType type,
                                                  unsigned long long flags) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim.lock);
    bool shareable = sim_is_pool(pool) && !pool->is_default && !pool->imported && pool->device >= 0;
    struct shared_pool shared = {POOL_MAGIC, shareable ? sim.cards[pool->device] : 0};
    pthread_mutex_unlock(&sim.lock);
    if (!shareable || handle == NULL || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    int file = memfd_create("pool", MFD_CLOEXEC);
    if (file < 0 || write(file, &shared, sizeof shared) != sizeof shared)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)handle = file;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type,
                                                    unsigned long long flags) {
    struct shared_pool shared;
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    int file = (int)(intptr_t)handle;
    if (pool == NULL || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        pread(file, &shared, sizeof shared, 0) != sizeof shared || shared.magic != POOL_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    struct CUmemPoolHandle_st content = {.imported = true, .type = CU_MEM_ALLOCATION_TYPE_PINNED};
    while (sim_valid_device(content.device) && sim.cards[content.device] != shared.card)
        content.device++;
    if (!sim_valid_device(content.device))
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&sim.lock);
    result = sim_pool_make(pool, &content);
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_API CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr pointer) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim.lock);
    const struct sim_allocation *found = sim_allocation_find(pointer);
    struct shared_pointer shared = {POOL_MAGIC, found != NULL && found->kind == SIM_POOLED ? found->bytes : 0};
    pthread_mutex_unlock(&sim.lock);
    if (data == NULL || shared.bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    memset(data, 0, sizeof *data);
    memcpy(data, &shared, sizeof shared);
    return CUDA_SUCCESS;
}

/* The memory is the exporter's; freeing the pointer lets it go here. */
SIM_API CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool, CUmemPoolPtrExportData *data) {
    struct shared_pointer shared;
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (pointer == NULL || data == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&shared, data, sizeof shared);
    pthread_mutex_lock(&sim.lock);
    bool usable = sim_is_pool(pool) && pool->imported && shared.magic == POOL_MAGIC && shared.bytes > 0;
    struct sim_allocation made = {.bytes = shared.bytes, .kind = SIM_EXTERNAL_BUFFER, .context = context};
    if (usable) {
        made.device = pool->device;
        made.address = sim_address_take(made.bytes);
    }
    bool entered = made.address != 0 && sim_allocation_add(made);
    pthread_mutex_unlock(&sim.lock);
    if (!usable)
        return CUDA_ERROR_INVALID_VALUE;
    if (!entered) {
        if (made.address != 0)
            sim_address_give_back(made.address, made.bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_count_allocations(made.device, 1);
    *pointer = made.address;
    return CUDA_SUCCESS;
}
