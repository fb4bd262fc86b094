/* Memory that comes along with contexts and modules: charged when they are there, never refused, given back with them.
 * How much it is the limits page tells, or it is measured before and after. */
#ifndef VGPU_OVERHEAD_H
#define VGPU_OVERHEAD_H

#include "account.h"
#include "usage.h"

struct vgi_overhead {
    int card; /* -1 = nothing is charged */
    enum vgi_kind kind;
    uint64_t told; /* by the page, or by an earlier context of this process; 0 = measured */
    struct vgi_usage before;
};

/* Around the driver's call. `handle` is what it made, `owner` the context that takes it along (0 for a context). What
 * is measured of a handle that is known already is added to it if `more`, else the larger of both is right: two threads
 * have made the same context. */
void vgi_overhead_begin(CUdevice device, enum vgi_kind kind, struct vgi_overhead *overhead);
void vgi_overhead_end(const struct vgi_overhead *overhead, const void *handle, const void *owner, bool more);

/* Around a driver's unload: takes the charge out before, gives it back or puts it in again afterwards. */
bool vgi_overhead_take(const void *handle, struct vgi_entry *taken);
void vgi_overhead_settle(CUresult result, const struct vgi_entry *taken);

/* Gives back what a context took along, and what it took itself. */
void vgi_overhead_drop_owned(uint64_t owner);
void vgi_overhead_drop(const void *handle);

/* What a context took along becomes another owner's. */
void vgi_overhead_change_owner(uint64_t from, uint64_t to);

void vgi_overhead_forget(void);

#endif
