/* Virtual memory management: memory is charged to the card that the property names when its handle is made, and given
 * back when the last reference to the handle and the last mapping of it are gone, in whatever order.
 *
 * What ends is taken out of the tables before the driver is called, what begins is counted before: afterwards another
 * thread may already have ended it, or have been given the same address or handle again. */
#include "vmm.h"

#include <pthread.h>

#include "vgpu/prim.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the tables together; never across a driver call */
static struct vgi_map handles;    /* by handle: bytes, card, references, mappings; owner 1: the size is not known */
static struct vgi_map mappings;   /* by address: bytes, owner = handle */
static struct vgi_map unmappings; /* the same, while the driver unmaps them */

void vgi_forget_mappings(void) {
    pthread_mutex_init(&lock, NULL);
    vgi_map_reset(&handles);
    vgi_map_reset(&mappings);
    vgi_map_reset(&unmappings);
    vgi_forget_array_mappings();
}

uint64_t vgi_handle_bytes(void) {
    return vgi_map_bytes(&handles);
}

/* Down to zero it goes, up to the counter's end: a handle counted more often than that stays charged for good. */
static uint16_t counted(uint16_t value, int change) {
    if (value == UINT16_MAX || (change < 0 && value == 0))
        return value;
    return (uint16_t)(value + change);
}

/* Adds to the counts of a known handle; with both at zero it is taken out and `freed` is what it held. */
static void count(uint64_t handle, int references, int maps, struct vgi_entry *freed) {
    struct vgi_entry entry;
    *freed = (struct vgi_entry){.key = 0};
    if (!vgi_map_find(&handles, handle, &entry))
        return;
    entry.references = counted(entry.references, references);
    entry.mappings = counted(entry.mappings, maps);
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

void vgi_count_mapping(CUmemGenericAllocationHandle handle, int change) {
    count_and_settle(handle, 0, change);
}

CUdevice vgi_device_of_location(const CUmemLocation *location) {
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return location->id;
    case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:
        return location->id & 0xff; /* the byte above it names the part of the device */
    default:
        return -1;
    }
}

bool vgi_enter_handle(CUmemGenericAllocationHandle handle, const struct vgi_claim *claim) {
    struct vgi_entry entry, freed;
    pthread_mutex_lock(&lock);
    bool known = vgi_map_find(&handles, handle, &entry);
    if (known)
        count(handle, 1, 0, &freed);
    entry = (struct vgi_entry){.key = handle,
                               .bytes = claim->bytes,
                               .card = (uint32_t)claim->card,
                               .kind = claim->kind,
                               .owner = claim->bytes == 0,
                               .references = 1};
    bool entered = known || vgi_map_put(&handles, &entry);
    pthread_mutex_unlock(&lock);
    if (known)
        vgi_give_back(claim->card, claim->kind, claim->bytes);
    if (!entered)
        vgi_say(VGI_ERROR, "the host has no memory to keep account of an allocation; it is refused");
    return entered;
}

VGI_HOOK CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                              unsigned long long flags) {
    struct vgi_claim claim;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    CUdevice device = prop != NULL ? vgi_device_of_location(&prop->location) : -1;
    if (handle == NULL || bytes == 0 || device < 0)
        return VGI_CUDA(cuMemCreate, handle, bytes, prop, flags); /* no card's memory */
    CUresult result = vgi_claim(device, bytes, &claim);
    if (result != CUDA_SUCCESS)
        return result;
    result = VGI_CUDA(cuMemCreate, handle, bytes, prop, flags);
    if (result == CUDA_SUCCESS && claim.card >= 0 && !vgi_enter_handle(*handle, &claim)) {
        (void)VGI_CUDA(cuMemRelease, *handle);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS)
        vgi_give_back(claim.card, claim.kind, claim.bytes);
    return result;
}

VGI_HOOK CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct vgi_entry known, freed = {.key = 0};
    bool counts = false;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    if (vgi_state() == VGI_ATTACHED) {
        pthread_mutex_lock(&lock);
        counts = vgi_map_find(&handles, handle, &known) && known.references > 0;
        if (counts)
            count(handle, -1, 0, &freed);
        pthread_mutex_unlock(&lock);
    }
    CUresult result = VGI_CUDA(cuMemRelease, handle);
    if (result == CUDA_SUCCESS && freed.key != 0) {
        vgi_give_back((int)freed.card, (enum vgi_kind)freed.kind, freed.bytes);
    } else if (result != CUDA_SUCCESS && counts) {
        pthread_mutex_lock(&lock);
        if (freed.key != 0) {
            freed.references = 1;
            (void)vgi_map_put(&handles, &freed); /* its place in the table was free a moment ago */
        } else {
            count(handle, 1, 0, &freed);
        }
        pthread_mutex_unlock(&lock);
    }
    return result;
}

/* Counts the mapping that is about to be made. An import whose size could not be found out is charged for as much as is
 * mapped of it: `grown` is then what was claimed. Says what the program is told. */
static CUresult begin_mapping(uint64_t handle, uint64_t end, struct vgi_claim *grown) {
    struct vgi_entry entry, freed;
    *grown = (struct vgi_claim){.card = -1};
    pthread_mutex_lock(&lock);
    bool known = vgi_map_find(&handles, handle, &entry);
    if (known)
        count(handle, 0, 1, &freed);
    pthread_mutex_unlock(&lock);
    if (!known || entry.owner == 0 || entry.bytes >= end)
        return CUDA_SUCCESS;
    *grown = (struct vgi_claim){.card = (int)entry.card, .kind = (enum vgi_kind)entry.kind, .bytes = entry.bytes};
    if (!vgi_resize(grown, end)) {
        grown->card = -1;
        count_and_settle(handle, 0, -1);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    grown->bytes = end - entry.bytes;
    return CUDA_SUCCESS;
}

/* Adds what was claimed to the handle's charge, where nobody else has meanwhile. */
static void keep_growth(uint64_t handle, uint64_t end, const struct vgi_claim *grown) {
    struct vgi_entry entry;
    pthread_mutex_lock(&lock);
    bool kept = vgi_map_find(&handles, handle, &entry) && entry.bytes + grown->bytes == end;
    if (kept) {
        entry.bytes = end;
        (void)vgi_map_put(&handles, &entry);
    }
    pthread_mutex_unlock(&lock);
    if (!kept)
        vgi_give_back(grown->card, grown->kind, grown->bytes);
}

VGI_HOOK CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                           unsigned long long flags) {
    struct vgi_claim grown;
    uint64_t end = 0;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    if (vgi_state() != VGI_ATTACHED || __builtin_add_overflow(offset, bytes, &end))
        return VGI_CUDA(cuMemMap, pointer, bytes, offset, handle, flags);
    CUresult result = begin_mapping(handle, end, &grown);
    if (result != CUDA_SUCCESS)
        return result;
    result = VGI_CUDA(cuMemMap, pointer, bytes, offset, handle, flags);
    if (result != CUDA_SUCCESS) {
        count_and_settle(handle, 0, -1);
        vgi_give_back(grown.card, grown.kind, grown.bytes);
        return result;
    }
    if (grown.card >= 0)
        keep_growth(handle, end, &grown);
    /* Of every handle, so that one cuMemUnmap over several is followed. A mapping that cannot be remembered stays
     * counted for good: never too little. */
    struct vgi_entry mapping = {.key = pointer, .bytes = bytes, .owner = handle};
    (void)vgi_map_put(&mappings, &mapping);
    return result;
}

/* Moves the mappings of a range from one table to the other. */
static void move_range(struct vgi_map *from, struct vgi_map *to, CUdeviceptr pointer, size_t bytes) {
    struct vgi_entry mapping;
    for (size_t done = 0; done < bytes && vgi_map_take(from, pointer + done, &mapping) && mapping.bytes != 0;
         done += mapping.bytes)
        (void)vgi_map_put(to, &mapping);
}

/* Whole mappings, one or several in a row: the driver takes nothing else. */
VGI_HOOK CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    struct vgi_entry mapping;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    if (vgi_state() != VGI_ATTACHED)
        return VGI_CUDA(cuMemUnmap, pointer, bytes);
    move_range(&mappings, &unmappings, pointer, bytes);
    CUresult result = VGI_CUDA(cuMemUnmap, pointer, bytes);
    if (result != CUDA_SUCCESS) {
        move_range(&unmappings, &mappings, pointer, bytes);
        return result;
    }
    for (size_t done = 0; done < bytes && vgi_map_take(&unmappings, pointer + done, &mapping); done += mapping.bytes)
        count_and_settle(mapping.owner, 0, -1);
    return result;
}

/* The handle stands for a mapping, so its entry exists: another thread's unmapping cannot end it before this counts,
 * unless the program races with itself. */
VGI_HOOK CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    CUresult result = VGI_CUDA(cuMemRetainAllocationHandle, handle, address);
    if (result == CUDA_SUCCESS && vgi_state() == VGI_ATTACHED)
        count_and_settle(*handle, 1, 0);
    return result;
}
