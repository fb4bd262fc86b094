/* The outer loop: what NVML says of the container's processes corrects what launches cost. One process at a time looks,
 * for all; it does so while it waits for compute anyway, or once a second. */
#ifndef VGPU_COMPUTE_SAMPLER_H
#define VGPU_COMPUTE_SAMPLER_H

#include <stdint.h>

void vgi_sampler_tick(uint64_t now_ns);

#endif
