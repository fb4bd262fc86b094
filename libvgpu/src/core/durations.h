/* How long kernels take, learned from the few that are measured: one entry for a function and size of launch. A table
 * of fixed size without locks; what is forgotten or mixed up is only learned again. */
#ifndef VGPU_CORE_DURATIONS_H
#define VGPU_CORE_DURATIONS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define VGI_DURATION_ENTRIES 1024

struct vgi_duration {
    _Atomic uint64_t key;           /* 0 = free */
    _Atomic uint64_t estimate_ns;   /* 0 = unknown */
    _Atomic uint32_t samples;       /* learned from; 0 with an estimate: a provisional one */
    _Atomic uint32_t measures;      /* taken, good or not */
    _Atomic uint32_t launches_left; /* until the next one */
    uint32_t unused;
};

struct vgi_durations {
    struct vgi_duration entries[VGI_DURATION_ENTRIES];
};

/* The size enters by its magnitude: launches of one function grow and shrink, their number of entries stays small. */
static inline uint64_t vgi_duration_key(uintptr_t function, unsigned card, uint64_t threads) {
    unsigned magnitude = threads == 0 ? 0 : 64 - (unsigned)__builtin_clzll(threads);
    uint64_t key = (uint64_t)function * 0x9e3779b97f4a7c15ull;
    key ^= key >> 29;
    key = (key + (magnitude << 5 | card) + 1) * 0xbf58476d1ce4e5b9ull;
    return key == 0 ? 1 : key;
}

/* The entry of that key; a new one takes a free place, or that of another. */
struct vgi_duration *vgi_duration_place(struct vgi_durations *table, uint64_t key);

static inline struct vgi_duration *vgi_duration_find(struct vgi_durations *table, uint64_t key) {
    struct vgi_duration *first = &table->entries[(key >> 32) % VGI_DURATION_ENTRIES];
    bool found = atomic_load_explicit(&first->key, memory_order_relaxed) == key;
    return __builtin_expect(found, 1) ? first : vgi_duration_place(table, key);
}

/* Before anything is known: whole waves of the card's resident threads. */
uint64_t vgi_duration_guess(uint64_t threads, uint64_t resident_threads);

struct vgi_measure {
    uint64_t elapsed_ns;
    uint64_t backlog_ns; /* at most so much other work of the container ran in between; 0 = it ran alone */
    uint64_t calls_ns;   /* the stream was idle: what the host took for its calls may be in it; 0 = it was not */
};

#define VGI_UNKNOWN_BACKLOG UINT64_MAX

/* Learns from a measure. Of work that did not run alone only bounds are known; time in which the host's calls cannot be
 * told from the kernel is a first guess only. */
void vgi_duration_learn(struct vgi_duration *entry, struct vgi_measure measure, uint64_t guess_ns);

/* A measure that does not end: from now on at least that much is charged, until it does. */
void vgi_duration_suppose(struct vgi_duration *entry, uint64_t ns);

/* Whatever has that key is not known any more. */
void vgi_duration_forget(struct vgi_durations *table, uint64_t key);

/* Whether this launch is to be measured; counts it. Often at first, then ever more rarely, in launches and in time. */
static inline bool vgi_duration_is_due(struct vgi_duration *entry) {
    uint32_t left = atomic_load_explicit(&entry->launches_left, memory_order_relaxed);
    if (left <= 1)
        return true;
    atomic_store_explicit(&entry->launches_left, left - 1, memory_order_relaxed);
    return false;
}

/* The measure could not be taken: not at once again. */
void vgi_duration_put_off(struct vgi_duration *entry);

#endif
