#include "compute/activity.h"

#include "compute/sampler.h"

#define BLOCKED_POLL_NS 20000000ull

/* A monitor blocks by one write, which it does not repeat: -1 stays, whether the monitor lives or not. So after a
 * minute we take the block away ourselves, and keep waiting. Every monitor of this layout looks each few seconds (5 in
 * HAMi's) and blocks again what is not blocked and should be: then we wait for another minute. Where nobody does so for
 * 15 seconds, nobody is there. */
#define BELIEVE_NS 60000000000ull
#define ANSWER_NS 15000000000ull
#define A_MOMENT_NS 1000000000ull /* several may ask at once: only after it is a block an answer */

static int32_t recent_kernel(void) {
    return atomic_load_explicit(&vgi_region->recent_kernel, memory_order_relaxed);
}

static _Atomic uint64_t *unblock_word(void) {
    return &vg_extension_of(vgi_region)->unblock_at_ns;
}

/* The moment in the region's word, if it can be one of this boot; else 0. */
static uint64_t unblock_at(uint64_t now) {
    uint64_t at = atomic_load_explicit(unblock_word(), memory_order_relaxed);
    return at > now + ANSWER_NS ? 0 : at;
}

static void ask_whether_still_blocked(int32_t blocked, uint64_t now) {
    atomic_store_explicit(unblock_word(), now + ANSWER_NS, memory_order_relaxed);
    if (atomic_compare_exchange_strong(&vgi_region->recent_kernel, &blocked, 0))
        vgi_say(VGI_INFO, "blocked for a minute; asking whether the monitor is still there");
}

static void wait_while_blocked(void) {
    uint64_t now = vgi_now_ns(), believed_since = now;
    while (vgi_core_policy() != VGI_POLICY_DISABLE && vgi_is_limited()) {
        int32_t recent = recent_kernel();
        uint64_t at = unblock_at(now);
        if (recent >= 0 && at <= now)
            return;
        if (recent >= 0)
            believed_since = now;
        else if (at != 0 && at - now < ANSWER_NS - A_MOMENT_NS)
            atomic_store_explicit(unblock_word(), 0, memory_order_relaxed); /* the monitor answered */
        else if (now - believed_since >= BELIEVE_NS)
            ask_whether_still_blocked(recent, now);
        vgi_sleep_ns(BLOCKED_POLL_NS);
        now = vgi_now_ns();
    }
}

/* Only what changes is written: all processes of the container share these words. */
void vgi_become_active(void) {
    wait_while_blocked();
    atomic_store_explicit(&vgi_region->recent_kernel, VGI_ACTIVE, memory_order_relaxed);
    atomic_store_explicit(unblock_word(), 0, memory_order_relaxed);
}

_Atomic uint64_t vgi_noted_second;

/* A last launch in the future was noted before the clock was set back: else no launch would show until it is there
 * again. A second is the other processes' rounding. */
void vgi_note_second(uint64_t now) {
    int64_t interval = vgi_limits.kernel_interval_seconds;
    uint64_t last = atomic_load_explicit(&vgi_region->last_kernel_time, memory_order_relaxed);
    atomic_store_explicit(&vgi_noted_second, now, memory_order_relaxed);
    if (interval >= 0 && (now > last ? now - last >= (uint64_t)interval : last - now > 1))
        atomic_store_explicit(&vgi_region->last_kernel_time, now, memory_order_relaxed);
    vgi_sampler_tick(vgi_now_ns());
}
