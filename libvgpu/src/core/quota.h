/* Charging memory to a slot of the region, exact across processes and free of locks.
 *
 * The slots are the ledger; each card's sum is their cached total. A charge goes through the sum by compare-and-swap,
 * so the limit is never passed, not by one byte and not for a moment. Between the sum and the slot a process is
 * "busy"; whoever adds the slots up anew first stops new charges and waits until no living process is busy. */
#ifndef VGPU_CORE_QUOTA_H
#define VGPU_CORE_QUOTA_H

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/shm_layout.h"

enum vgi_charge { VGI_CHARGED, VGI_REFUSED, VGI_RECOMPUTING };

/* What the memory is for: which of the slot's words shows it. All of it counts. */
enum vgi_kind { VGI_KIND_CONTEXT, VGI_KIND_MODULE, VGI_KIND_DATA };

/* One try. `limit_bytes` 0 = none. VGI_RECOMPUTING: sums are being added up anew, nothing was charged, try again after
 * a while. */
enum vgi_charge vgi_quota_charge(struct vg_region *region, unsigned slot, unsigned card, enum vgi_kind kind,
                                 uint64_t bytes, uint64_t limit_bytes);
enum vgi_charge vgi_quota_give_back(struct vg_region *region, unsigned slot, unsigned card, enum vgi_kind kind,
                                    uint64_t bytes);

uint64_t vgi_quota_used(struct vg_region *region, unsigned card);

/* What a process is shown, from the limit (0 = none), the slice's use, and what the card itself says. */
struct vgi_memory_view {
    uint64_t total, used, free;
};
struct vgi_memory_view vgi_quota_view(uint64_t limit, uint64_t used, uint64_t card_total, uint64_t card_free);

#endif
