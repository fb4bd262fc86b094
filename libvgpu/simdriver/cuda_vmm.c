/* Virtual memory management: handles counted by their references and mappings; memory returns when both are gone. */
#include <stdlib.h>
#include <sys/mman.h>

#include "vmm.h"

#define GRANULARITY (2ull << 20)

struct reservation {
    CUdeviceptr address;
    size_t bytes;
    struct reservation *next;
};

struct mapping {
    CUdeviceptr address;
    size_t bytes;
    struct sim_handle *handle;
    struct mapping *next;
};

struct sim_handle *sim_handles;
static struct reservation *reservations; /* all guarded by sim.lock */
static struct mapping *mappings;

struct sim_handle *sim_handle_find(CUmemGenericAllocationHandle value) {
    for (struct sim_handle *h = sim_handles; h != NULL; h = h->next)
        if (sim_handle_value(h) == value)
            return h;
    return NULL;
}

/* With sim.lock held. */
static void drop_if_unused(struct sim_handle *handle) {
    if (handle->references > 0 || handle->mappings > 0)
        return;
    for (struct sim_handle **link = &sim_handles; *link != NULL; link = &(*link)->next)
        if (*link == handle) {
            *link = handle->next;
            break;
        }
    if (handle->shared >= 0)
        sim_handle_unshare(handle);
    else
        sim_uncharge(handle->device, handle->bytes);
    free(handle);
}

void sim_handle_unmapped(struct sim_handle *handle) {
    handle->mappings--;
    drop_if_unused(handle);
}

SIM_API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                             unsigned long long flags) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (handle == NULL || prop == NULL || flags != 0 || bytes == 0 || bytes % GRANULARITY != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!sim_valid_device(prop->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    struct sim_handle *made = calloc(1, sizeof *made);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = sim_charge(prop->location.id, bytes);
    if (result != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    made->device = prop->location.id;
    made->bytes = bytes;
    made->prop = *prop;
    made->shared = -1;
    made->references = 1;
    pthread_mutex_lock(&sim.lock);
    made->next = sim_handles;
    sim_handles = made;
    pthread_mutex_unlock(&sim.lock);
    *handle = sim_handle_value(made);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim.lock);
    struct sim_handle *found = sim_handle_find(handle);
    bool held = found != NULL && found->references > 0;
    if (held) {
        found->references--;
        drop_if_unused(found);
    }
    pthread_mutex_unlock(&sim.lock);
    return held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment, CUdeviceptr address,
                                     unsigned long long flags) {
    (void)address; /* a wish only */
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (pointer == NULL || bytes == 0 || bytes % GRANULARITY != 0 || alignment > GRANULARITY || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct reservation *made = calloc(1, sizeof *made);
    CUdeviceptr taken = made == NULL ? 0 : sim_address_take(bytes);
    if (taken == 0) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->address = taken;
    made->bytes = bytes;
    pthread_mutex_lock(&sim.lock);
    made->next = reservations;
    reservations = made;
    pthread_mutex_unlock(&sim.lock);
    *pointer = taken;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    for (struct reservation **link = &reservations; *link != NULL; link = &(*link)->next) {
        struct reservation *r = *link;
        if (r->address != pointer || r->bytes != bytes)
            continue;
        *link = r->next;
        sim_address_give_back(r->address, r->bytes);
        free(r);
        result = CUDA_SUCCESS;
        break;
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

static bool is_reserved(CUdeviceptr pointer, size_t bytes) {
    for (struct reservation *r = reservations; r != NULL; r = r->next)
        if (pointer >= r->address && pointer - r->address <= r->bytes && bytes <= r->bytes - (pointer - r->address))
            return true;
    return false;
}

static bool is_mapped(CUdeviceptr pointer, size_t bytes) {
    for (struct mapping *m = mappings; m != NULL; m = m->next)
        if (pointer < m->address + m->bytes && m->address < pointer + bytes)
            return true;
    return false;
}

SIM_API CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (bytes == 0 || bytes % GRANULARITY != 0 || offset != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct mapping *made = calloc(1, sizeof *made);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&sim.lock);
    struct sim_handle *found = sim_handle_find(handle);
    bool possible = found != NULL && bytes <= found->bytes && is_reserved(pointer, bytes) && !is_mapped(pointer, bytes);
    if (possible) {
        *made = (struct mapping){.address = pointer, .bytes = bytes, .handle = found, .next = mappings};
        mappings = made;
        found->mappings++;
        possible = sim_allocation_add(
            (struct sim_allocation){.address = pointer, .bytes = bytes, .device = found->device, .kind = SIM_MAPPED});
    }
    pthread_mutex_unlock(&sim.lock);
    if (!possible) {
        free(made);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* Every mapping that begins in the range must end in it. */
SIM_API CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    struct sim_allocation removed;
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    size_t covered = 0;
    pthread_mutex_lock(&sim.lock);
    for (struct mapping *m = mappings; m != NULL; m = m->next)
        if (m->address >= pointer && m->address + m->bytes <= pointer + bytes)
            covered += m->bytes;
    bool exact = bytes > 0 && covered == bytes;
    struct mapping **link = &mappings;
    while (exact && *link != NULL) {
        struct mapping *m = *link;
        if (m->address < pointer || m->address + m->bytes > pointer + bytes) {
            link = &m->next;
            continue;
        }
        *link = m->next;
        sim_allocation_remove(m->address, &removed);
        sim_handle_unmapped(m->handle);
        free(m);
    }
    pthread_mutex_unlock(&sim.lock);
    return exact ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *descriptors, size_t count) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (descriptors == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    bool mapped = is_mapped(pointer, bytes);
    pthread_mutex_unlock(&sim.lock);
    return mapped ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                               CUmemAllocationGranularity_flags option) {
    (void)option;
    CUresult result = sim_ready();
    if (result == CUDA_SUCCESS && (granularity == NULL || prop == NULL))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *granularity = GRANULARITY;
    return result;
}

SIM_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (handle == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr pointer = (CUdeviceptr)(uintptr_t)address;
    result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    for (struct mapping *m = mappings; m != NULL; m = m->next)
        if (pointer >= m->address && pointer - m->address < m->bytes) {
            m->handle->references++;
            *handle = sim_handle_value(m->handle);
            result = CUDA_SUCCESS;
            break;
        }
    pthread_mutex_unlock(&sim.lock);
    return result;
}
