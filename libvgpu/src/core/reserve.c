#include "reserve.h"

#include <stddef.h>

void vgi_reserve_claim(struct vgi_reserve *reserve, struct vgi_reserve_call *call, uint64_t bytes) {
    *call = (struct vgi_reserve_call){.claim = bytes};
    reserve->under_way += bytes;
}

void vgi_reserve_land(struct vgi_reserve *reserve, struct vgi_reserve_call *call) {
    call->ticket = ++reserve->tickets;
    call->next = reserve->calls;
    reserve->calls = call;
    reserve->under_way -= call->claim;
    reserve->landed += call->claim;
}

/* Claims of the calls that landed no later than that one. */
static uint64_t covered(const struct vgi_reserve *reserve, uint64_t ticket) {
    uint64_t sum = 0;
    for (const struct vgi_reserve_call *call = reserve->calls; call != NULL; call = call->next)
        sum += call->ticket <= ticket ? call->claim : 0;
    return sum;
}

static void end_until(struct vgi_reserve *reserve, uint64_t ticket) {
    for (struct vgi_reserve_call **link = &reserve->calls; *link != NULL;) {
        struct vgi_reserve_call *call = *link;
        if (call->ticket > ticket) {
            link = &call->next;
            continue;
        }
        *link = call->next;
        reserve->landed -= call->claim;
        call->settled = true;
    }
}

bool vgi_reserve_settle(struct vgi_reserve *reserve, struct vgi_reserve_call *call, uint64_t reserved,
                        uint64_t *surplus, uint64_t *missing) {
    *surplus = *missing = 0;
    if (call->settled)
        return true;
    uint64_t charged = reserve->settled + reserve->under_way + reserve->landed;
    uint64_t ended = covered(reserve, call->ticket);
    if (reserved > charged) {
        *missing = reserved - ended - reserve->settled; /* the other claims may still be used up */
        return false;
    }
    uint64_t most = reserve->settled + ended;
    reserve->settled = reserved < most ? reserved : most;
    end_until(reserve, call->ticket);
    *surplus = most - reserve->settled;
    return true;
}

bool vgi_reserve_add(struct vgi_reserve *reserve, struct vgi_reserve_call *call, uint64_t bytes) {
    if (call->settled)
        return false;
    call->claim += bytes;
    reserve->landed += bytes;
    return true;
}

static void end(struct vgi_reserve *reserve, struct vgi_reserve_call *call) {
    struct vgi_reserve_call **link = &reserve->calls;
    while (*link != call)
        link = &(*link)->next;
    *link = call->next;
    reserve->landed -= call->claim;
    call->settled = true;
}

void vgi_reserve_keep(struct vgi_reserve *reserve, struct vgi_reserve_call *call) {
    if (call->settled)
        return;
    reserve->settled += call->claim;
    end(reserve, call);
}

uint64_t vgi_reserve_drop(struct vgi_reserve *reserve, struct vgi_reserve_call *call) {
    if (call->settled)
        return 0;
    end(reserve, call);
    return call->claim;
}
