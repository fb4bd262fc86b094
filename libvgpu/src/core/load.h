/* The container's part of a card's load, from NVML's samples of all processes on it. */
#ifndef VGPU_CORE_LOAD_H
#define VGPU_CORE_LOAD_H

#include <stdbool.h>

#include "vgpu/abi/nvml_types.h"
#include "vgpu/shm_layout.h"

struct vgi_load {
    bool known;    /* there were samples at all */
    bool complete; /* and every living process of the container can be told among them */
    unsigned busy_percent;
};

/* Whether some slot knows the pid under which NVML lists it. */
bool vgi_any_host_pid(const struct vg_region *region);

/* Sums the container's processes, and writes each one's load into its slot for monitors. NVML tells the host's pid or,
 * newer drivers, that of the asking process's PID namespace, which is `own_namespace` (0 = not known). */
struct vgi_load vgi_load_of(struct vg_region *region, unsigned card, uint64_t own_namespace,
                            const nvmlProcessUtilizationSample_t *samples, unsigned count);

#endif
