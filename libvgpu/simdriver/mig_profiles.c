#include "mig_profiles.h"

#include <string.h>

#define TABLE_CARD_BYTES (40960ull << 20)

/* Kind, id, slices, instances, SMs, MiB, size, and the starts. */
static const struct sim_mig_profile table[] = {
    {0, 19, 1, 7, 14, 4864, 1, 7, {0, 1, 2, 3, 4, 5, 6}},
    {1, 14, 2, 3, 28, 9856, 2, 3, {0, 2, 4}},
    {2, 9, 3, 2, 42, 19968, 4, 2, {0, 4}},
    {3, 5, 4, 1, 56, 19968, 4, 1, {0}},
    {4, 0, 7, 1, 98, 40192, 8, 1, {0}},
    {7, 20, 1, 1, 14, 4864, 1, 7, {0, 1, 2, 3, 4, 5, 6}},
    {9, 15, 1, 4, 14, 9856, 2, 4, {0, 2, 4, 6}},
};

unsigned sim_mig_default(uint64_t memory_bytes, struct sim_mig_profile profiles[SIM_MAX_MIG_PROFILES]) {
    unsigned count = sizeof table / sizeof table[0];
    memcpy(profiles, table, sizeof table);
    for (unsigned i = 0; i < count; i++)
        profiles[i].memory_mib = table[i].memory_mib * (memory_bytes >> 20) / (TABLE_CARD_BYTES >> 20);
    return count;
}
