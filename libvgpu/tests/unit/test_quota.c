/* Charging against the region's sums: bounds, wrap-around, threads, and waiting for a recompute. */
#include <pthread.h>
#include <stdlib.h>

#include "check.h"
#include "core/quota.h"
#include "core/region.h"

static struct vg_region *make_region(uint64_t limit) {
    struct vg_region *region = calloc(1, VG_FILE_BYTES);
    struct vgi_limits limits = {.memory_bytes = {limit}, .priority = 1};
    vgi_region_lay_out(region, &limits, 1000);
    region->slot_count = 16;
    return region;
}

static void test_bounds(void) {
    static const struct {
        const char *id;
        uint64_t limit, used, ask;
        enum vgi_charge wanted;
    } rows[] = {
        {"nothing used, all asked", 100, 0, 100, VGI_CHARGED},
        {"one byte too many", 100, 0, 101, VGI_REFUSED},
        {"the last byte", 100, 99, 1, VGI_CHARGED},
        {"one more than the last", 100, 99, 2, VGI_REFUSED},
        {"full", 100, 100, 1, VGI_REFUSED},
        {"over the limit already", 100, 120, 1, VGI_REFUSED},
        {"asked more than there are numbers", 100, 50, UINT64_MAX, VGI_REFUSED},
        {"unlimited", 0, 1ull << 46, 1ull << 46, VGI_CHARGED},
        {"unlimited, but beyond what can be counted", 0, VG_USED_MAX - 5, 6, VGI_REFUSED},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct vg_region *region = make_region(rows[i].limit);
        vg_extension_of(region)->sums[0].word = rows[i].used;
        CHECK_EQUAL_THAT(vgi_quota_charge(region, 3, 0, VGI_KIND_DATA, rows[i].ask, rows[i].limit), rows[i].wanted,
                         rows[i].id);
        uint64_t charged = rows[i].wanted == VGI_CHARGED ? rows[i].ask : 0;
        CHECK_THAT(vgi_quota_used(region, 0) == rows[i].used + charged, rows[i].id);
        CHECK_THAT(region->slots[3].used[0].total == charged, rows[i].id);
        CHECK_THAT(region->slots[3].used[0].data == charged, rows[i].id);
        free(region);
    }
}

static void test_give_back_never_wraps(void) {
    struct vg_region *region = make_region(100);
    CHECK_EQUAL(vgi_quota_charge(region, 0, 0, VGI_KIND_DATA, 40, 100), VGI_CHARGED);
    region->slots[0].used[0].total = 10; /* someone wrote nonsense */
    CHECK_EQUAL(vgi_quota_give_back(region, 0, 0, VGI_KIND_DATA, 40), VGI_CHARGED);
    CHECK_EQUAL(region->slots[0].used[0].total, 0);
    CHECK_EQUAL(vgi_quota_used(region, 0), 0);
    CHECK_EQUAL(vgi_quota_give_back(region, 0, 0, VGI_KIND_DATA, 1), VGI_CHARGED);
    CHECK_EQUAL(vgi_quota_used(region, 0), 0);
    free(region);
}

/* While the slots are added up nothing is charged or given back; who is late is marked, and seen by the one at it. */
static void test_waits_for_recompute(void) {
    struct vg_region *region = make_region(100);
    CHECK_EQUAL(vgi_quota_charge(region, 0, 0, VGI_KIND_DATA, 40, 100), VGI_CHARGED);
    _Atomic uint64_t *word = &vg_extension_of(region)->sums[0].word;
    *word = VG_SUM_UNDER_WAY | 77; /* whose ticket is 77 was killed */
    CHECK_EQUAL(vgi_quota_charge(region, 0, 0, VGI_KIND_DATA, 1, 100), VGI_RECOMPUTING);
    CHECK_EQUAL(vgi_quota_give_back(region, 0, 0, VGI_KIND_DATA, 1), VGI_RECOMPUTING);
    CHECK_EQUAL(vgi_quota_used(region, 0), 40); /* by the slots */
    CHECK(!vgi_quota_recompute(region, 0, 1));
    CHECK(!vgi_quota_take_over(region, 0, 1, VG_SUM_UNDER_WAY | 78)); /* another is at it by now */
    CHECK(vgi_quota_take_over(region, 0, 1, VG_SUM_UNDER_WAY | 77));
    CHECK_EQUAL(vgi_quota_used(region, 0), 40);
    CHECK_EQUAL(*word, 2 * VG_SUM_UNDER_WAY + VG_SUM_UNDER_WAY * 2 + 40);
    free(region);
}

/* The epoch comes round after 2^14 times; nothing depends on its size but who sleeps that long. */
static void test_epoch_comes_round(void) {
    struct vg_region *region = make_region(100);
    CHECK_EQUAL(vgi_quota_charge(region, 0, 0, VGI_KIND_DATA, 40, 100), VGI_CHARGED);
    for (uint64_t i = 0; i < 40000; i++)
        CHECK(vgi_quota_recompute(region, 0, i));
    CHECK_EQUAL(vgi_quota_used(region, 0), 40);
    CHECK_EQUAL(vgi_quota_charge(region, 0, 0, VGI_KIND_DATA, 60, 100), VGI_CHARGED);
    CHECK_EQUAL(vgi_quota_charge(region, 0, 0, VGI_KIND_DATA, 1, 100), VGI_REFUSED);
    free(region);
}

/* Words as no process of ours leaves them, but a tenant can. */
static void test_nonsense(void) {
    static const uint64_t totals[] = {UINT64_MAX, UINT64_MAX - 5, VG_USED_MAX, VG_USED_MAX + 1, 1ull << 63};
    for (size_t i = 0; i < sizeof totals / sizeof totals[0]; i++) {
        struct vg_region *region = make_region(100);
        region->slot_count = 2;
        region->slots[1].used[0].total = totals[i];
        CHECK(vgi_quota_recompute(region, 0, 1));
        CHECK_EQUAL(vgi_quota_used(region, 0), VG_USED_MAX);
        CHECK_EQUAL(vgi_quota_charge(region, 0, 0, VGI_KIND_DATA, 1, 100), VGI_REFUSED);
        CHECK_EQUAL(vgi_quota_charge(region, 1, 0, VGI_KIND_DATA, 10, 0), VGI_REFUSED);
        CHECK_EQUAL(vgi_quota_give_back(region, 1, 0, VGI_KIND_DATA, 10), VGI_CHARGED);
        CHECK_EQUAL(region->slots[1].used[0].total, totals[i] - 10);
        free(region);
    }
}

static void test_live_limit(void) {
    struct vg_region *region = make_region(100);
    CHECK_EQUAL(vgi_quota_charge(region, 0, 0, VGI_KIND_DATA, 100, 100), VGI_CHARGED);
    CHECK_EQUAL(vgi_quota_charge(region, 0, 0, VGI_KIND_DATA, 50, 150), VGI_CHARGED); /* it was raised */
    CHECK_EQUAL(vgi_quota_charge(region, 0, 0, VGI_KIND_DATA, 1, 100), VGI_REFUSED);
    free(region);
}

static void test_kinds(void) {
    struct vg_region *region = make_region(100);
    CHECK_EQUAL(vgi_quota_charge(region, 1, 2, VGI_KIND_CONTEXT, 70, 0), VGI_CHARGED); /* overhead knows no limit */
    CHECK_EQUAL(vgi_quota_charge(region, 1, 2, VGI_KIND_MODULE, 50, 0), VGI_CHARGED);
    CHECK_EQUAL(vgi_quota_charge(region, 1, 2, VGI_KIND_DATA, 1, 100), VGI_REFUSED);
    CHECK_EQUAL(vgi_quota_give_back(region, 1, 2, VGI_KIND_MODULE, 50), VGI_CHARGED);
    CHECK_EQUAL(vgi_quota_charge(region, 1, 2, VGI_KIND_DATA, 30, 100), VGI_CHARGED);
    const struct vg_usage *used = &region->slots[1].used[2];
    CHECK(used->context == 70 && used->module == 0 && used->data == 30 && used->total == 100);
    CHECK_EQUAL(vgi_quota_used(region, 2), 100);
    free(region);
}

static void test_view(void) {
    static const struct {
        const char *id;
        uint64_t limit, used, card_total, card_free;
        struct vgi_memory_view wanted;
    } rows[] = {
        {"the slice", 100, 30, 1000, 900, {100, 30, 70}},
        {"more used than allowed (CMM-02)", 100, 120, 1000, 900, {100, 120, 0}},
        {"the card has less than the slice", 100, 30, 1000, 20, {100, 30, 20}},
        {"limit above the card", 5000, 30, 1000, 900, {1000, 30, 900}},
        {"no limit", 0, 30, 1000, 900, {1000, 30, 900}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct vgi_memory_view view =
            vgi_quota_view(rows[i].limit, rows[i].used, rows[i].card_total, rows[i].card_free);
        CHECK_EQUAL_THAT(view.total, rows[i].wanted.total, rows[i].id);
        CHECK_EQUAL_THAT(view.used, rows[i].wanted.used, rows[i].id);
        CHECK_EQUAL_THAT(view.free, rows[i].wanted.free, rows[i].id);
    }
}

#define THREADS 8
#define ROUNDS 20000
#define LIMIT 1000

struct racer {
    struct vg_region *region;
    unsigned slot;
    uint64_t held;
};

static void *race(void *argument) {
    struct racer *racer = argument;
    uint64_t state = 77 + racer->slot;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t bytes = check_random(&state) % 200;
        if (check_random(&state) % 2 == 0) {
            if (vgi_quota_charge(racer->region, racer->slot, 0, VGI_KIND_DATA, bytes, LIMIT) == VGI_CHARGED)
                racer->held += bytes;
        } else {
            bytes = bytes < racer->held ? bytes : racer->held;
            vgi_quota_give_back(racer->region, racer->slot, 0, VGI_KIND_DATA, bytes);
            racer->held -= bytes;
        }
        if (vgi_quota_used(racer->region, 0) > LIMIT)
            return racer;
    }
    return NULL;
}

static void test_threads_never_pass_the_limit(void) {
    struct vg_region *region = make_region(LIMIT);
    pthread_t threads[THREADS];
    struct racer racers[THREADS];
    uint64_t sum = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        racers[i] = (struct racer){.region = region, .slot = i};
        pthread_create(&threads[i], NULL, race, &racers[i]);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        void *overran = NULL;
        pthread_join(threads[i], &overran);
        CHECK(overran == NULL);
        CHECK_EQUAL(region->slots[i].used[0].total, racers[i].held);
        sum += racers[i].held;
    }
    CHECK_EQUAL(vgi_quota_used(region, 0), sum);
    free(region);
}

int main(void) {
    test_bounds();
    test_give_back_never_wraps();
    test_waits_for_recompute();
    test_epoch_comes_round();
    test_nonsense();
    test_live_limit();
    test_kinds();
    test_view();
    test_threads_never_pass_the_limit();
    return check_done();
}
