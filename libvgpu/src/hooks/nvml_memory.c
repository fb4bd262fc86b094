/* NVML's memory info: the slice, as CUDA shows it. Works in programs that never start CUDA. */
#include "core/quota.h"
#include "nvml_slice.h"

/* Limit and use of the device's slice. False: it has none. */
static bool find_slice(nvmlDevice_t device, uint64_t *limit, uint64_t *used) {
    char uuid[VG_UUID_BYTES];
    struct vg_region *region = vgi_look();
    int card = vgi_card_of_nvml(device, region, uuid);
    if (card < 0)
        return false;
    if (region != NULL && vgi_state() == VGI_ATTACHED)
        vgi_sweep();
    *limit = vgi_shown_limit_of(uuid, (unsigned)card);
    *used = region == NULL ? 0 : vg_card_used(region, (unsigned)card);
    return *limit != 0;
}

VGI_HOOK nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    uint64_t limit = 0, used = 0;
    if (!vgi_bind_nvml())
        return NVML_ERROR_LIBRARY_NOT_FOUND;
    if (!vgi_limits_are_valid())
        return NVML_ERROR_NO_PERMISSION;
    nvmlReturn_t result = VGI_NVML(nvmlDeviceGetMemoryInfo, device, memory);
    if (result != NVML_SUCCESS || memory == NULL || !find_slice(device, &limit, &used))
        return result;
    struct vgi_memory_view view = vgi_quota_view(limit, used, memory->total, memory->free);
    memory->total = view.total;
    memory->used = view.used;
    memory->free = view.free;
    return result;
}

VGI_HOOK nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    uint64_t limit = 0, used = 0;
    if (!vgi_bind_nvml())
        return NVML_ERROR_LIBRARY_NOT_FOUND;
    if (!vgi_limits_are_valid())
        return NVML_ERROR_NO_PERMISSION;
    nvmlReturn_t result = VGI_NVML(nvmlDeviceGetMemoryInfo_v2, device, memory);
    if (result != NVML_SUCCESS || memory == NULL || !find_slice(device, &limit, &used))
        return result;
    struct vgi_memory_view view = vgi_quota_view(limit, used, memory->total, memory->free);
    memory->total = view.total;
    memory->used = view.used;
    memory->free = view.free;
    return result;
}
