#include "quota.h"

/* Begins a change of counters unless sums are being added up. Sequentially consistent against vgi_region_recompute:
 * either it sees us busy or we see it recomputing. */
static bool begin(struct vg_region *region, struct vg_slot_owner *owner) {
    atomic_fetch_add(&owner->busy, 1);
    if (atomic_load(&vg_extension_of(region)->recompute) == 0)
        return true;
    atomic_fetch_sub(&owner->busy, 1);
    return false;
}

static void end(struct vg_slot_owner *owner) {
    atomic_fetch_sub_explicit(&owner->busy, 1, memory_order_release);
}

static bool add_to_sum(_Atomic uint64_t *sum, uint64_t bytes, uint64_t limit) {
    uint64_t ceiling = limit == 0 || limit > VG_USED_MAX ? VG_USED_MAX : limit;
    uint64_t used = atomic_load_explicit(sum, memory_order_relaxed);
    do {
        if (bytes > ceiling || used > ceiling - bytes)
            return false;
    } while (
        !atomic_compare_exchange_weak_explicit(sum, &used, used + bytes, memory_order_relaxed, memory_order_relaxed));
    return true;
}

/* Never below zero: tenants can write the file, and a wrapped counter would refuse for ever. */
static void subtract(_Atomic uint64_t *counter, uint64_t bytes) {
    uint64_t value = atomic_load_explicit(counter, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(counter, &value, value > bytes ? value - bytes : 0,
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

static _Atomic uint64_t *word_of(struct vg_usage *usage, enum vgi_kind kind) {
    return kind == VGI_KIND_CONTEXT ? &usage->context : kind == VGI_KIND_MODULE ? &usage->module : &usage->data;
}

enum vgi_charge vgi_quota_charge(struct vg_region *region, unsigned slot, unsigned card, enum vgi_kind kind,
                                 uint64_t bytes, uint64_t limit_bytes) {
    struct vg_extension *extension = vg_extension_of(region);
    struct vg_slot_owner *owner = &extension->owners[slot];
    struct vg_usage *usage = &region->slots[slot].used[card];
    if (!begin(region, owner))
        return VGI_RECOMPUTING;
    bool charged = add_to_sum(&extension->sums[card].word, bytes, limit_bytes);
    if (charged) {
        atomic_fetch_add_explicit(word_of(usage, kind), bytes, memory_order_relaxed);
        atomic_fetch_add_explicit(&usage->total, bytes, memory_order_relaxed);
    }
    end(owner);
    return charged ? VGI_CHARGED : VGI_REFUSED;
}

enum vgi_charge vgi_quota_give_back(struct vg_region *region, unsigned slot, unsigned card, enum vgi_kind kind,
                                    uint64_t bytes) {
    struct vg_extension *extension = vg_extension_of(region);
    struct vg_slot_owner *owner = &extension->owners[slot];
    struct vg_usage *usage = &region->slots[slot].used[card];
    if (!begin(region, owner))
        return VGI_RECOMPUTING;
    subtract(&usage->total, bytes);
    subtract(word_of(usage, kind), bytes);
    subtract(&extension->sums[card].word, bytes);
    end(owner);
    return VGI_CHARGED;
}

uint64_t vgi_quota_used(struct vg_region *region, unsigned card) {
    return vg_card_used(region, card);
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
