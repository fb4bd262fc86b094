#include "load.h"

bool vgi_any_host_pid(const struct vg_region *region) {
    for (unsigned i = 0; i < vg_slot_count(region); i++)
        if (atomic_load_explicit(&region->slots[i].host_pid, memory_order_relaxed) > 0)
            return true;
    return false;
}

/* The newest sample of that process, or -1. NVML may give several. */
static int newest(const nvmlProcessUtilizationSample_t *samples, unsigned count, unsigned pid) {
    const nvmlProcessUtilizationSample_t *found = NULL;
    for (unsigned i = 0; i < count; i++)
        if (samples[i].pid == pid && (found == NULL || samples[i].timeStamp > found->timeStamp))
            found = &samples[i];
    if (found == NULL)
        return -1;
    return found->smUtil > 100 ? 100 : (int)found->smUtil;
}

/* Percent of the slot's process, whose pid on the host is known; -1: no sample. */
static int percent_of(struct vg_region *region, unsigned slot, uint64_t own_namespace,
                      const nvmlProcessUtilizationSample_t *samples, unsigned count) {
    const struct vg_slot_owner *owner = &vg_extension_of(region)->owners[slot];
    int32_t host_pid = atomic_load_explicit(&region->slots[slot].host_pid, memory_order_relaxed);
    int32_t pid = atomic_load_explicit(&owner->pid, memory_order_relaxed);
    uint64_t namespace = atomic_load_explicit(&owner->pid_namespace, memory_order_relaxed);
    int percent = newest(samples, count, (unsigned)host_pid);
    if (percent < 0 && pid > 0 && namespace != 0 && namespace == own_namespace)
        percent = newest(samples, count, (unsigned)pid);
    return percent;
}

struct vgi_load vgi_load_of(struct vg_region *region, unsigned card, uint64_t own_namespace,
                            const nvmlProcessUtilizationSample_t *samples, unsigned count) {
    struct vgi_load load = {.known = count > 0, .complete = count > 0};
    if (count == 0)
        return load;
    for (unsigned i = 0; i < vg_slot_count(region); i++) {
        struct vg_slot *slot = &region->slots[i];
        int32_t host_pid = atomic_load_explicit(&slot->host_pid, memory_order_relaxed);
        if (atomic_load_explicit(&slot->status, memory_order_relaxed) == VG_SLOT_FREE)
            continue;
        load.complete = load.complete && host_pid > 0;
        int percent = host_pid > 0 ? percent_of(region, i, own_namespace, samples, count) : -1;
        _Atomic uint64_t *shown = &slot->utilisation[card].sm;
        uint64_t value = percent < 0 ? 0 : (uint64_t)percent;
        if (host_pid > 0 && atomic_load_explicit(shown, memory_order_relaxed) != value)
            atomic_store_explicit(shown, value, memory_order_relaxed);
        load.busy_percent += (unsigned)value;
    }
    load.busy_percent = load.busy_percent > 100 ? 100 : load.busy_percent;
    return load;
}
