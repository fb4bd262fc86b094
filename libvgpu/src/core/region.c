#include "region.h"

#include <string.h>
#include <strings.h>

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

unsigned vgi_region_slot_count(const struct vg_region *region) {
    int32_t count = atomic_load_explicit(&region->slot_count, memory_order_acquire);
    return count < 0 ? 0 : count > VG_MAX_SLOTS ? VG_MAX_SLOTS : (unsigned)count;
}

struct vgi_identity vgi_region_owner(struct vg_region *region, unsigned slot) {
    const struct vg_slot_owner *owner = &vg_extension_of(region)->owners[slot];
    return (struct vgi_identity){.pid = atomic_load(&region->slots[slot].pid),
                                 .host_pid = atomic_load(&region->slots[slot].host_pid),
                                 .start_time = atomic_load(&owner->start_time),
                                 .pid_namespace = atomic_load(&owner->pid_namespace)};
}

static void clear_slot(struct vg_region *region, unsigned index) {
    struct vg_slot *slot = &region->slots[index];
    struct vg_slot_owner *owner = &vg_extension_of(region)->owners[index];
    atomic_store(&slot->status, VG_SLOT_FREE); /* first: monitors skip it from here on */
    atomic_store(&slot->host_pid, 0);
    for (int card = 0; card < VG_MAX_CARDS; card++) {
        struct vg_usage *used = &slot->used[card];
        struct vg_utilisation *utilisation = &slot->utilisation[card];
        used->context = used->module = used->data = used->offset = used->total = 0;
        utilisation->decoder = utilisation->encoder = utilisation->sm = 0;
        slot->monitor_used[card] = 0;
    }
    atomic_store(&owner->start_time, 0);
    atomic_store(&owner->pid_namespace, 0);
    atomic_store(&owner->busy, 0);
    atomic_store(&slot->pid, 0);
}

int vgi_region_claim(struct vg_region *region, const struct vgi_identity *self) {
    unsigned count = vgi_region_slot_count(region);
    unsigned index = 0;
    while (index < count && atomic_load(&region->slots[index].pid) != 0)
        index++;
    if (index == VG_MAX_SLOTS)
        return -1;
    struct vg_slot *slot = &region->slots[index];
    struct vg_slot_owner *owner = &vg_extension_of(region)->owners[index];
    clear_slot(region, index);
    atomic_store(&owner->start_time, self->start_time);
    atomic_store(&owner->pid_namespace, self->pid_namespace);
    atomic_store(&slot->host_pid, self->host_pid);
    atomic_store(&slot->pid, self->pid);
    atomic_store(&slot->status, VG_SLOT_RUNNING);
    if (index >= count)
        atomic_store_explicit(&region->slot_count, (int32_t)index + 1, memory_order_release);
    return (int)index;
}

/* Marks who is gone. */
static bool find_gone(struct vg_region *region, const struct vgi_judge *judge, bool gone[VG_MAX_SLOTS]) {
    bool any = false;
    for (unsigned i = 0; i < VG_MAX_SLOTS; i++) {
        struct vgi_identity owner = vgi_region_owner(region, i);
        gone[i] = owner.pid != 0 && i < vgi_region_slot_count(region) && judge->is_gone(judge->context, &owner);
        any = any || gone[i];
    }
    return any;
}

/* Until no living process is between two counters. One that dies meanwhile counts as gone. */
static bool quiesce(struct vg_region *region, const struct vgi_judge *judge, bool gone[VG_MAX_SLOTS]) {
    struct vg_extension *extension = vg_extension_of(region);
    for (unsigned i = 0; i < vgi_region_slot_count(region); i++) {
        while (!gone[i] && atomic_load(&extension->owners[i].busy) != 0) {
            struct vgi_identity owner = vgi_region_owner(region, i);
            if (owner.pid == 0 || judge->is_gone(judge->context, &owner))
                gone[i] = true;
            else if (!judge->wait_a_little(judge->context))
                return false;
        }
    }
    return true;
}

static void add_up(struct vg_region *region) {
    for (unsigned card = 0; card < VG_MAX_CARDS; card++) {
        uint64_t sum = 0;
        for (unsigned i = 0; i < vgi_region_slot_count(region); i++)
            if (atomic_load(&region->slots[i].pid) != 0 &&
                __builtin_add_overflow(sum, atomic_load(&region->slots[i].used[card].total), &sum))
                sum = UINT64_MAX; /* nonsense in the file never makes room */
        atomic_store(&vg_extension_of(region)->sums[card].word, sum > VG_USED_MAX ? VG_USED_MAX : sum);
    }
}

bool vgi_region_reclaim(struct vg_region *region, const struct vgi_judge *judge, bool force) {
    struct vg_extension *extension = vg_extension_of(region);
    bool gone[VG_MAX_SLOTS];
    /* A flag left standing means that whoever held the lock before was killed while adding up. */
    bool unfinished = atomic_load(&extension->recompute) != 0;
    if (!find_gone(region, judge, gone) && !force && !unfinished)
        return true;
    atomic_store(&extension->recompute, 1);
    bool quiet = quiesce(region, judge, gone);
    if (quiet) {
        for (unsigned i = 0; i < VG_MAX_SLOTS; i++)
            if (gone[i])
                clear_slot(region, i);
        add_up(region);
    }
    atomic_store(&extension->recompute, 0);
    return quiet;
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
