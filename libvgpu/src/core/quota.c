#include "quota.h"

#define EPOCH_SHIFT (VG_USED_BITS + 1)
#define EPOCH_MASK (~0ull << EPOCH_SHIFT)

/* Every touch of what processes share. All of it sequentially consistent: who changes a slot and then looks at the
 * word, against who changes the word and then looks at the slots. On x86 it costs the same. */
#ifndef VGI_OWN_ACCESS /* the test of interleavings puts its scheduler here */
static uint64_t load(const _Atomic uint64_t *word) {
    return atomic_load(word);
}

static bool swap(_Atomic uint64_t *word, uint64_t *expected, uint64_t wanted) {
    return atomic_compare_exchange_strong(word, expected, wanted);
}

static void set_bits(_Atomic uint64_t *word, uint64_t bits) {
    atomic_fetch_or(word, bits);
}
#endif

static _Atomic uint64_t *sum_of(struct vg_region *region, unsigned card) {
    return &vg_extension_of(region)->sums[card].word;
}

static bool is_under_way(uint64_t word) {
    return (word & VG_SUM_UNDER_WAY) != 0;
}

static bool same_epoch(uint64_t one, uint64_t other) {
    return ((one ^ other) & EPOCH_MASK) == 0;
}

/* False when that is more than any counter holds: nonsense in the file, or such a request. */
static bool add(_Atomic uint64_t *counter, uint64_t bytes) {
    uint64_t value = load(counter);
    do {
        if (value > VG_USED_MAX || bytes > VG_USED_MAX - value)
            return false;
    } while (!swap(counter, &value, value + bytes));
    return true;
}

/* Never below zero: tenants can write the file, and a wrapped counter would refuse for ever. */
static void subtract(_Atomic uint64_t *counter, uint64_t bytes) {
    uint64_t value = load(counter);
    while (!swap(counter, &value, value > bytes ? value - bytes : 0))
        ;
}

static _Atomic uint64_t *word_of(struct vg_usage *usage, enum vgi_kind kind) {
    return kind == VGI_KIND_CONTEXT ? &usage->context : kind == VGI_KIND_MODULE ? &usage->module : &usage->data;
}

void vgi_quota_mark_inexact(struct vg_region *region, unsigned card) {
    /* Whoever is adding up finds its word changed, and adds up again. */
    set_bits(sum_of(region, card), VG_SUM_INEXACT);
}

/* Where the slots were added up since `word` was read, they may have been seen with bytes that are gone now. */
static void mark_if_late(struct vg_region *region, unsigned card, uint64_t word) {
    if (!same_epoch(load(sum_of(region, card)), word))
        vgi_quota_mark_inexact(region, card);
}

static bool fits(uint64_t word, uint64_t bytes, uint64_t limit) {
    uint64_t ceiling = limit == 0 || limit > VG_USED_MAX ? VG_USED_MAX : limit;
    uint64_t used = word & VG_USED_MAX;
    return bytes <= ceiling && used <= ceiling - bytes;
}

static enum vgi_charge refusal(uint64_t word) {
    return (word & VG_SUM_INEXACT) != 0 ? VGI_UNSURE : VGI_REFUSED;
}

enum vgi_charge vgi_quota_charge(struct vg_region *region, unsigned slot, unsigned card, enum vgi_kind kind,
                                 uint64_t bytes, uint64_t limit_bytes) {
    struct vg_usage *usage = &region->slots[slot].used[card];
    for (;;) {
        uint64_t seen = load(sum_of(region, card)), word = seen;
        if (is_under_way(word))
            return VGI_RECOMPUTING;
        if (!fits(word, bytes, limit_bytes))
            return refusal(word);
        if (!add(&usage->total, bytes))
            return VGI_REFUSED;
        while (same_epoch(word, seen) && fits(word, bytes, limit_bytes)) {
            if (!swap(sum_of(region, card), &word, word + bytes))
                continue;
            (void)add(word_of(usage, kind), bytes);
            return VGI_CHARGED;
        }
        subtract(&usage->total, bytes);
        mark_if_late(region, card, seen);
        if (same_epoch(word, seen))
            return refusal(word);
    }
}

/* False: the slots are being added up, nothing was done. */
static bool take_from_sum(struct vg_region *region, unsigned card, uint64_t bytes, uint64_t *word) {
    *word = load(sum_of(region, card));
    for (;;) {
        if (is_under_way(*word))
            return false;
        uint64_t used = *word & VG_USED_MAX;
        if (swap(sum_of(region, card), word, *word - (used < bytes ? used : bytes)))
            return true;
    }
}

enum vgi_charge vgi_quota_give_back(struct vg_region *region, unsigned slot, unsigned card, enum vgi_kind kind,
                                    uint64_t bytes) {
    struct vg_usage *usage = &region->slots[slot].used[card];
    uint64_t word;
    if (!take_from_sum(region, card, bytes, &word))
        return VGI_RECOMPUTING;
    subtract(word_of(usage, kind), bytes);
    subtract(&usage->total, bytes);
    mark_if_late(region, card, word);
    return VGI_CHARGED;
}

void vgi_quota_make_provisional(struct vg_region *region, unsigned slot, unsigned card) {
    atomic_fetch_add(&region->slots[slot].used[card].provisional_made, 1);
}

void vgi_quota_unmake_provisional(struct vg_region *region, unsigned slot, unsigned card) {
    atomic_fetch_sub(&region->slots[slot].used[card].provisional_made, 1);
}

void vgi_quota_settle_provisional(struct vg_region *region, unsigned slot, unsigned card) {
    atomic_fetch_add(&region->slots[slot].used[card].provisional_settled, 1);
}

/* The settled first: each of them is then among those that were made. */
struct vgi_provisional vgi_quota_provisional(struct vg_region *region, unsigned card) {
    struct vgi_provisional sum = {.made = 0};
    for (unsigned i = 0; i < vg_slot_count(region); i++)
        sum.settled += atomic_load(&region->slots[i].used[card].provisional_settled);
    for (unsigned i = 0; i < vg_slot_count(region); i++)
        sum.made += atomic_load(&region->slots[i].used[card].provisional_made);
    return sum;
}

void vgi_quota_leave(struct vg_region *region, unsigned slot, unsigned card) {
    struct vg_usage *usage = &region->slots[slot].used[card];
    uint64_t total = load(&usage->total);
    if (total != 0 && add(&usage->leaving, total)) {
        subtract(&usage->total, total);
        vgi_quota_mark_inexact(region, card); /* who adds up meanwhile may see it twice, never not at all */
    }
    atomic_store(&usage->context, 0);
    atomic_store(&usage->module, 0);
    atomic_store(&usage->data, 0);
}

/* `leaving` last: what goes from `total` is there by then. */
static uint64_t add_up(const struct vg_region *region, unsigned card) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < vg_slot_count(region); i++) {
        const struct vg_usage *usage = &region->slots[i].used[card];
        sum = vg_saturating_sum(sum, load(&usage->total));
        sum = vg_saturating_sum(sum, load(&usage->leaving));
    }
    return sum;
}

uint64_t vgi_quota_used(struct vg_region *region, unsigned card) {
    uint64_t word = load(sum_of(region, card));
    return is_under_way(word) ? add_up(region, card) : word & VG_USED_MAX;
}

bool vgi_quota_is_inexact(struct vg_region *region, unsigned card) {
    return (load(sum_of(region, card)) & VG_SUM_INEXACT) != 0;
}

uint64_t vgi_quota_word(struct vg_region *region, unsigned card) {
    return load(sum_of(region, card));
}

/* From a word that was read to the sum in the next even epoch. */
static bool recompute_from(struct vg_region *region, unsigned card, uint64_t ticket, uint64_t word) {
    uint64_t step = is_under_way(word) ? 2 * VG_SUM_UNDER_WAY : VG_SUM_UNDER_WAY;
    uint64_t mine = ((word & EPOCH_MASK) + step) | (ticket & VG_USED_MAX);
    uint64_t found = word;
    if (!swap(sum_of(region, card), &found, mine))
        return false;
    for (;;) {
        uint64_t sum = add_up(region, card);
        found = mine;
        if (swap(sum_of(region, card), &found, ((mine & EPOCH_MASK) + VG_SUM_UNDER_WAY) | sum))
            return true;
        /* Marked inexact by one who was late: what it took out may have been seen. Another word: taken over. */
        if (found != (mine | VG_SUM_INEXACT) || !swap(sum_of(region, card), &found, mine))
            return false;
    }
}

bool vgi_quota_recompute(struct vg_region *region, unsigned card, uint64_t ticket) {
    for (;;) {
        uint64_t word = load(sum_of(region, card));
        if (is_under_way(word))
            return false;
        if (recompute_from(region, card, ticket, word))
            return true;
    }
}

bool vgi_quota_take_over(struct vg_region *region, unsigned card, uint64_t ticket, uint64_t from_word) {
    return is_under_way(from_word) && recompute_from(region, card, ticket, from_word);
}

struct vgi_memory_view vgi_quota_view(uint64_t limit, uint64_t used, uint64_t card_total, uint64_t card_free) {
    struct vgi_memory_view view;
    view.total = limit != 0 && limit < card_total ? limit : card_total;
    view.used = used;
    view.free = view.total > used ? view.total - used : 0;
    if (view.free > card_free)
        view.free = card_free;
    return view;
}
