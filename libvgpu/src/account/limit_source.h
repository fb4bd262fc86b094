/* What the slice may have, as the hooks ask: two loads, no system call; a change is seen at the next call.
 *
 * Where a limits page lies beside the library, it alone says what holds. Else the environment does, and the region, in
 * which a monitor may change the limits. */
#ifndef VGPU_LIMIT_SOURCE_H
#define VGPU_LIMIT_SOURCE_H

#include <stdatomic.h>
#include <stdint.h>

#include "core/limits.h"
#include "core/limits_page.h"
#include "vgpu/shm_layout.h"

/* The words that hold the limits now in force, by the card's index in the region. Never NULL: before anything is known
 * they are words that limit nothing. */
struct vgi_limit_words {
    _Atomic(const _Atomic uint64_t *) memory_bytes[VG_MAX_CARDS];
    _Atomic(const _Atomic uint64_t *) cores_percent[VG_MAX_CARDS];
    _Atomic(const _Atomic uint64_t *) context_bytes[VG_MAX_CARDS];
    _Atomic(const _Atomic uint64_t *) flags[VG_MAX_CARDS];
    _Atomic(const _Atomic uint32_t *) policy;
    _Atomic(const _Atomic int32_t *) priority;
};
extern struct vgi_limit_words vgi_limit_words;

#define VGI_WORD(field) atomic_load_explicit(&vgi_limit_words.field, memory_order_relaxed)
#define VGI_VALUE(field) atomic_load_explicit(VGI_WORD(field), memory_order_relaxed)

/* Bytes; 0 = no limit. */
static inline uint64_t vgi_memory_limit(unsigned card) {
    return VGI_VALUE(memory_bytes[card]);
}

/* Nothing is given on this card: the page says so, or does not name it. */
static inline bool vgi_is_withheld(unsigned card) {
    return (VGI_VALUE(flags[card]) & VG_LIMITS_CARD_WITHHELD) != 0;
}

/* The limit as programs see it: the least there is where nothing is given, since 0 means no limit. */
static inline uint64_t vgi_shown_limit(unsigned card) {
    return vgi_is_withheld(card) ? 1 : vgi_memory_limit(card);
}

/* Percent of the card's compute, 1 to 100; 100 = no limit. */
static inline unsigned vgi_cores_limit(unsigned card) {
    uint64_t percent = VGI_VALUE(cores_percent[card]);
    return percent == 0 || percent > 100 ? 100 : (unsigned)percent;
}

/* What a context costs on the card, where the page tells; 0 = not known. */
static inline uint64_t vgi_context_bytes(unsigned card) {
    return VGI_VALUE(context_bytes[card]);
}

static inline enum vgi_policy vgi_core_policy(void) {
    return (enum vgi_policy)VGI_VALUE(policy);
}

/* 0 is the most urgent. */
static inline int vgi_priority(void) {
    return VGI_VALUE(priority);
}

#undef VGI_VALUE
#undef VGI_WORD

/* ---- for attaching ---- */

struct vgi_found_limits {
    const struct vg_limits_page *page; /* NULL = there is none */
    bool disabled;                     /* the pod's specification keeps the library out, and may */
    struct vgi_limits limits;          /* of the environment; with a page, only what the page does not say */
};

/* False: they cannot be understood, `reason` says why, and CUDA must not start. */
bool vgi_find_limits(struct vgi_found_limits *found, char *reason, size_t reason_size);

const char *vgi_region_path(const struct vgi_found_limits *found);

/* From now on memory and compute limits are the region's words (where there is one), the rest is the environment's. */
void vgi_limits_follow_region(struct vg_region *region, const struct vgi_limits *environment);

/* From now on all limits are the page's words. `uuids` by index in the region; what the page does not name is
 * withheld. The region is told, for those who show it. */
void vgi_limits_follow_page(const struct vg_limits_page *page, const char *const uuids[VG_MAX_CARDS],
                            struct vg_region *region);

/* The shown limit of a card by UUID: it may have no place in the region yet, `index` is then where it will be. */
uint64_t vgi_shown_limit_of(const char *uuid, unsigned index);

#endif
