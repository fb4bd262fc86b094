/* What a container may have, as its environment says it. */
#ifndef VGPU_CORE_LIMITS_H
#define VGPU_CORE_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vgpu/shm_layout.h"

enum vgi_policy { VGI_POLICY_DEFAULT, VGI_POLICY_FORCE, VGI_POLICY_DISABLE };

struct vgi_limits {
    uint64_t memory_bytes[VG_MAX_CARDS]; /* 0 = unlimited */
    uint64_t cores_percent[VG_MAX_CARDS];
    bool any_memory; /* some card has a memory limit */
    bool any_cores;
    int priority;
    int64_t kernel_interval_seconds; /* negative = launches are not timed */
    enum vgi_policy policy;
};

/* A size: a whole or decimal number (or 0x...), blanks, and k, m, g or t (powers of 1024; also Ki, KiB, KB). Without a
 * suffix it is bytes. Blanks around are allowed. NULL when valid, else what is wrong with it. */
const char *vgi_parse_size(const char *text, uint64_t *bytes);

/* A percentage: a whole number from 0 to 100. */
const char *vgi_parse_percent(const char *text, uint64_t *percent);

typedef const char *(*vgi_environment)(const char *name);

/* Reads what is no limit: priority, policy, how often launches are timed. */
void vgi_read_settings(vgi_environment environment, struct vgi_limits *limits);

/* Reads all limits, and the settings. False when one cannot be understood: `reason` then names the variable and says
 * why. */
bool vgi_read_limits(vgi_environment environment, struct vgi_limits *limits, char *reason, size_t reason_size);

#endif
