#include "region.h"

#include <string.h>
#include <strings.h>

#include "quota.h"

void vgi_region_lay_out(struct vg_region *region, const struct vgi_limits *limits, uint64_t now_seconds) {
    struct vg_extension *extension = vg_extension_of(region);
    region->major = VG_REGION_MAJOR;
    region->minor = VG_REGION_MINOR;
    for (int card = 0; card < VG_MAX_CARDS; card++) {
        region->limit[card] = limits->memory_bytes[card];
        region->sm_limit[card] = limits->cores_percent[card];
    }
    region->utilisation_switch = 1;
    region->recent_kernel = 2;
    region->priority = limits->priority;
    region->last_kernel_time = now_seconds;
    extension->size = sizeof *extension;
    extension->magic = VG_EXTENSION_MAGIC;
    atomic_store_explicit(&region->magic, VG_REGION_MAGIC, memory_order_release);
}

void vgi_region_adopt_limits(struct vg_region *region, const struct vgi_limits *limits) {
    for (int card = 0; card < VG_MAX_CARDS; card++) {
        uint64_t none = 0, all = 100;
        if (limits->memory_bytes[card] != 0)
            atomic_compare_exchange_strong(&region->limit[card], &none, limits->memory_bytes[card]);
        if (limits->cores_percent[card] != 100)
            atomic_compare_exchange_strong(&region->sm_limit[card], &all, limits->cores_percent[card]);
    }
}

const char *vgi_region_fault(const struct vgi_region_heads *heads) {
    if (heads->size < sizeof(struct vg_region))
        return "it is shorter than any region";
    if (heads->magic != VG_REGION_MAGIC)
        return "it is no region file";
    if (heads->major != VG_REGION_MAJOR || heads->minor != VG_REGION_MINOR)
        return "it has another layout version";
    if (heads->size < VG_FILE_BYTES)
        return "it has no extension: another implementation made it";
    if (heads->extension_magic != VG_EXTENSION_MAGIC || heads->extension_size != sizeof(struct vg_extension))
        return "its extension has another layout";
    return NULL;
}

struct vgi_identity vgi_region_owner(struct vg_region *region, unsigned slot) {
    const struct vg_slot_owner *owner = &vg_extension_of(region)->owners[slot];
    return (struct vgi_identity){.pid = atomic_load(&owner->pid),
                                 .host_pid = atomic_load(&region->slots[slot].host_pid),
                                 .start_time = atomic_load(&owner->start_time),
                                 .pid_namespace = atomic_load(&owner->pid_namespace),
                                 .holds_lock = atomic_load(&owner->holds_lock) == 1};
}

/* What others see of the slot. Status first: monitors skip it from here on. */
static void clear_view(struct vg_slot *slot) {
    atomic_store(&slot->status, VG_SLOT_FREE);
    atomic_store(&slot->host_pid, 0);
    for (int card = 0; card < VG_MAX_CARDS; card++) {
        struct vg_utilisation *utilisation = &slot->utilisation[card];
        utilisation->decoder = utilisation->encoder = utilisation->sm = 0;
        slot->monitor_used[card] = 0;
    }
    atomic_store(&slot->pid, 0);
}

/* The owner's pid goes last: killed before, the next one finds the same owner gone and does it again. Sums are marked
 * before what they count goes, and stay so until somebody has added up without it. */
static void clear_slot(struct vg_region *region, unsigned index, uint32_t *cards) {
    struct vg_slot *slot = &region->slots[index];
    struct vg_slot_owner *owner = &vg_extension_of(region)->owners[index];
    clear_view(slot);
    for (unsigned card = 0; card < VG_MAX_CARDS; card++) {
        struct vg_usage *used = &slot->used[card];
        if (atomic_load(&used->total) != 0 || atomic_load(&used->leaving) != 0) {
            vgi_quota_mark_inexact(region, card);
            *cards |= 1u << card;
        }
        used->context = used->module = used->data = used->offset = used->total = used->leaving = 0;
        used->provisional_made = used->provisional_settled = 0;
    }
    atomic_store(&owner->holds_lock, 0);
    atomic_store(&owner->start_time, 0);
    atomic_store(&owner->pid_namespace, 0);
    atomic_store(&owner->pid, 0);
}

void vgi_region_leave(struct vg_region *region, unsigned slot) {
    clear_view(&region->slots[slot]);
}

uint32_t vgi_region_reclaim(struct vg_region *region, const struct vgi_judge *judge, unsigned first, unsigned count) {
    uint32_t cards = 0;
    unsigned end = vg_slot_count(region);
    if (first < end && count < end - first)
        end = first + count;
    for (unsigned i = first; i < end; i++) {
        struct vgi_identity owner = vgi_region_owner(region, i);
        if (owner.pid != 0 && judge->is_gone(judge->context, i, &owner))
            clear_slot(region, i, &cards);
    }
    return cards;
}

static bool shows_something(const struct vg_slot *slot) {
    bool any = atomic_load(&slot->pid) != 0 || atomic_load(&slot->status) != VG_SLOT_FREE;
    for (unsigned card = 0; card < VG_MAX_CARDS; card++)
        any = any || atomic_load(&slot->used[card].total) != 0 || atomic_load(&slot->used[card].leaving) != 0;
    return any;
}

unsigned vgi_region_clear_unowned(struct vg_region *region, const struct vgi_judge *judge, uint32_t *cards) {
    unsigned cleared = 0;
    for (unsigned i = 0; i < VG_MAX_SLOTS; i++) {
        struct vgi_identity owner = vgi_region_owner(region, i);
        bool unowned = owner.pid == 0 ? shows_something(&region->slots[i])
                                      : i >= vg_slot_count(region) || judge->is_gone(judge->context, i, &owner);
        if (unowned) {
            clear_slot(region, i, cards);
            cleared++;
        }
    }
    return cleared;
}

/* A pid is one process's: whoever had ours is gone, or is the program that exec'ed us, and its memory went with it. */
static bool had_our_pid(void *context, unsigned slot, const struct vgi_identity *owner) {
    const struct vgi_identity *self = context;
    (void)slot;
    return owner->pid == self->pid && owner->pid_namespace == self->pid_namespace;
}

static int first_free(struct vg_region *region) {
    for (unsigned i = 0; i < VG_MAX_SLOTS; i++)
        if (atomic_load(&vg_extension_of(region)->owners[i].pid) == 0)
            return (int)i;
    return -1;
}

#define SWEPT_AT_JOIN 4u

int vgi_region_claim(struct vg_region *region, const struct vgi_identity *self, const struct vgi_judge *judge,
                     uint32_t *cards) {
    struct vgi_identity own = *self;
    struct vgi_judge of_own_pid = {&own, had_our_pid};
    unsigned count = vg_slot_count(region);
    *cards |= vgi_region_reclaim(region, &of_own_pid, 0, VG_MAX_SLOTS);
    unsigned cursor = atomic_fetch_add(&vg_extension_of(region)->sweep_cursor, SWEPT_AT_JOIN);
    if (count > 0)
        *cards |= vgi_region_reclaim(region, judge, cursor % count, SWEPT_AT_JOIN);
    int found = first_free(region);
    if (found < 0) {
        *cards |= vgi_region_reclaim(region, judge, 0, VG_MAX_SLOTS);
        found = first_free(region);
    }
    if (found < 0)
        return -1;
    struct vg_slot *slot = &region->slots[found];
    struct vg_slot_owner *owner = &vg_extension_of(region)->owners[found];
    clear_slot(region, (unsigned)found, cards);
    if ((unsigned)found >= count) /* before it has an owner: who is killed in here is found */
        atomic_store(&region->slot_count, found + 1);
    atomic_store(&owner->start_time, self->start_time);
    atomic_store(&owner->pid_namespace, self->pid_namespace);
    atomic_store(&owner->pid, self->pid);
    atomic_store(&slot->host_pid, self->host_pid);
    atomic_store(&slot->pid, self->pid);
    atomic_store(&slot->status, VG_SLOT_RUNNING);
    return found;
}

int vgi_region_find_card(struct vg_region *region, const char *uuid) {
    for (int i = 0; i < VG_MAX_CARDS; i++)
        if (region->uuids[i][0] != '\0' && strncasecmp(region->uuids[i], uuid, VG_UUID_BYTES - 1) == 0)
            return i;
    return -1;
}

int vgi_region_add_card(struct vg_region *region, const char *uuid) {
    for (int i = 0; i < VG_MAX_CARDS; i++) {
        if (region->uuids[i][0] != '\0')
            continue;
        size_t length = strnlen(uuid, VG_UUID_BYTES - 1);
        memcpy(region->uuids[i], uuid, length);
        if ((uint64_t)i >= atomic_load(&region->device_count))
            atomic_store(&region->device_count, (uint64_t)i + 1);
        return i;
    }
    return -1;
}
