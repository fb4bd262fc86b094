/* Handles of virtual memory management and what is charged for them. */
#ifndef VGPU_HOOKS_VMM_H
#define VGPU_HOOKS_VMM_H

#include "allocation.h"

/* The device whose memory a location names, or -1: the host's, or none. */
CUdevice vgi_device_of_location(const CUmemLocation *location);

/* Enters a new handle with what was claimed for it. A handle that is known gets one reference more and no second
 * charge. False when the host has no memory to keep account. */
bool vgi_enter_handle(CUmemGenericAllocationHandle handle, const struct vgi_claim *claim);

/* Counts one mapping more or less of a handle, if it is known. */
void vgi_count_mapping(CUmemGenericAllocationHandle handle, int change);

/* What was mapped into an array is let go with it (hooks/vmm_array.c). */
void vgi_array_ended(const void *array);
void vgi_forget_array_mappings(void);

#endif
