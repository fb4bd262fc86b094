/* What this process allocated, by address or handle: constant time, its own memory, no system call unless it grows. */
#ifndef VGPU_CORE_POINTER_MAP_H
#define VGPU_CORE_POINTER_MAP_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vgi_entry {
    uint64_t key; /* never 0 */
    uint64_t bytes;
    uint64_t owner; /* context of an allocation, handle of a mapping; 0 = outlives contexts */
    uint32_t card;
    uint32_t kind;       /* enum vgi_kind */
    uint16_t references; /* of a handle */
    uint16_t mappings;
    uint32_t unused;
};

#define VGI_MAP_SHARDS 64

struct vgi_map_shard {
    pthread_mutex_t lock;
    struct vgi_entry *entries; /* open addressing, linear probing */
    size_t capacity;           /* 0 or a power of two */
    size_t count;
    uint64_t bytes; /* of all entries together */
};

struct vgi_map {
    struct vgi_map_shard shards[VGI_MAP_SHARDS];
};

/* Makes the map empty and its locks free, whatever they were: also after a fork. */
void vgi_map_reset(struct vgi_map *map);

/* Enters or replaces. False when the host has no memory to grow. */
bool vgi_map_put(struct vgi_map *map, const struct vgi_entry *entry);
/* The same; `replaced` is what was there (key 0: nothing). */
bool vgi_map_put_over(struct vgi_map *map, const struct vgi_entry *entry, struct vgi_entry *replaced);
bool vgi_map_find(struct vgi_map *map, uint64_t key, struct vgi_entry *found);
bool vgi_map_take(struct vgi_map *map, uint64_t key, struct vgi_entry *taken);

/* Takes one entry of that owner (not 0); false when there is none left. `cursor` starts at 0. */
bool vgi_map_take_owned(struct vgi_map *map, uint64_t owner, size_t *cursor, struct vgi_entry *taken);

/* All of one owner become another's. */
void vgi_map_change_owner(struct vgi_map *map, uint64_t from, uint64_t to);

size_t vgi_map_count(struct vgi_map *map);
uint64_t vgi_map_bytes(struct vgi_map *map);

#endif
