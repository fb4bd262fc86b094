/* Stream-ordered allocation. A pool reserves from its card what it hands out; what is freed stays reserved up to the
 * release threshold. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

struct CUmemPoolHandle_st {
    int device;
    bool is_default;
    uint64_t threshold;
    uint64_t reserved, reserved_high;
    uint64_t used, used_high;
    struct CUmemPoolHandle_st *next;
};

static struct CUmemPoolHandle_st default_pools[SIM_MAX_CARDS];
static CUmemoryPool current_pools[SIM_MAX_CARDS];
static CUmemoryPool made_pools; /* all guarded by sim.lock */

static CUmemoryPool default_pool(int device) {
    default_pools[device].device = device;
    default_pools[device].is_default = true;
    return &default_pools[device];
}

static CUmemoryPool current_pool(int device) {
    return current_pools[device] != NULL ? current_pools[device] : default_pool(device);
}

static bool is_pool(CUmemoryPool pool) {
    if (pool >= default_pools && pool < default_pools + SIM_MAX_CARDS)
        return true;
    for (CUmemoryPool p = made_pools; p != NULL; p = p->next)
        if (p == pool)
            return true;
    return false;
}

uint64_t sim_pool_round(int device, size_t bytes) {
    uint64_t chunk = sim_card_of(device)->pool_chunk_bytes;
    return chunk == 0 ? bytes : (bytes + chunk - 1) / chunk * chunk;
}

/* Takes bytes out of the pool; grows its reservation where it must. */
static CUresult pool_take(CUmemoryPool pool, size_t bytes) {
    uint64_t spare = pool->reserved - pool->used;
    if (bytes > spare) {
        CUresult result = sim_charge(pool->device, bytes - spare);
        if (result != CUDA_SUCCESS)
            return result;
        pool->reserved += bytes - spare;
    }
    pool->used += bytes;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    if (pool->reserved > pool->reserved_high)
        pool->reserved_high = pool->reserved;
    return CUDA_SUCCESS;
}

static void trim(CUmemoryPool pool, uint64_t keep) {
    uint64_t target = keep > pool->used ? keep : pool->used;
    if (pool->reserved > target) {
        sim_uncharge(pool->device, pool->reserved - target);
        pool->reserved = target;
    }
}

void sim_pool_returned(CUmemoryPool pool, size_t bytes) {
    pthread_mutex_lock(&sim.lock);
    pool->used -= bytes;
    trim(pool, pool->threshold);
    pthread_mutex_unlock(&sim.lock);
}

static CUresult allocate(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (pointer == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    if (pool == NULL)
        pool = current_pool(context->device);
    result = is_pool(pool) ? pool_take(pool, bytes) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        struct sim_allocation made = {
            .bytes = bytes, .device = pool->device, .kind = SIM_POOLED, .context = context, .pool = pool};
        made.address = sim_address_take(bytes);
        if (made.address == 0 || !sim_allocation_add(made)) {
            if (made.address != 0)
                sim_address_give_back(made.address, bytes);
            pool->used -= bytes;
            trim(pool, pool->threshold);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            sim_books_lock(sim.books);
            sim_own_card(pool->device)->allocations++;
            sim_books_unlock(sim.books);
            *pointer = made.address;
        }
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

/* In a captured stream an allocation is a node of the graph, of which only the address is there at once. */
static CUresult capture_allocation(struct sim_capture *capture, CUdeviceptr *pointer, size_t bytes, int device,
                                   CUstream stream, bool per_thread) {
    if (pointer == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct CUgraphNode_st content = {
        .type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
        .allocation = {.bytesize = bytes,
                       .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                     .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}}},
        .block = sim_graph_block_make(device, bytes)};
    CUgraphNode made = NULL;
    if (content.block == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    content.allocation.dptr = content.block->address;
    CUresult result = sim_capture_add(capture, stream, per_thread, &content, &made);
    if (result == CUDA_SUCCESS)
        *pointer = content.block->address;
    sim_graph_block_drop(content.block);
    return result;
}

static CUresult allocate_async(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream,
                               bool per_thread) {
    struct sim_capture *capture = sim_capture_of(stream, per_thread);
    CUcontext context = sim_current_context();
    if (capture != NULL && context != NULL)
        return capture_allocation(capture, pointer, bytes, pool == NULL ? context->device : pool->device, stream,
                                  per_thread);
    return allocate(pointer, bytes, pool);
}

SIM_API CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return allocate_async(pointer, bytes, NULL, stream, false);
}

SIM_API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return allocate_async(pointer, bytes, NULL, stream, true);
}

SIM_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return pool == NULL ? CUDA_ERROR_INVALID_VALUE : allocate_async(pointer, bytes, pool, stream, false);
}

SIM_API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return pool == NULL ? CUDA_ERROR_INVALID_VALUE : allocate_async(pointer, bytes, pool, stream, true);
}

static CUresult free_async(CUdeviceptr pointer, CUstream stream, bool per_thread) {
    struct sim_capture *capture = sim_capture_of(stream, per_thread);
    struct CUgraphNode_st content = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .freed = pointer};
    CUgraphNode made = NULL;
    return capture == NULL ? cuMemFree_v2(pointer) : sim_capture_add(capture, stream, per_thread, &content, &made);
}

SIM_API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    return free_async(pointer, stream, false);
}

SIM_API CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    return free_async(pointer, stream, true);
}

SIM_API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (pool == NULL || props == NULL || props->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_valid_device(props->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    CUmemoryPool made = calloc(1, sizeof *made);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->device = props->location.id;
    pthread_mutex_lock(&sim.lock);
    made->next = made_pools;
    made_pools = made;
    pthread_mutex_unlock(&sim.lock);
    *pool = made;
    return CUDA_SUCCESS;
}

/* Memory still handed out keeps its pool's record; only what lies unused is given back. */
SIM_API CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim.lock);
    bool destroyable = is_pool(pool) && !pool->is_default;
    if (destroyable) {
        pool->threshold = 0;
        trim(pool, 0);
        for (int i = 0; i < SIM_MAX_CARDS; i++)
            if (current_pools[i] == pool)
                current_pools[i] = NULL;
        for (CUmemoryPool *link = &made_pools; *link != NULL; link = &(*link)->next)
            if (*link == pool) {
                *link = pool->next;
                break;
            }
        if (pool->used == 0)
            free(pool);
    }
    pthread_mutex_unlock(&sim.lock);
    return destroyable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytesToKeep) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim.lock);
    bool known = is_pool(pool);
    if (known)
        trim(pool, bytesToKeep);
    pthread_mutex_unlock(&sim.lock);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    result = is_pool(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
            *(int *)value = 1;
            break;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
            *(cuuint64_t *)value = pool->threshold;
            break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
            *(cuuint64_t *)value = pool->reserved;
            break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
            *(cuuint64_t *)value = pool->reserved_high;
            break;
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
            *(cuuint64_t *)value = pool->used;
            break;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
            *(cuuint64_t *)value = pool->used_high;
            break;
        default:
            result = CUDA_ERROR_INVALID_VALUE;
            break;
        }
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (value == NULL || attribute < CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES ||
        attribute > CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    bool known = is_pool(pool);
    if (known && attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        pool->threshold = *(cuuint64_t *)value;
    if (known && attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        pool->reserved_high = pool->reserved;
    if (known && attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        pool->used_high = pool->used;
    pthread_mutex_unlock(&sim.lock);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (flags == NULL || location == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    bool known = is_pool(pool);
    if (known)
        *flags = location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id == pool->device
                     ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                     : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    pthread_mutex_unlock(&sim.lock);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult give_pool(CUmemoryPool *pool, CUdevice device, CUmemoryPool (*which)(int)) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (pool == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_valid_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&sim.lock);
    *pool = which(device);
    pthread_mutex_unlock(&sim.lock);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    return give_pool(pool, device, default_pool);
}

SIM_API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    return give_pool(pool, device, current_pool);
}

SIM_API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (!sim_valid_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&sim.lock);
    bool usable = is_pool(pool) && pool->device == device;
    if (usable)
        current_pools[device] = pool;
    pthread_mutex_unlock(&sim.lock);
    return usable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
