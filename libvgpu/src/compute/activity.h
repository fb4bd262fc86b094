/* Launches are noted in the region: the monitor sees who is active, and makes those of lower priority wait. */
#ifndef VGPU_COMPUTE_ACTIVITY_H
#define VGPU_COMPUTE_ACTIVITY_H

#include "account/account.h"
#include "vgpu/prim.h"

#define VGI_ACTIVE 2 /* the monitor counts down from here */

/* The container does not count as active: waits as long as the monitor blocks it, and makes it so. */
void vgi_become_active(void);

/* The first launch of this process in a second: time for what need not be done oftener. */
extern _Atomic uint64_t vgi_noted_second;
void vgi_note_second(uint64_t now);

/* Before every launch while attached, and again while one waits. */
static inline void vgi_note_launch(void) {
    if (__builtin_expect(atomic_load_explicit(&vgi_region->recent_kernel, memory_order_relaxed) != VGI_ACTIVE, 0))
        vgi_become_active();
    uint64_t now = vgi_now_seconds();
    if (__builtin_expect(now != atomic_load_explicit(&vgi_noted_second, memory_order_relaxed), 0))
        vgi_note_second(now);
}

#endif
