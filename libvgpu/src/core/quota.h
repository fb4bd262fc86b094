/* Charging memory to a slot of the region: exact across processes, without locks, and safe to kill at any instruction.
 *
 * The slots' totals are the ledger, the card's word their cached sum, through which every charge goes by
 * compare-and-swap: the limit is never passed, not by one byte and not for a moment. The order of steps makes a kill or
 * a stop at any of them count too much, never too little:
 *   charge     slot first, then the word, in the epoch that was read before; refused or late: out of the slot again
 *   give back  word first (in any epoch: the slot still says it), then the slot
 * Whoever adds the slots up anew raises the epoch to odd, which no charge passes, sums, and stores the sum in the next
 * even epoch. It waits for nobody: who had a charge pending finds the epoch changed, takes it out of the slot and tries
 * again; who was giving back finds it changed afterwards. Both mark the word inexact, since the sum may have seen their
 * bytes; a refusal by a marked word does not count. A process that stays stopped or was killed there has too much
 * counted until it goes on or is reclaimed. One who was killed or stopped while adding up is taken over: the word names
 * who is at it (a ticket, never used twice), so that a late result finds another word than its own. Before a refusal
 * the sum is always made anew. */
#ifndef VGPU_CORE_QUOTA_H
#define VGPU_CORE_QUOTA_H

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/shm_layout.h"

enum vgi_charge {
    VGI_CHARGED,
    VGI_REFUSED,
    VGI_UNSURE,     /* refused by a sum that may be too high: add up, try again */
    VGI_RECOMPUTING /* the slots are being added up, nothing was done: wait and try again, take over if it lasts */
};

/* What the memory is for: which of the slot's words shows it. All of it counts. */
enum vgi_kind { VGI_KIND_CONTEXT, VGI_KIND_MODULE, VGI_KIND_DATA };

/* One try. `limit_bytes` 0 = none. */
enum vgi_charge vgi_quota_charge(struct vg_region *region, unsigned slot, unsigned card, enum vgi_kind kind,
                                 uint64_t bytes, uint64_t limit_bytes);
/* VGI_CHARGED or VGI_RECOMPUTING. */
enum vgi_charge vgi_quota_give_back(struct vg_region *region, unsigned slot, unsigned card, enum vgi_kind kind,
                                    uint64_t bytes);

/* Charges of calls that may keep less than they claimed, and every shrinking of what was charged: made before the
 * charge (or before others can see that it will shrink), settled once what was too much is given back. One that was
 * refused is unmade. A refusal is the last word only if none was under way. */
void vgi_quota_make_provisional(struct vg_region *region, unsigned slot, unsigned card);
void vgi_quota_unmake_provisional(struct vg_region *region, unsigned slot, unsigned card);
void vgi_quota_settle_provisional(struct vg_region *region, unsigned slot, unsigned card);

struct vgi_provisional {
    uint64_t made, settled; /* by all slots */
};
struct vgi_provisional vgi_quota_provisional(struct vg_region *region, unsigned card);

/* For the slot's owner in exit(): shows nothing of what it holds on the card any more. That stays charged until the
 * process is gone: destructors and threads may keep it from ending for as long as they like. */
void vgi_quota_leave(struct vg_region *region, unsigned slot, unsigned card);

/* What counts against the limit; where it is inexact, also of processes that are gone. */
uint64_t vgi_quota_used(struct vg_region *region, unsigned card);

/* The sum may be too high: before slots are cleared without giving back. */
void vgi_quota_mark_inexact(struct vg_region *region, unsigned card);
bool vgi_quota_is_inexact(struct vg_region *region, unsigned card);

/* Adds the slots up anew. `ticket`: 48 bits that no other process and no other time uses. False: another is at it. */
bool vgi_quota_recompute(struct vg_region *region, unsigned card, uint64_t ticket);

/* The card's word, to see whether the same one is still at it; and doing its work instead. False: it moved on. */
uint64_t vgi_quota_word(struct vg_region *region, unsigned card);
bool vgi_quota_take_over(struct vg_region *region, unsigned card, uint64_t ticket, uint64_t from_word);

/* What a process is shown, from the limit (0 = none), the slice's use, and what the card itself says. */
struct vgi_memory_view {
    uint64_t total, used, free;
};
struct vgi_memory_view vgi_quota_view(uint64_t limit, uint64_t used, uint64_t card_total, uint64_t card_free);

#endif
