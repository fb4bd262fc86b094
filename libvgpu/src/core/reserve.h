/* The account of a pool of memory whose true size only the driver knows: it is asked after every call that may change
 * it.
 *
 * Charged is always `settled` plus the claims of calls that are not settled. A call claims the most that it may add, is
 * made, lands (takes a ticket), looks at the pool's size, and settles. A look saw at least all that landed before it,
 * so it settles those calls too, unless a look with a greater ticket already did. What it saw of calls that have not
 * landed is covered by their claims. When no call is under way the account is what the last look saw; meanwhile it is
 * never below the truth, as long as no call adds more than it claimed. The caller holds a lock. */
#ifndef VGPU_CORE_RESERVE_H
#define VGPU_CORE_RESERVE_H

#include <stdbool.h>
#include <stdint.h>

struct vgi_reserve_call {
    uint64_t claim;
    uint64_t ticket;
    bool settled; /* by itself or by a later one */
    struct vgi_reserve_call *next;
};

struct vgi_reserve {
    uint64_t settled;
    uint64_t under_way;             /* claims of calls that have not landed */
    uint64_t landed;                /* claims of those that have, and are not settled */
    uint64_t tickets;               /* given out */
    struct vgi_reserve_call *calls; /* landed and not settled */
};

/* Before the driver's call, once `bytes` are charged. */
void vgi_reserve_claim(struct vgi_reserve *reserve, struct vgi_reserve_call *call, uint64_t bytes);

/* After it, and before the look. */
void vgi_reserve_land(struct vgi_reserve *reserve, struct vgi_reserve_call *call);

/* After the look: `surplus` bytes of charge are to be given back. False: the pool is larger than all that is charged
 * for it; `missing` bytes are to be charged, and added, and it is tried again. */
bool vgi_reserve_settle(struct vgi_reserve *reserve, struct vgi_reserve_call *call, uint64_t reserved,
                        uint64_t *surplus, uint64_t *missing);

/* Adds to the claim of a landed call. False: it has been settled meanwhile, and the bytes are not needed. */
bool vgi_reserve_add(struct vgi_reserve *reserve, struct vgi_reserve_call *call, uint64_t bytes);

/* The pool could not be looked at: the claim stays charged until someone can. */
void vgi_reserve_keep(struct vgi_reserve *reserve, struct vgi_reserve_call *call);

/* The same after a call that failed: its claim is given back, unless a later look did that. Returns how much. */
uint64_t vgi_reserve_drop(struct vgi_reserve *reserve, struct vgi_reserve_call *call);

#endif
