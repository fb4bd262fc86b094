/* Virtual memory management: memory is charged to the card that the property names when its handle is made, and given
 * back when the last reference to the handle and the last mapping of it are gone, in whatever order. */
#include <pthread.h>

#include "allocation.h"
#include "vgpu/prim.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards both tables together; never across a driver call */
static struct vgi_map handles;                           /* by handle: bytes, card, references, mappings */
static struct vgi_map mappings;                          /* by address: bytes, owner = handle */

void vgi_forget_mappings(void) {
    pthread_mutex_init(&lock, NULL);
    vgi_map_reset(&handles);
    vgi_map_reset(&mappings);
}

/* Adds to the counts of a known handle; with both at zero it is taken out and `freed` is what it held. */
static void count(uint64_t handle, int references, int maps, struct vgi_entry *freed) {
    struct vgi_entry entry;
    *freed = (struct vgi_entry){.key = 0};
    if (!vgi_map_find(&handles, handle, &entry))
        return;
    entry.references = (uint16_t)(entry.references + references);
    entry.mappings = (uint16_t)(entry.mappings + maps);
    if (entry.references == 0 && entry.mappings == 0)
        (void)vgi_map_take(&handles, handle, freed);
    else
        (void)vgi_map_put(&handles, &entry); /* replaces, so it needs no room */
}

/* The same from outside; gives back what became free. */
static void count_and_settle(uint64_t handle, int references, int maps) {
    struct vgi_entry freed;
    pthread_mutex_lock(&lock);
    count(handle, references, maps, &freed);
    pthread_mutex_unlock(&lock);
    if (freed.key != 0)
        vgi_give_back((int)freed.card, (enum vgi_kind)freed.kind, freed.bytes);
}

VGI_HOOK CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                              unsigned long long flags) {
    struct vgi_claim claim;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    if (handle == NULL || bytes == 0 || prop == NULL || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return VGI_CUDA(cuMemCreate, handle, bytes, prop, flags); /* no card's memory */
    CUresult result = vgi_claim(prop->location.id, bytes, &claim);
    if (result != CUDA_SUCCESS)
        return result;
    result = VGI_CUDA(cuMemCreate, handle, bytes, prop, flags);
    if (result == CUDA_SUCCESS && claim.card >= 0) {
        struct vgi_entry entry = {
            .key = *handle, .bytes = bytes, .card = (uint32_t)claim.card, .kind = claim.kind, .references = 1};
        pthread_mutex_lock(&lock);
        bool entered = vgi_map_put(&handles, &entry);
        pthread_mutex_unlock(&lock);
        if (!entered) {
            vgi_say(VGI_ERROR, "the host has no memory to keep account of an allocation; it is refused");
            (void)VGI_CUDA(cuMemRelease, *handle);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (result != CUDA_SUCCESS)
        vgi_give_back(claim.card, claim.kind, claim.bytes);
    return result;
}

/* Counted down before the driver is asked: afterwards the same handle value may already be someone else's. */
VGI_HOOK CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct vgi_entry freed = {.key = 0};
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    bool counted = vgi_state() == VGI_ATTACHED;
    if (counted) {
        pthread_mutex_lock(&lock);
        count(handle, -1, 0, &freed);
        pthread_mutex_unlock(&lock);
    }
    CUresult result = VGI_CUDA(cuMemRelease, handle);
    if (result == CUDA_SUCCESS && freed.key != 0) {
        vgi_give_back((int)freed.card, (enum vgi_kind)freed.kind, freed.bytes);
    } else if (result != CUDA_SUCCESS && counted) {
        pthread_mutex_lock(&lock);
        if (freed.key != 0) {
            freed.references = 1;
            (void)vgi_map_put(&handles, &freed);
        } else {
            count(handle, 1, 0, &freed);
        }
        pthread_mutex_unlock(&lock);
    }
    return result;
}

VGI_HOOK CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                           unsigned long long flags) {
    struct vgi_entry known;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    CUresult result = VGI_CUDA(cuMemMap, pointer, bytes, offset, handle, flags);
    if (result != CUDA_SUCCESS || vgi_state() != VGI_ATTACHED)
        return result;
    struct vgi_entry mapping = {.key = pointer, .bytes = bytes, .owner = handle};
    pthread_mutex_lock(&lock);
    /* A mapping that cannot be remembered stays counted for good: never too little. */
    if (vgi_map_find(&handles, handle, &known)) {
        (void)vgi_map_put(&mappings, &mapping);
        count(handle, 0, 1, &known);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* Whole mappings, one or several in a row: the driver takes nothing else. */
VGI_HOOK CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    CUresult result = VGI_CUDA(cuMemUnmap, pointer, bytes);
    if (result != CUDA_SUCCESS || vgi_state() != VGI_ATTACHED)
        return result;
    size_t done = 0;
    while (done < bytes) {
        struct vgi_entry mapping;
        pthread_mutex_lock(&lock);
        bool known = vgi_map_take(&mappings, pointer + done, &mapping);
        pthread_mutex_unlock(&lock);
        if (!known || mapping.bytes == 0)
            break;
        count_and_settle(mapping.owner, 0, -1);
        done += mapping.bytes;
    }
    return result;
}

VGI_HOOK CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    CUresult result = VGI_CUDA(cuMemRetainAllocationHandle, handle, address);
    if (result == CUDA_SUCCESS && vgi_state() == VGI_ATTACHED)
        count_and_settle(*handle, 1, 0);
    return result;
}
