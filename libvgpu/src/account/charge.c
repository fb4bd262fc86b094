#include "account.h"
#include "account/limit_source.h"
#include "core/quota.h"
#include "core/region.h"
#include "vgpu/prim.h"

struct vgi_map vgi_allocations;

#define SWEEP_LOCK_MS 1000
#define UNSURE_TRIES 1000 /* each is spoilt only by others who add up in that very moment */
#define PAUSE_US 50
#define TAKE_OVER_AFTER 40      /* pauses: adding up takes microseconds */
#define PROVISIONAL_PAUSES 5000 /* half a second: for one whose process is stopped in the middle */
#define PAUSES_TO_SWEEP 500     /* for one whose process is killed there */

void vgi_forget_allocations(void) {
    vgi_map_reset(&vgi_allocations);
}

/* Unique: the slot is this process's, and the counter starts anew only with another program, whose threads are gone. */
static uint64_t next_ticket(void) {
    static _Atomic uint64_t counter;
    uint64_t serial = atomic_fetch_add_explicit(&counter, 1, memory_order_relaxed);
    return (uint64_t)vgi_process->slot << 36 | (serial & 0xfffffffffull);
}

/* While somebody adds a card up. One who stays at it was killed or is stopped: then we do it. */
struct waiting {
    uint64_t word;
    unsigned pauses;
};

static void wait_for_sum(unsigned card, struct waiting *waiting) {
    uint64_t word = vgi_quota_word(vgi_region, card);
    if ((word & VG_SUM_UNDER_WAY) == 0)
        return;
    if (word != waiting->word)
        *waiting = (struct waiting){.word = word};
    if (waiting->pauses++ < TAKE_OVER_AFTER)
        vgi_sleep_microseconds(PAUSE_US);
    else
        (void)vgi_quota_take_over(vgi_region, card, next_ticket(), word);
}

static void add_up(unsigned card) {
    struct waiting waiting = {.pauses = 0};
    while (!vgi_quota_recompute(vgi_region, card, next_ticket()))
        wait_for_sum(card, &waiting);
}

void vgi_add_up(uint32_t cards) {
    for (unsigned card = 0; card < VG_MAX_CARDS; card++)
        if ((cards >> card & 1u) != 0)
            add_up(card);
}

/* Takes out who is gone. */
static void reclaim(unsigned lock_milliseconds) {
    uint64_t own_namespace;
    if (!vgi_region_lock(lock_milliseconds))
        return;
    struct vgi_judge judge = vgi_judge_of_owners(&own_namespace);
    uint32_t cards = vgi_region_reclaim(vgi_region, &judge, 0, VG_MAX_SLOTS);
    vgi_region_unlock();
    vgi_add_up(cards);
}

void vgi_sweep(void) {
    bool others = false;
    (void)vgi_settle_pools(-1);
    for (unsigned card = 0; card < VG_MAX_CARDS; card++) {
        if (vgi_quota_is_inexact(vgi_region, card))
            add_up(card);
        others = others || vgi_quota_used(vgi_region, card) != vgi_region->slots[vgi_process->slot].used[card].total;
    }
    if (others)
        reclaim(0);
}

void vgi_leave(void) {
    unsigned slot = vgi_process->slot;
    for (unsigned card = 0; card < VG_MAX_CARDS; card++)
        vgi_quota_leave(vgi_region, slot, card);
    vgi_region_leave(vgi_region, slot);
}

static enum vgi_charge charge(unsigned card, enum vgi_kind kind, uint64_t bytes, uint64_t limit) {
    enum vgi_charge result;
    struct waiting waiting = {.pauses = 0};
    while ((result = vgi_quota_charge(vgi_region, vgi_process->slot, card, kind, bytes, limit)) == VGI_RECOMPUTING)
        wait_for_sum(card, &waiting);
    return result;
}

/* One that may come back in part is announced before others can meet it. */
static enum vgi_charge charge_claim(unsigned card, const struct vgi_claim *claim) {
    if (claim->provisional)
        vgi_quota_make_provisional(vgi_region, vgi_process->slot, card);
    enum vgi_charge result = charge(card, claim->kind, claim->bytes, vgi_memory_limit(card));
    if (claim->provisional && result != VGI_CHARGED)
        vgi_quota_unmake_provisional(vgi_region, vgi_process->slot, card);
    return result;
}

static void say_once_that_withheld(unsigned card) {
    static int said;
    if (__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED) == 0)
        vgi_say(VGI_WARNING, "the limits page gives nothing on card %u (%.95s): allocations on it are refused", card,
                vgi_region->uuids[card]);
}

/* Against a sum that was made anew. */
static enum vgi_charge charge_surely(unsigned card, const struct vgi_claim *claim) {
    enum vgi_charge result = VGI_UNSURE;
    for (unsigned tries = 0; tries < UNSURE_TRIES && result == VGI_UNSURE; tries++) {
        add_up(card);
        result = charge_claim(card, claim);
    }
    return result;
}

/* Not refused by what other calls are about to give back: of this process or of others. */
static bool charge_when_settled(unsigned card, const struct vgi_claim *claim) {
    for (unsigned pauses = 0;;) {
        struct vgi_provisional before = vgi_quota_provisional(vgi_region, card);
        enum vgi_charge result = charge_claim(card, claim);
        if (result == VGI_UNSURE)
            result = charge_surely(card, claim);
        if (result == VGI_CHARGED)
            return true;
        struct vgi_provisional after = vgi_quota_provisional(vgi_region, card);
        bool none_under_way = before.made == before.settled && after.made == before.made;
        if (none_under_way || pauses++ == PROVISIONAL_PAUSES)
            return false;
        if (pauses % PAUSES_TO_SWEEP == 0)
            reclaim(SWEEP_LOCK_MS);
        if (after.made != after.settled)
            vgi_sleep_microseconds(PAUSE_US);
    }
}

/* Refuses only after those who ended without saying so were taken out, and the sum was made anew. */
static bool charge_or_reclaim(unsigned card, const struct vgi_claim *claim) {
    if (__builtin_expect(vgi_is_withheld(card), 0)) {
        say_once_that_withheld(card);
        return false;
    }
    if (__builtin_expect(charge_claim(card, claim) == VGI_CHARGED, 1))
        return true;
    reclaim(SWEEP_LOCK_MS);
    if (charge_surely(card, claim) == VGI_CHARGED)
        return true;
    /* Pools of this process may have shrunk, or can. */
    if (vgi_settle_pools((int)card) && charge_surely(card, claim) == VGI_CHARGED)
        return true;
    if (vgi_trim_pools((int)card) && charge_surely(card, claim) == VGI_CHARGED)
        return true;
    if (charge_when_settled(card, claim))
        return true;
    vgi_say(VGI_INFO, "refused %llu bytes on card %u: %llu of %llu are used", (unsigned long long)claim->bytes, card,
            (unsigned long long)vgi_quota_used(vgi_region, card), (unsigned long long)vgi_memory_limit(card));
    return false;
}

static CUresult claim_of_device(CUdevice device, struct vgi_claim *claim) {
    if (__builtin_expect(vgi_state() != VGI_ATTACHED, 0)) {
        CUresult result = vgi_attach();
        if (result != CUDA_SUCCESS || vgi_state() == VGI_UNLIMITED)
            return result;
    }
    int card = device >= 0 && device < VGI_MAX_DEVICES ? vgi_card_of_device[device] : -1;
    if (card < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!charge_or_reclaim((unsigned)card, claim))
        return CUDA_ERROR_OUT_OF_MEMORY;
    claim->card = card;
    return CUDA_SUCCESS;
}

CUresult vgi_claim(CUdevice device, uint64_t bytes, struct vgi_claim *claim) {
    *claim = (struct vgi_claim){.card = -1, .kind = VGI_KIND_DATA, .bytes = bytes};
    return claim_of_device(device, claim);
}

CUresult vgi_claim_provisionally(CUdevice device, uint64_t bytes, struct vgi_claim *claim) {
    *claim = (struct vgi_claim){.card = -1, .kind = VGI_KIND_DATA, .bytes = bytes, .provisional = true};
    return claim_of_device(device, claim);
}

static bool may_claim(CUdevice device, uint64_t bytes, struct vgi_claim *claim) {
    int card = device >= 0 && device < VGI_MAX_DEVICES ? vgi_card_of_device[device] : -1;
    *claim = (struct vgi_claim){.card = card, .kind = VGI_KIND_DATA, .bytes = bytes, .provisional = true};
    return card >= 0 && !vgi_is_withheld((unsigned)card);
}

bool vgi_claim_at_once(CUdevice device, uint64_t bytes, struct vgi_claim *claim) {
    return may_claim(device, bytes, claim) && charge_claim((unsigned)claim->card, claim) == VGI_CHARGED;
}

bool vgi_claim_when_settled(CUdevice device, uint64_t bytes, struct vgi_claim *claim) {
    return may_claim(device, bytes, claim) && charge_when_settled((unsigned)claim->card, claim);
}

void vgi_begin_shrinking(int card) {
    if (card >= 0 && vgi_state() == VGI_ATTACHED)
        vgi_quota_make_provisional(vgi_region, vgi_process->slot, (unsigned)card);
}

void vgi_end_shrinking(int card) {
    if (card >= 0 && vgi_state() == VGI_ATTACHED)
        vgi_quota_settle_provisional(vgi_region, vgi_process->slot, (unsigned)card);
}

void vgi_claim_settled(struct vgi_claim *claim) {
    if (claim->provisional)
        vgi_end_shrinking(claim->card);
    claim->provisional = false;
}

void vgi_give_back(int card, enum vgi_kind kind, uint64_t bytes) {
    struct waiting waiting = {.pauses = 0};
    if (card < 0 || bytes == 0 || vgi_state() != VGI_ATTACHED)
        return;
    while (vgi_quota_give_back(vgi_region, vgi_process->slot, (unsigned)card, kind, bytes) == VGI_RECOMPUTING)
        wait_for_sum((unsigned)card, &waiting);
}

void vgi_charge_overhead(int card, enum vgi_kind kind, uint64_t bytes) {
    if (card >= 0 && bytes != 0 && vgi_state() == VGI_ATTACHED)
        (void)charge((unsigned)card, kind, bytes, 0);
}

bool vgi_resize(struct vgi_claim *claim, uint64_t bytes) {
    struct vgi_claim more = {.card = claim->card, .kind = claim->kind, .bytes = bytes - claim->bytes};
    if (claim->card >= 0 && bytes < claim->bytes)
        vgi_give_back(claim->card, claim->kind, claim->bytes - bytes);
    vgi_claim_settled(claim);
    if (claim->card >= 0 && bytes > claim->bytes && !charge_or_reclaim((unsigned)claim->card, &more))
        return false;
    claim->bytes = bytes;
    return true;
}
