/* Stream-ordered allocation. */
#include "pool.h"

#include <stdlib.h>
#include <string.h>

#include "graph.h"

uint64_t sim_pool_round(int device, size_t bytes) {
    uint64_t chunk = sim_card_of(device)->pool_chunk_bytes;
    return chunk == 0 ? bytes : (bytes + chunk - 1) / chunk * chunk;
}

static void uncharge(CUmemoryPool pool, uint64_t bytes) {
    if (pool->device >= 0)
        sim_uncharge(pool->device, bytes);
}

void sim_pool_trim(CUmemoryPool pool, uint64_t keep) {
    uint64_t target = keep > pool->used ? keep : pool->used;
    if (pool->device >= 0 && keep < UINT64_MAX / 2)
        target = sim_pool_round(pool->device, target);
    if (pool->reserved > target) {
        uncharge(pool, pool->reserved - target);
        pool->reserved = target;
    }
}

/* What streams have not got to yet cannot go back. */
static void trim_idle(CUmemoryPool pool, uint64_t keep) {
    if (pool->busy_until_ns <= sim_now_ns())
        sim_pool_trim(pool, keep);
}

/* Also what no pool of this process uses, where the card has no more. */
static CUresult charge(int device, uint64_t bytes) {
    CUresult result = sim_charge(device, bytes);
    if (result == CUDA_SUCCESS)
        return result;
    for (CUmemoryPool pool = sim_made_pools; pool != NULL; pool = pool->next)
        if (pool->device == device)
            trim_idle(pool, 0);
    trim_idle(sim_pool_default(device, CU_MEM_ALLOCATION_TYPE_PINNED), 0);
    return sim_charge(device, bytes);
}

/* Takes bytes out of the pool; grows its reservation where it must. */
static CUresult pool_take(CUmemoryPool pool, size_t bytes) {
    uint64_t spare = pool->reserved - pool->used;
    if (bytes > spare) {
        uint64_t growth = pool->device < 0 ? bytes - spare : sim_pool_round(pool->device, bytes - spare);
        CUresult result = pool->device < 0 ? CUDA_SUCCESS : charge(pool->device, growth);
        if (result != CUDA_SUCCESS)
            return result;
        pool->reserved += growth;
    }
    pool->used += bytes;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    if (pool->reserved > pool->reserved_high)
        pool->reserved_high = pool->reserved;
    return CUDA_SUCCESS;
}

/* The last that a destroyed pool had handed out ends it. */
void sim_pool_returned(CUmemoryPool pool, size_t bytes) {
    pthread_mutex_lock(&sim.lock);
    pool->used -= bytes;
    if (pool->destroyed && pool->used == 0) {
        sim_pool_trim(pool, 0);
        free(pool);
    }
    pthread_mutex_unlock(&sim.lock);
}

static void synchronise(CUmemoryPool pool) {
    if (pool->reserved > pool->threshold)
        trim_idle(pool, pool->threshold);
}

void sim_pools_synchronised(void) {
    pthread_mutex_lock(&sim.lock);
    for (CUmemoryPool pool = sim_made_pools; pool != NULL; pool = pool->next)
        synchronise(pool);
    for (int device = 0; device < (int)sim.device_count; device++) {
        synchronise(sim_pool_default(device, CU_MEM_ALLOCATION_TYPE_PINNED));
        synchronise(sim_pool_default(device, CU_MEM_ALLOCATION_TYPE_MANAGED));
    }
    pthread_mutex_unlock(&sim.lock);
}

/* ---- allocating ---- */

static CUresult allocate(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, int stream_device) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (pointer == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    if (pool == NULL)
        pool = sim_pool_current(stream_device);
    bool usable = sim_is_pool(pool) && !pool->imported;
    result = usable ? pool_take(pool, bytes) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        struct sim_allocation made = {.bytes = bytes,
                                      .device = pool->device < 0 ? context->device : pool->device,
                                      .kind = SIM_POOLED,
                                      .context = context,
                                      .pool = pool};
        made.address = sim_address_take(bytes);
        if (made.address == 0 || !sim_allocation_add(made)) {
            if (made.address != 0)
                sim_address_give_back(made.address, bytes);
            pool->used -= bytes;
            result = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            sim_count_allocations(made.device, 1);
            *pointer = made.address;
        }
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

/* In a captured stream an allocation is a node of the graph, of which only the address is there at once. */
static CUresult capture_allocation(struct sim_capture *capture, CUdeviceptr *pointer, size_t bytes, int device,
                                   CUstream stream, bool per_thread) {
    if (pointer == NULL || bytes == 0 || device < 0)
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
    int device = sim_stream_device(stream);
    if (device < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (capture != NULL)
        return capture_allocation(capture, pointer, bytes, pool == NULL ? device : pool->device, stream, per_thread);
    return allocate(pointer, bytes, pool, device);
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

/* ---- freeing ---- */

/* Until the stream has come to it, freed memory cannot leave its pool. */
static void keep_until(CUdeviceptr pointer, uint64_t ns) {
    pthread_mutex_lock(&sim.lock);
    const struct sim_allocation *found = sim_allocation_find(pointer);
    if (found != NULL && found->kind == SIM_POOLED && found->pool->busy_until_ns < ns)
        found->pool->busy_until_ns = ns;
    pthread_mutex_unlock(&sim.lock);
}

static CUresult free_async(CUdeviceptr pointer, CUstream stream, bool per_thread) {
    struct sim_capture *capture = sim_capture_of(stream, per_thread);
    struct CUgraphNode_st content = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .freed = pointer};
    CUgraphNode made = NULL;
    if (capture != NULL)
        return sim_capture_add(capture, stream, per_thread, &content, &made);
    if (sim_ready() == CUDA_SUCCESS)
        keep_until(pointer, sim_stream_end(stream, per_thread));
    return sim_free(pointer);
}

SIM_API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    return free_async(pointer, stream, false);
}

SIM_API CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    return free_async(pointer, stream, true);
}
