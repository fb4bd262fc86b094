#include "throttle.h"

#define LONGEST_GAP_HUNDREDS 1000000000000000ull /* three years: products stay in 64 bits */
#define CLOCK_DISAGREEMENT_NS 1000000000ull      /* a stamp further ahead is of another boot, or nonsense */

#define LOAD(word) atomic_load_explicit(&(word), memory_order_relaxed)
#define STORE(word, value) atomic_store_explicit(&(word), (value), memory_order_relaxed)
#define SWAP(word, expected, value)                                                                                    \
    atomic_compare_exchange_weak_explicit(&(word), &(expected), (value), memory_order_relaxed, memory_order_relaxed)

static int64_t burst_of(unsigned percent) {
    return VGI_BURST_NS * percent / 100;
}

static int64_t bounded(int64_t tokens, int64_t burst) {
    return tokens > burst ? burst : tokens < -VGI_MAX_DEBT_NS ? -VGI_MAX_DEBT_NS : tokens;
}

static void add_tokens(struct vg_card_compute *card, int64_t gain, int64_t burst) {
    int64_t tokens = LOAD(card->tokens_ns);
    while (!SWAP(card->tokens_ns, tokens, bounded(bounded(tokens, burst) + gain, burst)))
        ;
}

/* Whoever moves the stamp on adds what was earned since. Killed in between it loses a moment's earnings, no more. */
static void refill(struct vg_card_compute *card, uint64_t now, unsigned percent) {
    uint64_t at = LOAD(card->refilled_at_ns);
    if (now <= at) {
        if (at - now > CLOCK_DISAGREEMENT_NS)
            STORE(card->refilled_at_ns, now);
        return;
    }
    /* Whole hundreds of nanoseconds: many short gaps earn exactly what a long one does. */
    uint64_t gap = (now - at) / 100;
    if (gap > 0 && SWAP(card->refilled_at_ns, at, at + gap * 100))
        add_tokens(card, (int64_t)((gap > LONGEST_GAP_HUNDREDS ? LONGEST_GAP_HUNDREDS : gap) * percent),
                   burst_of(percent));
}

static void note_granted(struct vg_card_compute *card, uint64_t now, uint64_t work, struct vgi_taking *taking) {
    uint64_t until = LOAD(card->granted_until_ns);
    do {
        /* Nonsense in the file is not believed further than debts go. */
        bool believable = until > now && until - now <= (uint64_t)VGI_MAX_DEBT_NS;
        taking->granted_before = until;
        taking->granted_after = (believable ? until : now) + work;
    } while (!SWAP(card->granted_until_ns, until, taking->granted_after));
}

struct vgi_taking vgi_bucket_take(struct vg_card_compute *card, uint64_t now, unsigned percent, uint64_t work_ns) {
    struct vgi_taking taking = {.wait_ns = 0};
    uint64_t work = work_ns > (uint64_t)VGI_MAX_DEBT_NS ? (uint64_t)VGI_MAX_DEBT_NS : work_ns;
    uint64_t scaled = vgi_scaled(work, vgi_scale(card));
    int64_t cost = scaled > (uint64_t)VGI_MAX_DEBT_NS ? VGI_MAX_DEBT_NS : (int64_t)scaled;
    refill(card, now, percent);
    int64_t burst = burst_of(percent), tokens = LOAD(card->tokens_ns);
    do {
        int64_t usable = bounded(tokens, burst);
        if (usable <= 0) {
            taking.wait_ns = (uint64_t)(1 - usable) * 100 / percent + 100; /* the stamp moves by hundreds */
            return taking;
        }
    } while (!SWAP(card->tokens_ns, tokens, bounded(tokens, burst) - cost));
    note_granted(card, now, work, &taking);
    atomic_fetch_add_explicit(&card->work_ns, work, memory_order_relaxed);
    return taking;
}

void vgi_bucket_correct(struct vg_card_compute *card, int64_t more_ns) {
    uint64_t scaled = vgi_scaled((uint64_t)(more_ns < 0 ? -more_ns : more_ns), vgi_scale(card));
    int64_t bounded_more = scaled > (uint64_t)VGI_MAX_DEBT_NS ? VGI_MAX_DEBT_NS : (int64_t)scaled;
    add_tokens(card, more_ns < 0 ? bounded_more : -bounded_more, VGI_BURST_NS);
    atomic_fetch_add_explicit(&card->work_ns, (uint64_t)more_ns, memory_order_relaxed);
}

/* ---- the outer loop ---- */

#define LEAST_SCALE (VGI_SCALE_ONE / 16)
#define MOST_SCALE (VGI_SCALE_ONE * 16)
#define MEMORY 64        /* looks that the means go over: three seconds */
#define TOO_LITTLE 5000u /* parts per million of time from which nothing can be told */
#define STEP_DIVISOR 4

uint64_t vgi_scale(const struct vg_card_compute *card) {
    uint64_t scale = LOAD(card->scale);
    return scale == 0 ? VGI_SCALE_ONE : scale < LEAST_SCALE ? LEAST_SCALE : scale > MOST_SCALE ? MOST_SCALE : scale;
}

uint64_t vgi_scaled(uint64_t ns, uint64_t scale) {
    uint64_t most = (uint64_t)VGI_MAX_DEBT_NS;
    uint64_t scaled = (ns > most ? most : ns) * scale / VGI_SCALE_ONE;
    return scaled == 0 ? 1 : scaled;
}

static uint64_t mean(_Atomic uint64_t *word, uint64_t ppm) {
    uint64_t before = LOAD(*word) > 100000000 ? 0 : LOAD(*word);
    uint64_t next = before + ppm / MEMORY - before / MEMORY;
    STORE(*word, next);
    return next;
}

void vgi_scale_learn(struct vg_card_compute *card, unsigned busy_percent, uint64_t work_ns, uint64_t window_ns) {
    if (window_ns == 0 || busy_percent > 100)
        return;
    uint64_t work_ppm = work_ns / (window_ns / 1000000 + 1);
    uint64_t busy = mean(&card->mean_busy, busy_percent * 10000ull);
    uint64_t work = mean(&card->mean_work, work_ppm > 100000000 ? 100000000 : work_ppm);
    if (work < TOO_LITTLE)
        return;
    int64_t scale = (int64_t)vgi_scale(card), wanted = (int64_t)(busy * VGI_SCALE_ONE / work);
    int64_t step = (wanted - scale) / STEP_DIVISOR, most = scale * 3 / 100;
    int64_t next = scale + (step > most ? most : step < -most ? -most : step);
    STORE(card->scale, next < LEAST_SCALE ? LEAST_SCALE : next > MOST_SCALE ? MOST_SCALE : (uint64_t)next);
}
