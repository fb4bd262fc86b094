/* What the slice may have, as the hooks ask: a load or two, no system call; a change is seen at the next call. */
#ifndef VGPU_LIMIT_SOURCE_H
#define VGPU_LIMIT_SOURCE_H

#include <stdatomic.h>
#include <stdint.h>

#include "core/limits.h"
#include "vgpu/shm_layout.h"

/* The words that hold the limits now in force, by the card's index in the region. Never NULL: before anything is known
 * they are words that limit nothing. */
struct vgi_limit_words {
    _Atomic(const _Atomic uint64_t *) memory_bytes[VG_MAX_CARDS];
    _Atomic(const _Atomic uint64_t *) cores_percent[VG_MAX_CARDS];
    _Atomic(const _Atomic uint32_t *) policy;
    _Atomic(const _Atomic uint32_t *) priority;
};
extern struct vgi_limit_words vgi_limit_words;

#define VGI_WORD(field) atomic_load_explicit(&vgi_limit_words.field, memory_order_relaxed)
#define VGI_VALUE(field) atomic_load_explicit(VGI_WORD(field), memory_order_relaxed)

/* Bytes; 0 = no limit. */
static inline uint64_t vgi_memory_limit(unsigned card) {
    return VGI_VALUE(memory_bytes[card]);
}

/* Percent of the card's compute, 1 to 100; 100 = no limit. */
static inline unsigned vgi_cores_limit(unsigned card) {
    uint64_t percent = VGI_VALUE(cores_percent[card]);
    return percent == 0 || percent > 100 ? 100 : (unsigned)percent;
}

static inline enum vgi_policy vgi_core_policy(void) {
    return (enum vgi_policy)VGI_VALUE(policy);
}

/* 0 is the most urgent. */
static inline int vgi_priority(void) {
    return (int)VGI_VALUE(priority);
}

#undef VGI_VALUE
#undef VGI_WORD

/* From now on memory and compute limits are the region's words, the rest is the environment's. */
void vgi_limits_follow_region(struct vg_region *region, const struct vgi_limits *environment);

#endif
