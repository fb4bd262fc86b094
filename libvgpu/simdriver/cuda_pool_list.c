/* Pools themselves: making and choosing them, and what can be asked about them. */
#include <stdlib.h>
#include <string.h>

#include "pool.h"

static struct CUmemPoolHandle_st pinned_defaults[SIM_MAX_CARDS], managed_defaults[SIM_MAX_CARDS], host_default;
static CUmemoryPool chosen[SIM_MAX_CARDS], chosen_managed[SIM_MAX_CARDS], chosen_host;
CUmemoryPool sim_made_pools; /* all guarded by sim.lock */

CUmemoryPool sim_pool_default(int device, CUmemAllocationType type) {
    CUmemoryPool pool = device < 0                               ? &host_default
                        : type == CU_MEM_ALLOCATION_TYPE_MANAGED ? &managed_defaults[device]
                                                                 : &pinned_defaults[device];
    pool->device = device;
    pool->type = type;
    pool->is_default = true;
    return pool;
}

static CUmemoryPool *choice(int device, CUmemAllocationType type) {
    return device < 0                               ? &chosen_host
           : type == CU_MEM_ALLOCATION_TYPE_MANAGED ? &chosen_managed[device]
                                                    : &chosen[device];
}

CUmemoryPool sim_pool_current(int device) {
    return chosen[device] != NULL ? chosen[device] : sim_pool_default(device, CU_MEM_ALLOCATION_TYPE_PINNED);
}

bool sim_is_pool(CUmemoryPool pool) {
    if ((pool >= pinned_defaults && pool < pinned_defaults + SIM_MAX_CARDS) ||
        (pool >= managed_defaults && pool < managed_defaults + SIM_MAX_CARDS) || pool == &host_default)
        return true;
    for (CUmemoryPool p = sim_made_pools; p != NULL; p = p->next)
        if (p == pool)
            return true;
    return false;
}

/* Managed memory may be without a place: it is then the current device's. */
static CUresult find_device(const CUmemLocation *location, CUmemAllocationType type, int *device) {
    CUcontext context = sim_current_context();
    *device = -1;
    if (type != CU_MEM_ALLOCATION_TYPE_PINNED && type != CU_MEM_ALLOCATION_TYPE_MANAGED)
        return CUDA_ERROR_INVALID_VALUE;
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) {
        *device = location->id;
        return sim_valid_device(location->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    }
    if (type == CU_MEM_ALLOCATION_TYPE_MANAGED) {
        *device = context == NULL ? 0 : context->device;
        return CUDA_SUCCESS;
    }
    bool host = location->type == CU_MEM_LOCATION_TYPE_HOST || location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
                location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
    return host ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_pool_make(CUmemoryPool *pool, const struct CUmemPoolHandle_st *content) {
    CUmemoryPool made = malloc(sizeof *made);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = *content;
    made->next = sim_made_pools;
    sim_made_pools = *pool = made;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) {
    struct CUmemPoolHandle_st content = {.device = -1};
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (pool == NULL || props == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    content.type = props->allocType;
    result = find_device(&props->location, props->allocType, &content.device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim.lock);
    result = sim_pool_make(pool, &content);
    pthread_mutex_unlock(&sim.lock);
    return result;
}

static void forget_choice(CUmemoryPool pool) {
    for (int i = 0; i < SIM_MAX_CARDS; i++) {
        if (chosen[i] == pool)
            chosen[i] = NULL;
        if (chosen_managed[i] == pool)
            chosen_managed[i] = NULL;
    }
    if (chosen_host == pool)
        chosen_host = NULL;
}

/* Memory still handed out keeps its pool's record; only what lies unused is given back. */
SIM_API CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim.lock);
    bool destroyable = sim_is_pool(pool) && !pool->is_default;
    if (destroyable) {
        pool->threshold = 0;
        pool->destroyed = true;
        sim_pool_trim(pool, 0);
        forget_choice(pool);
        for (CUmemoryPool *link = &sim_made_pools; *link != NULL; link = &(*link)->next)
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
    bool known = sim_is_pool(pool);
    if (known && pool->busy_until_ns <= sim_now_ns())
        sim_pool_trim(pool, bytesToKeep);
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
    result = sim_is_pool(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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

/* The high marks can be set to nothing but zero, which makes them what is there now. */
SIM_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (value == NULL || attribute < CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES ||
        attribute > CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    bool known = sim_is_pool(pool);
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
    bool on_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE && sim_valid_device(location->id);
    pthread_mutex_lock(&sim.lock);
    bool known = sim_is_pool(pool);
    if (known)
        *flags = on_device && location->id == pool->device ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                 : on_device                               ? pool->access[location->id]
                                                           : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    pthread_mutex_unlock(&sim.lock);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (map == NULL && count > 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    result = sim_is_pool(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || !sim_valid_device(map[i].location.id))
            result = CUDA_ERROR_INVALID_DEVICE;
        else
            pool->access[map[i].location.id] = map[i].flags;
    pthread_mutex_unlock(&sim.lock);
    return result;
}

/* ---- which pool is whose ---- */

static CUresult give_pool(CUmemoryPool *pool, const CUmemLocation *location, CUmemAllocationType type, bool current) {
    int device = -1;
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (pool == NULL || location == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    result = find_device(location, type, &device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim.lock);
    CUmemoryPool chosen_one = *choice(device, type);
    *pool = current && chosen_one != NULL ? chosen_one : sim_pool_default(device, type);
    pthread_mutex_unlock(&sim.lock);
    return CUDA_SUCCESS;
}

static CUmemLocation on_device(CUdevice device) {
    return (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

SIM_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    CUmemLocation location = on_device(device);
    return give_pool(pool, &location, CU_MEM_ALLOCATION_TYPE_PINNED, false);
}

SIM_API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    CUmemLocation location = on_device(device);
    return give_pool(pool, &location, CU_MEM_ALLOCATION_TYPE_PINNED, true);
}

SIM_API CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    return give_pool(pool, location, type, false);
}

SIM_API CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    return give_pool(pool, location, type, true);
}

SIM_API CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
    int device = -1;
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    result = location == NULL ? CUDA_ERROR_INVALID_VALUE : find_device(location, type, &device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim.lock);
    bool usable = sim_is_pool(pool) && pool->device == device && pool->type == type && !pool->imported;
    if (usable)
        *choice(device, type) = pool;
    pthread_mutex_unlock(&sim.lock);
    return usable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    CUmemLocation location = on_device(device);
    return cuMemSetMemPool(&location, CU_MEM_ALLOCATION_TYPE_PINNED, pool);
}
