/* Handles of virtual memory management in one process. */
#ifndef SIM_VMM_H
#define SIM_VMM_H

#include "driver.h"

struct sim_handle {
    int device;
    size_t bytes;
    CUmemAllocationProp prop;
    int shared; /* its place in the books, -1 = this process's alone */
    unsigned references, mappings;
    struct sim_handle *next;
};

extern struct sim_handle *sim_handles; /* guarded by sim.lock, as all below */

struct sim_handle *sim_handle_find(CUmemGenericAllocationHandle value);

static inline CUmemGenericAllocationHandle sim_handle_value(const struct sim_handle *handle) {
    return (CUmemGenericAllocationHandle)(uintptr_t)handle;
}

/* Gives up shared memory once no handle of this process stands for it. */
void sim_handle_unshare(const struct sim_handle *ended);

/* One mapping less; the handle's memory returns with its last. The caller holds sim.lock. */
void sim_handle_unmapped(struct sim_handle *handle);

#endif
