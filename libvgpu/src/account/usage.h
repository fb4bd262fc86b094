/* What the card's driver says is used of it, to measure what comes along with a call and cannot be known beforehand. */
#ifndef VGPU_USAGE_H
#define VGPU_USAGE_H

#include <stdbool.h>
#include <stdint.h>

#define VGI_MOST_LISTED 256

struct vgi_usage {
    bool listed;            /* the driver lists this process on the card */
    bool has_list;          /* it lists processes at all */
    bool has_card;          /* the card's own sum is known */
    uint64_t process_bytes; /* 0 while it is not listed */
    uint64_t card_bytes;
    uint64_t counted_first,
        counted_most;   /* of this process on the card, by us: before the driver was asked, and since */
    uint64_t expected;  /* charged before, and perhaps taken only now */
    bool quiet;         /* no call was under way that takes or frees memory */
    unsigned newcomers; /* processes listed now and not before: this one is among them where the driver lists it by a
                         * pid that is not known here, the host's */
    uint64_t newcomer_bytes; /* the least that one of them uses */
    unsigned pid_count;
    unsigned pids[VGI_MOST_LISTED]; /* whom the driver lists */
};

/* Valid while attached. `before` is an earlier reading, NULL where this is the first. */
void vgi_read_usage(unsigned card, const struct vgi_usage *before, struct vgi_usage *usage);

/* By how much more this process's use has grown than what was counted meanwhile; at most 2 GiB, since what others
 * allocate may be in it where the driver does not list this process, nor anyone new. False: it cannot be told. That is
 * also so where other calls are under way: they count before the driver acts, so their memory could be taken for
 * growth. Only where nothing was counted before is there nothing to mistake. `met` is how much of what was expected
 * came with it. */
bool vgi_usage_growth(const struct vgi_usage *before, const struct vgi_usage *after, uint64_t *bytes, uint64_t *met);

#endif
