#include "account.h"
#include "account/limit_source.h"
#include "core/quota.h"
#include "core/region.h"
#include "vgpu/prim.h"

struct vgi_map vgi_allocations;

#define SWEEP_LOCK_MS 1000
#define QUIET_WAITS 200 /* of a millisecond: how long a stopped process may hold up a reclaim */

void vgi_forget_allocations(void) {
    vgi_map_reset(&vgi_allocations);
}

struct patience {
    unsigned waits_left;
    int32_t leaving_pid; /* counts as gone: ourselves, at the end */
};

static bool is_gone(void *context, const struct vgi_identity *owner) {
    const struct patience *patience = context;
    return owner->pid == patience->leaving_pid || vgi_is_gone(owner);
}

static bool wait_a_little(void *context) {
    struct patience *patience = context;
    vgi_sleep_microseconds(1000);
    return patience->waits_left-- > 0;
}

static bool reclaim(bool force, int32_t leaving_pid, unsigned lock_milliseconds) {
    struct patience patience = {.waits_left = QUIET_WAITS, .leaving_pid = leaving_pid};
    struct vgi_judge judge = {&patience, is_gone, wait_a_little};
    if (!vgi_region_lock(lock_milliseconds))
        return false;
    bool done = vgi_region_reclaim(vgi_region, &judge, force);
    vgi_region_unlock();
    return done;
}

void vgi_sweep(void) {
    (void)reclaim(false, 0, 0);
}

void vgi_leave(void) {
    const struct vg_slot_owner *self = &vg_extension_of(vgi_region)->owners[vgi_process->slot];
    /* Other threads may be between two counters; no new ones begin. */
    for (unsigned waits = 0; atomic_load(&self->busy) != 0 && waits < QUIET_WAITS; waits++)
        vgi_sleep_microseconds(1000);
    /* Where this fails the next one who looks finds our pid gone. */
    (void)reclaim(true, vgi_own_pid(), SWEEP_LOCK_MS);
}

/* Someone adds the sums up. If it was killed at it, the lock is free and we finish the work. */
static void wait_for_sums(unsigned *waits) {
    vgi_sleep_microseconds(50);
    if (++*waits % 100 == 0)
        (void)reclaim(false, 0, 0);
}

static enum vgi_charge charge(unsigned card, enum vgi_kind kind, uint64_t bytes, uint64_t limit) {
    enum vgi_charge result;
    unsigned waits = 0;
    while ((result = vgi_quota_charge(vgi_region, vgi_process->slot, card, kind, bytes, limit)) == VGI_RECOMPUTING)
        wait_for_sums(&waits);
    return result;
}

static void say_once_that_withheld(unsigned card) {
    static int said;
    if (__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED) == 0)
        vgi_say(VGI_WARNING, "the limits page gives nothing on card %u (%.95s): allocations on it are refused", card,
                vgi_region->uuids[card]);
}

/* Refuses only after those who ended without saying so were taken out. */
static bool charge_or_reclaim(unsigned card, enum vgi_kind kind, uint64_t bytes) {
    if (__builtin_expect(vgi_is_withheld(card), 0)) {
        say_once_that_withheld(card);
        return false;
    }
    if (charge(card, kind, bytes, vgi_memory_limit(card)) == VGI_CHARGED)
        return true;
    if (reclaim(false, 0, SWEEP_LOCK_MS) && charge(card, kind, bytes, vgi_memory_limit(card)) == VGI_CHARGED)
        return true;
    vgi_say(VGI_INFO, "refused %llu bytes on card %u: %llu of %llu are used", (unsigned long long)bytes, card,
            (unsigned long long)vgi_quota_used(vgi_region, card), (unsigned long long)vgi_memory_limit(card));
    return false;
}

CUresult vgi_claim(CUdevice device, uint64_t bytes, struct vgi_claim *claim) {
    *claim = (struct vgi_claim){.card = -1, .kind = VGI_KIND_DATA, .bytes = bytes};
    if (__builtin_expect(vgi_state() != VGI_ATTACHED, 0)) {
        CUresult result = vgi_attach();
        if (result != CUDA_SUCCESS || vgi_state() == VGI_UNLIMITED)
            return result;
    }
    int card = device >= 0 && device < VGI_MAX_DEVICES ? vgi_card_of_device[device] : -1;
    if (card < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!charge_or_reclaim((unsigned)card, claim->kind, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    claim->card = card;
    return CUDA_SUCCESS;
}

void vgi_give_back(int card, enum vgi_kind kind, uint64_t bytes) {
    unsigned waits = 0;
    if (card < 0 || bytes == 0 || vgi_state() != VGI_ATTACHED)
        return;
    while (vgi_quota_give_back(vgi_region, vgi_process->slot, (unsigned)card, kind, bytes) == VGI_RECOMPUTING)
        wait_for_sums(&waits);
}

void vgi_charge_overhead(int card, enum vgi_kind kind, uint64_t bytes) {
    if (card >= 0 && bytes != 0 && vgi_state() == VGI_ATTACHED)
        (void)charge((unsigned)card, kind, bytes, 0);
}

bool vgi_resize(struct vgi_claim *claim, uint64_t bytes) {
    if (claim->card >= 0 && bytes > claim->bytes &&
        !charge_or_reclaim((unsigned)claim->card, claim->kind, bytes - claim->bytes))
        return false;
    if (claim->card >= 0 && bytes < claim->bytes)
        vgi_give_back(claim->card, claim->kind, claim->bytes - bytes);
    claim->bytes = bytes;
    return true;
}
