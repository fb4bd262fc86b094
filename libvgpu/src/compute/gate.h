/* Every launch passes here: it is noted, and where compute is limited it is paid for, before the driver is called. */
#ifndef VGPU_COMPUTE_GATE_H
#define VGPU_COMPUTE_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "bind/table.h"
#include "compute/samples.h"

/* What is launched. */
struct vgi_work {
    uintptr_t what; /* the function's or graph's handle: what its duration is known by */
    uint64_t threads;
    CUstream stream;
    bool per_thread; /* a stream of 0 is the thread's own */
};

/* Before the launch; may wait for the container's share. The answer goes to vgi_launched. */
struct vgi_sample *vgi_before_launch(const struct vgi_work *work);

/* After it. */
void vgi_after_launch(struct vgi_sample *sample, CUresult result);

static inline CUresult vgi_launched(struct vgi_sample *sample, CUresult result) {
    if (__builtin_expect(sample != NULL, 0))
        vgi_after_launch(sample, result);
    return result;
}

/* ---- for graphs: what is known of single launches on the current card ---- */

bool vgi_compute_is_limited(void);
uint64_t vgi_known_cost(uintptr_t what, const unsigned grid[3], const unsigned block[3]); /* 0 = not known */
void vgi_suppose_cost(uintptr_t what, uint64_t ns);                                       /* of a handle without size */
void vgi_forget_cost(uintptr_t what);

/* Threads of a launch, never more than fit. */
uint64_t vgi_threads(const unsigned grid[3], const unsigned block[3]);

#endif
