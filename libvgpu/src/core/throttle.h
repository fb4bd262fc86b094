/* Holding a container to its percent of a card, in units of device time.
 *
 * One bucket per card, shared by all processes of the container: it fills with percent x wall time up to a bounded
 * burst, and a launch takes what its kernel will cost. Whoever finds it above zero may take more than is in it: long
 * kernels make debt, which is paid off before the next launch, so the average is exact whatever the lengths are. */
#ifndef VGPU_CORE_THROTTLE_H
#define VGPU_CORE_THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

#include "vgpu/shm_layout.h"

#define VGI_BURST_NS 100000000ll       /* of wall time that an idle container may save up */
#define VGI_MAX_DEBT_NS 600000000000ll /* no launch costs more, no debt grows beyond */

/* Where the bucket stood when a launch took from it. */
struct vgi_taking {
    uint64_t wait_ns;        /* 0 = taken; else when to ask again */
    uint64_t granted_before; /* when the work granted before should be over */
    uint64_t granted_after;
};

/* One try to take what work of that estimated length costs. `percent` is 1 to 99. */
struct vgi_taking vgi_bucket_take(struct vg_card_compute *card, uint64_t now_ns, unsigned percent, uint64_t work_ns);

/* Work was so much longer than was taken for it (negative: shorter). */
void vgi_bucket_correct(struct vg_card_compute *card, int64_t more_ns);

/* ---- what the sampler sees corrects what work costs ---- */

#define VGI_SCALE_ONE (1u << 20)

uint64_t vgi_scale(const struct vg_card_compute *card);
uint64_t vgi_scaled(uint64_t ns, uint64_t scale);

/* From one look at the container's true load on the card, and the work granted to it in the same time: estimates are
 * all too long where kernels run side by side or other containers use the card. A step of at most 3 %, whatever the
 * card. */
void vgi_scale_learn(struct vg_card_compute *card, unsigned busy_percent, uint64_t work_ns, uint64_t window_ns);

#endif
