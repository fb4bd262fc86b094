#include "pointer_map.h"

#include <string.h>
#include <sys/mman.h>

#define FIRST_CAPACITY 64

static uint64_t mix(uint64_t key) {
    key ^= key >> 33;
    key *= 0xff51afd7ed558ccdull;
    key ^= key >> 33;
    key *= 0xc4ceb9fe1a85ec53ull;
    return key ^ (key >> 33);
}

static struct vgi_map_shard *shard_of(struct vgi_map *map, uint64_t key) {
    return &map->shards[mix(key) >> 58];
}

_Static_assert(VGI_MAP_SHARDS == 1 << (64 - 58), "the six top bits choose the shard");

/* Pages of its own: the program's malloc may be the very allocator that asks us for memory. */
static struct vgi_entry *take_pages(size_t capacity) {
    void *pages =
        mmap(NULL, capacity * sizeof(struct vgi_entry), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

static void give_pages_back(struct vgi_entry *entries, size_t capacity) {
    if (entries != NULL)
        munmap(entries, capacity * sizeof *entries);
}

void vgi_map_reset(struct vgi_map *map) {
    for (int i = 0; i < VGI_MAP_SHARDS; i++) {
        struct vgi_map_shard *shard = &map->shards[i];
        give_pages_back(shard->entries, shard->capacity);
        memset(shard, 0, sizeof *shard);
        pthread_mutex_init(&shard->lock, NULL);
    }
}

/* Where the key is, or the free place where it belongs. */
static size_t place_of(const struct vgi_map_shard *shard, uint64_t key) {
    size_t at = mix(key) & (shard->capacity - 1);
    while (shard->entries[at].key != 0 && shard->entries[at].key != key)
        at = (at + 1) & (shard->capacity - 1);
    return at;
}

static bool grow(struct vgi_map_shard *shard) {
    struct vgi_map_shard larger = *shard;
    larger.capacity = shard->capacity == 0 ? FIRST_CAPACITY : shard->capacity * 2;
    larger.entries = take_pages(larger.capacity);
    if (larger.entries == NULL)
        return false;
    for (size_t i = 0; i < shard->capacity; i++)
        if (shard->entries[i].key != 0)
            larger.entries[place_of(&larger, shard->entries[i].key)] = shard->entries[i];
    give_pages_back(shard->entries, shard->capacity);
    shard->entries = larger.entries;
    shard->capacity = larger.capacity;
    return true;
}

bool vgi_map_put(struct vgi_map *map, const struct vgi_entry *entry) {
    struct vgi_entry replaced;
    return vgi_map_put_over(map, entry, &replaced);
}

bool vgi_map_put_over(struct vgi_map *map, const struct vgi_entry *entry, struct vgi_entry *replaced) {
    replaced->key = 0;
    struct vgi_map_shard *shard = shard_of(map, entry->key);
    pthread_mutex_lock(&shard->lock);
    /* At most three quarters full: probes stay short. */
    bool room = (shard->count + 1) * 4 <= shard->capacity * 3 || grow(shard);
    if (room) {
        size_t at = place_of(shard, entry->key);
        *replaced = shard->entries[at];
        if (replaced->key == 0)
            shard->count++;
        else
            shard->bytes -= shard->entries[at].bytes;
        shard->bytes += entry->bytes;
        shard->entries[at] = *entry;
    }
    pthread_mutex_unlock(&shard->lock);
    return room;
}

bool vgi_map_find(struct vgi_map *map, uint64_t key, struct vgi_entry *found) {
    struct vgi_map_shard *shard = shard_of(map, key);
    bool exists = false;
    pthread_mutex_lock(&shard->lock);
    if (shard->capacity > 0 && key != 0) {
        *found = shard->entries[place_of(shard, key)];
        exists = found->key == key;
    }
    pthread_mutex_unlock(&shard->lock);
    return exists;
}

/* Empties a place and moves later entries of the same run back, so that no search ends too early. */
static void erase(struct vgi_map_shard *shard, size_t hole) {
    size_t mask = shard->capacity - 1;
    shard->bytes -= shard->entries[hole].bytes;
    for (size_t at = (hole + 1) & mask; shard->entries[at].key != 0; at = (at + 1) & mask) {
        size_t home = mix(shard->entries[at].key) & mask;
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            shard->entries[hole] = shard->entries[at];
            hole = at;
        }
    }
    shard->entries[hole].key = 0;
    shard->count--;
}

bool vgi_map_take(struct vgi_map *map, uint64_t key, struct vgi_entry *taken) {
    struct vgi_map_shard *shard = shard_of(map, key);
    bool exists = false;
    pthread_mutex_lock(&shard->lock);
    if (shard->capacity > 0 && key != 0) {
        size_t at = place_of(shard, key);
        exists = shard->entries[at].key == key;
        if (exists) {
            *taken = shard->entries[at];
            erase(shard, at);
        }
    }
    pthread_mutex_unlock(&shard->lock);
    return exists;
}

bool vgi_map_take_owned(struct vgi_map *map, uint64_t owner, size_t *cursor, struct vgi_entry *taken) {
    for (; *cursor < VGI_MAP_SHARDS; (*cursor)++) {
        struct vgi_map_shard *shard = &map->shards[*cursor];
        bool found = false;
        pthread_mutex_lock(&shard->lock);
        for (size_t at = 0; at < shard->capacity && !found; at++) {
            found = shard->entries[at].key != 0 && shard->entries[at].owner == owner;
            if (found) {
                *taken = shard->entries[at];
                erase(shard, at);
            }
        }
        pthread_mutex_unlock(&shard->lock);
        if (found)
            return true;
    }
    return false;
}

void vgi_map_change_owner(struct vgi_map *map, uint64_t from, uint64_t to) {
    for (int i = 0; i < VGI_MAP_SHARDS; i++) {
        struct vgi_map_shard *shard = &map->shards[i];
        pthread_mutex_lock(&shard->lock);
        for (size_t at = 0; at < shard->capacity; at++)
            if (shard->entries[at].key != 0 && shard->entries[at].owner == from)
                shard->entries[at].owner = to;
        pthread_mutex_unlock(&shard->lock);
    }
}

size_t vgi_map_count(struct vgi_map *map) {
    size_t count = 0;
    for (int i = 0; i < VGI_MAP_SHARDS; i++) {
        pthread_mutex_lock(&map->shards[i].lock);
        count += map->shards[i].count;
        pthread_mutex_unlock(&map->shards[i].lock);
    }
    return count;
}

uint64_t vgi_map_bytes(struct vgi_map *map) {
    uint64_t bytes = 0;
    for (int i = 0; i < VGI_MAP_SHARDS; i++) {
        pthread_mutex_lock(&map->shards[i].lock);
        bytes += map->shards[i].bytes;
        pthread_mutex_unlock(&map->shards[i].lock);
    }
    return bytes;
}
