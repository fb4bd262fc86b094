/* Memory mapped into sparse arrays and arrays of deferred mapping: it lives while the array has it, whether or not its
 * handle is released. An array is said to have each memory once, until it is destroyed: what is unmapped before counts
 * on, since an unmapping does not name the memory. */
#include "vmm.h"

static struct vgi_map holds; /* by array and memory: bytes = the memory's handle, owner = the array */
static _Atomic size_t hold_count;

void vgi_forget_array_mappings(void) {
    vgi_map_reset(&holds);
    atomic_store(&hold_count, 0);
}

/* Should two pairs share a key, the later one takes the place, and the earlier counts for good. */
static uint64_t key_of(uint64_t array, uint64_t memory) {
    return (array << 17 | array >> 47) ^ memory;
}

static void hold(uint64_t array, uint64_t memory) {
    struct vgi_entry entry = {.key = key_of(array, memory), .bytes = memory, .owner = array}, known;
    if (array == 0 || memory == 0 || entry.key == 0)
        return;
    if (vgi_map_find(&holds, entry.key, &known) && known.owner == array && known.bytes == memory)
        return;
    vgi_count_mapping(memory, 1); /* what cannot be entered stays counted for good */
    if (vgi_map_put(&holds, &entry))
        atomic_fetch_add(&hold_count, 1);
}

void vgi_array_ended(const void *array) {
    struct vgi_entry taken;
    size_t cursor = 0;
    if (atomic_load_explicit(&hold_count, memory_order_acquire) == 0 || vgi_state() != VGI_ATTACHED)
        return;
    while (vgi_map_take_owned(&holds, (uintptr_t)array, &cursor, &taken)) {
        atomic_fetch_sub(&hold_count, 1);
        vgi_count_mapping(taken.bytes, -1);
    }
}

static CUresult map_array(PFN_cuMemMapArrayAsync_v11010 driver, CUarrayMapInfo *list, unsigned int count,
                          CUstream stream) {
    if (driver == NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    for (unsigned int i = 0; list != NULL && i < count && vgi_state() == VGI_ATTACHED; i++)
        if (list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP)
            hold((uintptr_t)list[i].resource.array, list[i].memHandle.memHandle);
    return driver(list, count, stream);
}

VGI_HOOK CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
    return vgi_bind_cuda() ? map_array(vgi_cuda.cuMemMapArrayAsync, list, count, stream) : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
    return vgi_bind_cuda() ? map_array(vgi_cuda.cuMemMapArrayAsync_ptsz, list, count, stream) : VGI_NO_DRIVER;
}
