#include "overhead.h"

#include <pthread.h>

#include "limit_source.h"
#include "vgpu/prim.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the table; never across a driver call */
static struct vgi_map overheads;                         /* by handle */
static _Atomic uint64_t context_sizes[VG_MAX_CARDS];     /* of the largest measured in this process */

void vgi_overhead_forget(void) {
    pthread_mutex_init(&lock, NULL);
    vgi_map_reset(&overheads);
    for (unsigned card = 0; card < VG_MAX_CARDS; card++)
        atomic_store(&context_sizes[card], 0);
}

void vgi_overhead_begin(CUdevice device, enum vgi_kind kind, struct vgi_overhead *overhead) {
    *overhead = (struct vgi_overhead){.card = -1, .kind = kind};
    if (vgi_state() == VGI_DETACHED)
        (void)vgi_attach();
    if (vgi_state() != VGI_ATTACHED || device < 0 || device >= VGI_MAX_DEVICES)
        return;
    overhead->card = vgi_card_of_device[device];
    if (overhead->card < 0)
        return;
    if (kind == VGI_KIND_CONTEXT) {
        overhead->told = vgi_context_bytes((unsigned)overhead->card);
        if (overhead->told == 0)
            overhead->told = atomic_load(&context_sizes[overhead->card]);
    }
    if (overhead->told == 0)
        vgi_read_usage((unsigned)overhead->card, NULL, &overhead->before);
}

static uint64_t measure(const struct vgi_overhead *overhead, const void *owner) {
    static int said;
    struct vgi_usage after;
    uint64_t bytes = 0, met = 0;
    vgi_read_usage((unsigned)overhead->card, &overhead->before, &after);
    bool known = vgi_usage_growth(&overhead->before, &after, &bytes, &met);
    if (met != 0)
        vgi_met_heap(owner, met);
    if (!known && __atomic_exchange_n(&said, 1, __ATOMIC_RELAXED) == 0)
        vgi_say(VGI_INFO, "what a context or module takes is not counted: NVML tells neither this process's use of the "
                          "card nor the card's, or other threads allocate meanwhile");
    return bytes;
}

void vgi_overhead_end(const struct vgi_overhead *overhead, const void *handle, const void *owner, bool more) {
    if (overhead->card < 0 || handle == NULL || vgi_state() != VGI_ATTACHED)
        return;
    uint64_t bytes = overhead->told != 0 ? overhead->told : measure(overhead, owner);
    if (bytes == 0)
        return;
    if (overhead->kind == VGI_KIND_CONTEXT && bytes > atomic_load(&context_sizes[overhead->card]))
        atomic_store(&context_sizes[overhead->card], bytes);
    struct vgi_entry entry, made = {.key = (uintptr_t)handle,
                                    .bytes = bytes,
                                    .owner = (uintptr_t)owner,
                                    .card = (uint32_t)overhead->card,
                                    .kind = overhead->kind};
    pthread_mutex_lock(&lock);
    if (vgi_map_find(&overheads, made.key, &entry)) {
        made = entry;
        if (more)
            made.bytes += bytes;
        else if (bytes > made.bytes)
            made.bytes = bytes;
        bytes = made.bytes - entry.bytes;
    }
    bool entered = vgi_map_put(&overheads, &made);
    pthread_mutex_unlock(&lock);
    if (entered) /* where the host has no memory even for this, it is not counted: it could not be given back */
        vgi_charge_overhead(overhead->card, overhead->kind, bytes);
}

bool vgi_overhead_take(const void *handle, struct vgi_entry *taken) {
    return vgi_state() == VGI_ATTACHED && vgi_map_take(&overheads, (uintptr_t)handle, taken);
}

void vgi_overhead_settle(CUresult result, const struct vgi_entry *taken) {
    struct vgi_entry other = *taken;
    if (result != CUDA_SUCCESS) {
        pthread_mutex_lock(&lock);
        (void)vgi_map_put_over(&overheads, taken, &other); /* its place in the table was free a moment ago */
        pthread_mutex_unlock(&lock);
    }
    /* Where the same handle was charged anew meanwhile, it has one charge too many. */
    if (other.key != 0)
        vgi_give_back((int)other.card, (enum vgi_kind)other.kind, other.bytes);
}

void vgi_overhead_drop(const void *handle) {
    struct vgi_entry taken;
    if (vgi_overhead_take(handle, &taken))
        vgi_overhead_settle(CUDA_SUCCESS, &taken);
}

void vgi_overhead_change_owner(uint64_t from, uint64_t to) {
    if (vgi_state() == VGI_ATTACHED)
        vgi_map_change_owner(&overheads, from, to);
}

void vgi_overhead_drop_owned(uint64_t owner) {
    struct vgi_entry taken;
    size_t cursor = 0;
    while (vgi_state() == VGI_ATTACHED && vgi_map_take_owned(&overheads, owner, &cursor, &taken))
        vgi_overhead_settle(CUDA_SUCCESS, &taken);
}
