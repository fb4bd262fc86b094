/* The region as a value in memory: laying it out, judging a file's, slots and their reclaim. No I/O, no pids asked:
 * whether an owner lives is passed in. */
#ifndef VGPU_CORE_REGION_H
#define VGPU_CORE_REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "limits.h"
#include "vgpu/shm_layout.h"

struct vgi_identity {
    int32_t pid;
    int32_t host_pid; /* 0 = unknown */
    uint64_t start_time;
    uint64_t pid_namespace;
    bool holds_lock; /* of its slot's byte in the file */
};

/* Lays out zeroed memory of VG_FILE_BYTES. The magic comes last. */
void vgi_region_lay_out(struct vg_region *region, const struct vgi_limits *limits, uint64_t now_seconds);

/* Takes limits where the region has none yet (its first process may have been one without). */
void vgi_region_adopt_limits(struct vg_region *region, const struct vgi_limits *limits);

/* What tells a file's layout, read from it before anything is mapped. */
struct vgi_region_heads {
    uint64_t size;
    int32_t magic;
    uint32_t major, minor;
    uint64_t extension_magic, extension_size;
};

/* Why that file cannot be used as our region; NULL when it can. */
const char *vgi_region_fault(const struct vgi_region_heads *heads);

struct vgi_identity vgi_region_owner(struct vg_region *region, unsigned slot);

/* Whether the owner of that slot certainly ended. */
struct vgi_judge {
    void *context;
    bool (*is_gone)(void *context, unsigned slot, const struct vgi_identity *owner);
};

/* Frees `count` slots from `first` on whose owners are gone, and marks the sums that shrink by it inexact; returns
 * those cards, one bit each. The caller holds the region's lock and adds them up afterwards. */
uint32_t vgi_region_reclaim(struct vg_region *region, const struct vgi_judge *judge, unsigned first, unsigned count);

/* Takes a free slot; -1 when none is left. Nobody is asked about but a few (the slots of `self`'s own pid, which are
 * former lives of it, and the next some in turn), unless all seem taken: joining costs the same however many there are.
 * Cards to add up are added to `cards`. The caller holds the region's lock. */
int vgi_region_claim(struct vg_region *region, const struct vgi_identity *self, const struct vgi_judge *judge,
                     uint32_t *cards);

/* For repair, while nobody uses the region: clears every slot that has no living owner but holds or shows something;
 * how many. */
unsigned vgi_region_clear_unowned(struct vg_region *region, const struct vgi_judge *judge, uint32_t *cards);

/* The owner leaves: what it holds is not shown any more by now (vgi_quota_leave). */
void vgi_region_leave(struct vg_region *region, unsigned slot);

/* Index of that UUID in the region's table, or -1. */
int vgi_region_find_card(struct vg_region *region, const char *uuid);

/* Appends a UUID; its index, or -1 when the table is full. The caller holds the region's lock. */
int vgi_region_add_card(struct vg_region *region, const char *uuid);

#endif
