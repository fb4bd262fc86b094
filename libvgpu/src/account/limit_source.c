#include "limit_source.h"

static const _Atomic uint64_t no_memory_limit = 0;
static const _Atomic uint64_t all_cores = 100;

/* What the environment says of settings that the region does not hold. */
static _Atomic uint32_t environment_policy = VGI_POLICY_DEFAULT;
static _Atomic uint32_t environment_priority = 1;

struct vgi_limit_words vgi_limit_words = {
    .memory_bytes = {[0 ... VG_MAX_CARDS - 1] = &no_memory_limit},
    .cores_percent = {[0 ... VG_MAX_CARDS - 1] = &all_cores},
    .policy = &environment_policy,
    .priority = &environment_priority,
};

void vgi_limits_follow_region(struct vg_region *region, const struct vgi_limits *environment) {
    atomic_store(&environment_policy, (uint32_t)environment->policy);
    atomic_store(&environment_priority, (uint32_t)environment->priority);
    for (unsigned card = 0; card < VG_MAX_CARDS; card++) {
        atomic_store(&vgi_limit_words.memory_bytes[card], &region->limit[card]);
        atomic_store(&vgi_limit_words.cores_percent[card], &region->sm_limit[card]);
    }
}
