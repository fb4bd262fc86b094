/* Every launch passes here: it is noted, and where compute is limited it is paid for, before the driver is called. */
#ifndef VGPU_COMPUTE_GATE_H
#define VGPU_COMPUTE_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "bind/table.h"
#include "compute/activity.h"
#include "compute/samples.h"

/* What is launched. */
struct vgi_work {
    uintptr_t what; /* the function's or graph's handle: what its duration is known by */
    uint64_t threads;
    CUstream stream;
    bool per_thread; /* a stream of 0 is the thread's own */
};

/* Whether launches on the card are paid for. */
static inline bool vgi_is_throttled(unsigned card) {
    if (__builtin_expect(vgi_cores_limit(card) >= 100, 1))
        return false;
    enum vgi_policy policy = vgi_core_policy();
    return policy == VGI_POLICY_FORCE ||
           (policy == VGI_POLICY_DEFAULT &&
            atomic_load_explicit(&vgi_region->utilisation_switch, memory_order_relaxed) != 0);
}

/* The same for the current context's card, where CUDA shows several. */
int vgi_throttled_of_several(void);

/* The card that launches of the thread are paid for on, or -1. Where there is but one, the driver is not asked. */
static inline int vgi_throttled_card(void) {
    if (__builtin_expect(vgi_card_of_device[1] >= 0, 0))
        return vgi_throttled_of_several();
    int card = vgi_card_of_device[0];
    return card >= 0 && vgi_is_throttled((unsigned)card) ? card : -1;
}

/* Before every launch: it is noted, and waits while the monitor blocks the container. The card that it is to be paid
 * for on, by vgi_pay_for, or -1. */
static inline int vgi_before_launch(void) {
    if (__builtin_expect(!vgi_is_limited(), 0))
        return -1;
    vgi_note_launch();
    return vgi_throttled_card();
}

/* May wait for the container's share. The answer goes to vgi_launched. */
struct vgi_sample *vgi_pay_for(unsigned card, const struct vgi_work *work);

/* After it. */
void vgi_after_launch(struct vgi_sample *sample, CUresult result);

static inline CUresult vgi_launched(struct vgi_sample *sample, CUresult result) {
    if (__builtin_expect(sample != NULL, 0))
        vgi_after_launch(sample, result);
    return result;
}

/* ---- for graphs: what is known of single launches on the current card ---- */

bool vgi_compute_is_limited(void);
uint64_t vgi_known_cost(uintptr_t what, const unsigned grid[3], const unsigned block[3]); /* 0 = not known */
void vgi_suppose_cost(uintptr_t what, uint64_t ns);                                       /* of a handle without size */
void vgi_forget_cost(uintptr_t what);

static inline uint64_t vgi_times(uint64_t a, uint64_t b) {
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* Threads of a launch, never more than fit. */
static inline uint64_t vgi_threads(const unsigned grid[3], const unsigned block[3]) {
    uint64_t blocks = vgi_times((uint64_t)grid[0] * grid[1], grid[2]);
    return vgi_times(blocks, vgi_times((uint64_t)block[0] * block[1], block[2]));
}

#endif
