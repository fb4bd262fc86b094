/* The pools of this process, and what each is charged with: what the driver has reserved for it. */
#ifndef VGPU_HOOKS_POOL_ACCOUNT_H
#define VGPU_HOOKS_POOL_ACCOUNT_H

#include <pthread.h>

#include "account/account.h"
#include "core/reserve.h"

struct vgi_pool {
    CUmemoryPool handle; /* NULL: the reserve that a device keeps for graphs, or a pool that was destroyed */
    bool of_graphs;
    bool counted; /* false: on the host, or another process's */
    CUdevice device;
    int card;
    _Atomic bool hidden;     /* being destroyed, or destroyed: its handle may not be used any more */
    _Atomic uint32_t in_use; /* our own calls with its handle */
    pthread_mutex_t lock;    /* guards what follows; never held across a driver call */
    bool destroyed;          /* lives on until what it handed out is freed */
    struct vgi_reserve reserve;
    uint64_t threshold; /* what it may keep when the program synchronises */
    uint64_t seen;      /* all sizes it was seen to have, or'ed: its chunk divides them */
    uint64_t lent;      /* of its unused memory, to calls under way */
    uint64_t handed_out;
    CUstream last_freed_on; /* when it was destroyed */
    uint32_t looks_left;    /* synchronisations that shall look whether it shrank */
    struct vgi_pool *next;
};

/* ---- pool_list.c ---- */

/* The first of all, the others by `next`. */
struct vgi_pool *vgi_pool_first(void);

/* The pool of that handle, or NULL. */
struct vgi_pool *vgi_pool_find(CUmemoryPool handle);

/* Enters a pool, if it is not there; NULL when the host has no memory. */
struct vgi_pool *vgi_pool_enter(CUmemoryPool handle, CUdevice device, bool counted);

/* The device's reserve for graphs. */
struct vgi_pool *vgi_pool_of_graphs(CUdevice device);

/* Before and after the driver destroyed it. */
void vgi_pool_hide(struct vgi_pool *pool);
void vgi_pool_destroyed(struct vgi_pool *pool, bool destroyed);

/* ---- pool_account.c ---- */

/* A call that may change what the pool has reserved. */
struct vgi_growth {
    struct vgi_reserve_call call;
    uint64_t lent;    /* unused memory of the pool that the call counts on */
    bool hands_out;   /* memory that is freed on its own */
    bool provisional; /* others wait for it to settle before they are refused */
};

/* Before the driver's call: claims the most that the pool may grow by for `bytes` in so many pieces. */
CUresult vgi_pool_claim(struct vgi_pool *pool, uint64_t bytes, uint64_t pieces, struct vgi_growth *growth);

/* After it: the pool's charge becomes what it has reserved. False: it grew beyond what the slice has, and is charged
 * all the same. */
bool vgi_pool_settle(struct vgi_pool *pool, struct vgi_growth *growth, CUresult result);

/* The same after calls that claimed nothing. */
void vgi_pool_look(struct vgi_pool *pool);

/* Memory that it handed out was freed, in the order of a stream or at once. */
void vgi_pool_freed(struct vgi_pool *pool, CUstream stream);
void vgi_pool_freed_at_once(struct vgi_pool *pool);

/* Gives back what a destroyed pool held, if nothing of it is handed out and the last that freed was waited for. */
void vgi_pool_settle_destroyed(struct vgi_pool *pool, CUstream stream, bool everything);

/* What the program lets it keep. */
void vgi_pool_set_threshold(struct vgi_pool *pool, uint64_t bytes);

/* After a synchronisation: of one stream, or of everything. A load where no pool is watched. */
extern _Atomic uint32_t vgi_pools_watched;
void vgi_pools_look(CUstream stream, bool everything);
static inline void vgi_pools_synchronised(CUstream stream, bool everything) {
    if (__builtin_expect(atomic_load_explicit(&vgi_pools_watched, memory_order_relaxed) != 0, 0))
        vgi_pools_look(stream, everything);
}

#endif
