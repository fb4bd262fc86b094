/* Measuring launches on the card, by a pair of our own events around one of many. Nothing waits for them. */
#ifndef VGPU_COMPUTE_SAMPLES_H
#define VGPU_COMPUTE_SAMPLES_H

#include <stdbool.h>
#include <stdint.h>

#include "bind/table.h"
#include "core/durations.h"
#include "vgpu/shm_layout.h"

struct vgi_sample;

/* What is measured, and where. */
struct vgi_sample_of {
    struct vgi_duration *entry;
    struct vg_card_compute *card;
    uint64_t charged_ns; /* taken from the bucket for it */
    uint64_t guess_ns;
    uint64_t backlog_ns;
    uint64_t granted_ns; /* at the beginning, to others of the container (where `shared`, to all of it) */
    const _Atomic uint64_t *own_work_ns; /* what this process was granted on the card */
    bool shared; /* others use the card too: only on an idle stream is it certain that nothing is in between */
    CUstream stream;
    bool per_thread; /* a stream of 0 is the thread's own */
    uint64_t
        measuring; /* not 0: a first measure, alone, as this word of the card says; what it truly took is settled */
};

/* Before the launch, on a stream that is not captured. NULL: not now (no event to be had, or a capture forbids it). */
struct vgi_sample *vgi_sample_begin(const struct vgi_sample_of *what);

/* Work granted on the card so far to others than this process; where others use it too, to any: streams overlap. */
uint64_t vgi_granted_to_others(const struct vgi_sample_of *what);

/* As it was begun. */
struct vgi_sample_of vgi_sample_what(const struct vgi_sample *sample);

/* After the launch; the sample is no longer the caller's. */
void vgi_sample_end(struct vgi_sample *sample, bool launched);

/* Learns from those of the current context that are over. */
void vgi_samples_collect(void);

/* A context is gone, and our events with it; at an attach all are. */
void vgi_samples_forget(CUcontext context);
void vgi_samples_forget_all(void);

#endif
