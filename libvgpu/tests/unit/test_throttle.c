/* The bucket and the outer loop, on made-up time. */
#include "core/throttle.h"

#include <pthread.h>

#include "check.h"

#define MS 1000000ull
#define SECOND (1000 * MS)
#define START (1000 * SECOND)

static uint64_t wait_of(struct vg_card_compute *card, uint64_t now, unsigned percent, uint64_t work) {
    return vgi_bucket_take(card, now, percent, work).wait_ns;
}

/* Asks for work of that length as fast as it is granted; what was granted from START on. */
static uint64_t granted_within(struct vg_card_compute *card, unsigned percent, uint64_t work, uint64_t seconds) {
    uint64_t granted = 0;
    for (uint64_t now = START; now < START + seconds * SECOND;) {
        uint64_t wait = wait_of(card, now, percent, work);
        granted += wait == 0 ? work : 0;
        now += wait;
    }
    return granted;
}

static void test_average(void) {
    static const uint64_t lengths[] = {MS / 50, MS, 33 * MS, 200 * MS, 3 * SECOND};
    char what[64];
    for (unsigned percent = 1; percent < 100; percent += 14)
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            struct vg_card_compute card = {0};
            uint64_t seconds = 100, ideal = seconds * SECOND / 100 * percent;
            uint64_t granted = granted_within(&card, percent, lengths[i], seconds);
            snprintf(what, sizeof what, "%u %% of %llu ns", percent, (unsigned long long)lengths[i]);
            CHECK_THAT(granted + ideal / 5000 >= ideal, what);
            CHECK_THAT(granted <= ideal + (uint64_t)VGI_BURST_NS + lengths[i] + 1000, what);
        }
}

static void test_idle_saves_a_burst(void) {
    struct vg_card_compute card = {0};
    CHECK_EQUAL(wait_of(&card, START, 50, 80 * MS), 0); /* 50 ms were saved up: 30 ms of debt */
    CHECK_EQUAL(wait_of(&card, START, 50, 1) / MS, 60);
    CHECK(wait_of(&card, START + 60 * MS - 1000, 50, 1) > 0);
    CHECK_EQUAL(wait_of(&card, START + 61 * MS, 50, 40 * MS), 0);
    CHECK_EQUAL(wait_of(&card, START + 3600 * SECOND, 50, 51 * MS), 0); /* an idle hour is worth no more */
    CHECK(wait_of(&card, START + 3600 * SECOND, 50, 1) > 0);
}

/* Many short gaps earn what a long one does. */
static void test_short_gaps(void) {
    struct vg_card_compute card = {0};
    CHECK_EQUAL(wait_of(&card, START, 33, SECOND), 0);
    uint64_t due = START + wait_of(&card, START, 33, 1), now = START;
    while (now < due)
        (void)wait_of(&card, now += 101, 33, 1);
    CHECK_EQUAL(wait_of(&card, due + 1000, 33, 1), 0);
}

static void test_correction(void) {
    struct vg_card_compute card = {0};
    CHECK_EQUAL(wait_of(&card, START, 10, 50000), 0); /* a guess */
    vgi_bucket_correct(&card, (int64_t)(200 * MS));   /* it was 200 ms */
    CHECK_EQUAL(wait_of(&card, START, 10, 1) / MS, 1900);
    vgi_bucket_correct(&card, -(int64_t)(200 * MS));
    CHECK_EQUAL(wait_of(&card, START, 10, 1), 0);
    CHECK_EQUAL(atomic_load(&card.work_ns), 50001);
}

/* A limit that is raised shortens what is left of a wait. */
static void test_live_change(void) {
    struct vg_card_compute card = {0};
    CHECK_EQUAL(wait_of(&card, START, 10, 110 * MS), 0);
    CHECK_EQUAL(wait_of(&card, START, 10, 1) / MS, 1000);
    CHECK_EQUAL(wait_of(&card, START, 50, 1) / MS, 200);
}

/* The file is the tenant's to write: nonsense in it makes no wait without end, and no wild number. */
static void test_nonsense(void) {
    static const int64_t tokens[] = {INT64_MIN, INT64_MIN + 1, -1, 0, 1, INT64_MAX};
    static const uint64_t words[] = {0, 1, START, START + 10 * MS, START + 5000 * SECOND, UINT64_MAX};
    for (size_t i = 0; i < 6; i++)
        for (size_t k = 0; k < 6; k++)
            for (unsigned percent = 1; percent < 100; percent += 49) {
                struct vg_card_compute card = {.tokens_ns = tokens[i],
                                               .refilled_at_ns = words[k],
                                               .granted_until_ns = words[k],
                                               .work_ns = words[k],
                                               .scale = words[k],
                                               .mean_busy = words[k],
                                               .mean_work = words[k]};
                CHECK(wait_of(&card, START, percent, MS) <= (uint64_t)VGI_MAX_DEBT_NS * 100 / percent + 200);
                CHECK(wait_of(&card, START, percent, UINT64_MAX) <= (uint64_t)VGI_MAX_DEBT_NS * 100 / percent + 200);
                vgi_bucket_correct(&card, INT64_MAX);
                vgi_bucket_correct(&card, INT64_MIN + 1);
                vgi_scale_learn(&card, 50, UINT64_MAX, SECOND);
                CHECK(vgi_scale(&card) >= VGI_SCALE_ONE / 16 && vgi_scale(&card) <= 16 * VGI_SCALE_ONE);
            }
}

/* Threads that take side by side: what is granted is what was there. */
static struct vg_card_compute contended;
static _Atomic uint64_t contended_granted;

static void *take_side_by_side(void *unused) {
    (void)unused;
    for (int i = 0; i < 200000; i++)
        if (wait_of(&contended, START + (uint64_t)i * 1000, 50, 700) == 0)
            atomic_fetch_add(&contended_granted, 700);
    return NULL;
}

static void test_threads(void) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, take_side_by_side, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQUAL(atomic_load(&contended.work_ns), contended_granted);
    CHECK(contended_granted <= 100 * MS + 50 * MS + 4 * 700);
    CHECK(contended_granted >= 90 * MS);
}

/* A card of that many processors, whose kernels take twice as long as is thought, or half: how busy it is in the end.
 */
static double closed_loop(unsigned processors, uint64_t threads, double wrong_by, unsigned percent, double *largest) {
    struct vg_card_compute card = {0};
    double busy_ns = 0, seen = 0;
    uint64_t guess = threads / (processors * 2048ull) * 50000 + 50000, work_then = 0, looks = 0;
    uint64_t real = (uint64_t)((double)guess * wrong_by);
    *largest = 0;
    for (uint64_t now = START, look = START + SECOND; now < START + 60 * SECOND;) {
        uint64_t wait = wait_of(&card, now, percent, guess);
        if (wait == 0)
            busy_ns += (double)real;
        now += wait;
        if (now >= look) {
            uint64_t scale = vgi_scale(&card);
            seen = busy_ns / (double)SECOND * 100;
            vgi_scale_learn(&card, seen > 100 ? 100 : (unsigned)(seen + 0.5), card.work_ns - work_then, SECOND);
            double step = (double)vgi_scale(&card) / (double)scale - 1;
            step = step < 0 ? -step : step;
            *largest = step > *largest ? step : *largest;
            work_then = card.work_ns;
            busy_ns = 0;
            look += SECOND;
            looks++;
        }
    }
    CHECK(looks > 50);
    return seen;
}

/* case CUT-01: a step is a share of the whole, at most 3 %, whatever the number of processors; 50 +-5 is reached. */
static void test_scale_by_processors(void) {
    static const double wrong[] = {0.5, 0.8, 1.0, 1.25, 1.7};
    char what[64];
    for (unsigned processors = 20; processors <= 200; processors += 36)
        for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
            double largest = 0, seen = closed_loop(processors, 1000000, wrong[i], 50, &largest);
            snprintf(what, sizeof what, "%u SMs, wrong by %.2f: %.1f %%, step %.4f", processors, wrong[i], seen,
                     largest);
            CHECK_THAT(seen >= 45 && seen <= 55, what);
            CHECK_THAT(largest <= 0.0301, what);
        }
}

static void test_little_use_teaches_nothing(void) {
    struct vg_card_compute card = {0};
    for (int i = 0; i < 100; i++)
        vgi_scale_learn(&card, 0, 2 * MS, SECOND);
    CHECK_EQUAL(vgi_scale(&card), VGI_SCALE_ONE);
    vgi_scale_learn(&card, 101, SECOND, SECOND); /* no percentage */
    vgi_scale_learn(&card, 50, SECOND, 0);
    CHECK_EQUAL(vgi_scale(&card), VGI_SCALE_ONE);
}

int main(void) {
    test_average();
    test_idle_saves_a_burst();
    test_short_gaps();
    test_correction();
    test_live_change();
    test_nonsense();
    test_threads();
    test_scale_by_processors();
    test_little_use_teaches_nothing();
    return check_done();
}
