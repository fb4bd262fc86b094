/* What the hooks of NVML share: which card of the region a handle is. */
#ifndef VGPU_HOOKS_NVML_SLICE_H
#define VGPU_HOOKS_NVML_SLICE_H

#include "account/account.h"
#include "core/region.h"

/* Index of the device in the region (which may be NULL) and its UUID; -1 where it is no card of the slice. */
static inline int vgi_card_of_nvml(nvmlDevice_t device, struct vg_region *region, char uuid[VG_UUID_BYTES]) {
    unsigned index = 0;
    if (VGI_NVML(nvmlDeviceGetUUID, device, uuid, VG_UUID_BYTES) != NVML_SUCCESS)
        return -1;
    int card = region == NULL ? -1 : vgi_region_find_card(region, uuid);
    if (card < 0 && VGI_NVML(nvmlDeviceGetIndex, device, &index) == NVML_SUCCESS && index < VG_MAX_CARDS)
        card = (int)index; /* no process has used CUDA yet: the table will be in this order */
    return card;
}

#endif
