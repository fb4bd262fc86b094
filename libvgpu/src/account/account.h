/* This process's place in the container's region, and charging memory to it. */
#ifndef VGPU_ACCOUNT_H
#define VGPU_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "account/limit_source.h"
#include "bind/table.h"
#include "core/limits.h"
#include "core/pointer_map.h"
#include "core/quota.h"
#include "vgpu/shm_layout.h"

/* ---- attach.c ---- */

enum vgi_state {
    VGI_DETACHED = 0, /* also what a fork's child reads */
    VGI_ATTACHED,
    VGI_UNLIMITED, /* no limit was set and there is no region: calls pass through */
    VGI_BARRED,    /* limits that cannot be understood or kept: CUDA is refused */
    VGI_ENDED      /* the process is in exit(): nothing is granted any more */
};

struct vgi_process {
    _Atomic uint32_t state; /* enum vgi_state */
    uint32_t slot;
};

#define VGI_MAX_DEVICES 64 /* CUDA ordinals */

/* Valid while attached. */
extern struct vgi_process *vgi_process;
extern struct vg_region *vgi_region;
extern struct vgi_limits vgi_limits;
extern int8_t vgi_card_of_device[VGI_MAX_DEVICES]; /* CUDA ordinal -> index in the region; -1 = none */

static inline enum vgi_state vgi_state(void) {
    struct vgi_process *process = __atomic_load_n(&vgi_process, __ATOMIC_ACQUIRE);
    return (enum vgi_state)atomic_load_explicit(&process->state, memory_order_acquire);
}

/* Has a slot, or had one until it began to exit: what it launches and holds is still limited. */
static inline bool vgi_is_limited(void) {
    enum vgi_state state = vgi_state();
    return state == VGI_ATTACHED || state == VGI_ENDED;
}

/* Checks the environment's limits. False: they cannot be understood, the reason has been said, CUDA must not start. */
bool vgi_limits_are_valid(void);

/* Takes a place in the region. CUDA_SUCCESS also where there is nothing to keep; else what the program is told. */
CUresult vgi_attach(void);

/* For programs that only look (NVML): the region without a place in it, or NULL. */
struct vg_region *vgi_look(void);

/* ---- charge.c ---- */

/* What a call that allocates has taken from the slice. */
struct vgi_claim {
    int card; /* -1 = nothing is counted */
    enum vgi_kind kind;
    uint64_t bytes;
    bool provisional; /* may come back in part: vgi_claim_settled() says when it is over */
};

/* Before the driver is called: takes bytes of the device's card for data, or says what the program is told. */
CUresult vgi_claim(CUdevice device, uint64_t bytes, struct vgi_claim *claim);
void vgi_give_back(int card, enum vgi_kind kind, uint64_t bytes);

/* The same, of more than the call may keep. */
CUresult vgi_claim_provisionally(CUdevice device, uint64_t bytes, struct vgi_claim *claim);

/* The same of an attached process, where a refusal is not the last word: nothing is tried to make room. */
bool vgi_claim_at_once(CUdevice device, uint64_t bytes, struct vgi_claim *claim);
bool vgi_claim_when_settled(CUdevice device, uint64_t bytes, struct vgi_claim *claim); /* but calls under way are */

/* Around a shrinking of what is charged, from before others can know of it until it is given back. */
void vgi_begin_shrinking(int card);
void vgi_end_shrinking(int card);

/* Memory that comes along with something else (a context, a module): counted, never refused. Where it passes the limit
 * nothing is free any more. */
void vgi_charge_overhead(int card, enum vgi_kind kind, uint64_t bytes);

/* Takes more, or gives some back, once the driver told the true size. False: the slice has not that much. */
bool vgi_resize(struct vgi_claim *claim, uint64_t bytes);

/* The claim is what the call keeps, or it was given back. */
void vgi_claim_settled(struct vgi_claim *claim);

/* Before the slice's use is shown: takes out what processes that ended still hold, unless someone else is at it. */
void vgi_sweep(void);

/* Nothing is shown of this process any more; its slot is free once it is gone. */
void vgi_leave(void);

/* Adds the sums of these cards (one bit each) up anew. */
void vgi_add_up(uint32_t cards);

/* ---- tables of this process; emptied at each attach ---- */

extern struct vgi_map vgi_allocations;
void vgi_forget_allocations(void);
void vgi_forget_mappings(void);  /* hooks/vmm.c */
uint64_t vgi_handle_bytes(void); /* charged for handles of virtual memory management; hooks/vmm.c */
void vgi_forget_contexts(void);  /* hooks/context.c */
void vgi_forget_captures(void);  /* hooks/capture.c */
void vgi_forget_launches(void);  /* compute/gate.c */
void vgi_forget_pools(void);     /* hooks/pool_list.c */
void vgi_forget_pooled(void);    /* hooks/pool.c */
void vgi_forget_streams(void);   /* hooks/stream.c */
void vgi_forget_graphs(void);    /* hooks/graph.c */

/* hooks/context_limits.c. What a context's heap is charged and no measure of a module has met yet: drivers take it with
 * the first module that uses it; and that one has met so much. */
uint64_t vgi_unmet_heap(const void *context);
void vgi_met_heap(const void *context, uint64_t bytes);
void vgi_forget_heaps(void);

/* hooks/pool_account.c. What the pools are charged with for calls that are over. */
uint64_t vgi_pool_bytes(void);

/* Charges the pools on a card (-1: on all) with what they have reserved now; and makes them give
 * back what they do not use. False: none holds anything there. */
bool vgi_settle_pools(int card);
bool vgi_trim_pools(int card);

/* The region's lock between processes and threads of this one. */
bool vgi_region_lock(unsigned milliseconds);
void vgi_region_unlock(void);

/* With the region locked: who of its owners is gone. */
struct vgi_judge vgi_judge_of_owners(uint64_t *own_namespace);

#endif
