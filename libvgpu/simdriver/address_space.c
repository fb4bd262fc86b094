/* Address space of simulated device memory: reserved, backed by the host only where it is touched, 2 MiB granular. */
#include <stdlib.h>
#include <sys/mman.h>

#include "driver.h"

#define UNIT (2ull << 20)
#define BINNED_UNITS 64 /* sizes up to this many units come from the arena and are reused by size */
#define ARENA_BYTES (1ull << 40)
#define LOW_END (1ull << 32)

struct bin {
    CUdeviceptr *addresses;
    size_t count, capacity;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct bin bins[BINNED_UNITS + 1];
static CUdeviceptr arena_next, arena_end;

static void *reserve(size_t bytes) {
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return mapped == MAP_FAILED ? NULL : mapped;
}

static CUdeviceptr round_up(CUdeviceptr address) {
    return (address + UNIT - 1) & ~(UNIT - 1);
}

/* A mapping of its own, trimmed to whole units. */
static CUdeviceptr map_alone(size_t bytes) {
    char *mapped = reserve(bytes + UNIT);
    if (mapped == NULL)
        return 0;
    CUdeviceptr start = round_up((CUdeviceptr)(uintptr_t)mapped);
    size_t before = (size_t)(start - (CUdeviceptr)(uintptr_t)mapped);
    if (before > 0)
        munmap(mapped, before);
    if (UNIT - before > 0)
        munmap(mapped + before + bytes, UNIT - before);
    return start;
}

static bool open_arena(void) {
    for (size_t bytes = ARENA_BYTES; bytes >= 64 * BINNED_UNITS * UNIT; bytes /= 4) {
        void *mapped = reserve(bytes);
        if (mapped != NULL) {
            arena_next = round_up((CUdeviceptr)(uintptr_t)mapped);
            arena_end = (CUdeviceptr)(uintptr_t)mapped + bytes;
            return true;
        }
    }
    return false;
}

CUdeviceptr sim_address_take(size_t bytes) {
    size_t units = (bytes + UNIT - 1) / UNIT;
    CUdeviceptr address = 0;
    if (units > BINNED_UNITS)
        return map_alone(units * UNIT);
    pthread_mutex_lock(&lock);
    struct bin *bin = &bins[units];
    if (bin->count > 0) {
        address = bin->addresses[--bin->count];
    } else if (arena_next != 0 || open_arena()) {
        if (arena_end - arena_next >= units * UNIT) {
            address = arena_next;
            arena_next += units * UNIT;
        }
    }
    pthread_mutex_unlock(&lock);
    return address;
}

CUdeviceptr sim_address_take_low(size_t bytes) {
    size_t units = (bytes + UNIT - 1) / UNIT;
    void *mapped = MAP_FAILED;
#ifdef MAP_32BIT
    mapped = mmap(NULL, units * UNIT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_32BIT,
                  -1, 0);
#endif
    return mapped == MAP_FAILED ? 0 : (CUdeviceptr)(uintptr_t)mapped;
}

void sim_address_give_back(CUdeviceptr address, size_t bytes) {
    size_t units = (bytes + UNIT - 1) / UNIT;
    if (units > BINNED_UNITS || address < LOW_END) {
        munmap((void *)(uintptr_t)address, units * UNIT);
        return;
    }
    pthread_mutex_lock(&lock);
    struct bin *bin = &bins[units];
    if (bin->count == bin->capacity) {
        size_t capacity = bin->capacity == 0 ? 64 : bin->capacity * 2;
        CUdeviceptr *grown = realloc(bin->addresses, capacity * sizeof *grown);
        if (grown != NULL) {
            bin->addresses = grown;
            bin->capacity = capacity;
        }
    }
    if (bin->count < bin->capacity)
        bin->addresses[bin->count++] = address;
    pthread_mutex_unlock(&lock);
}
