/* What is learned from measures, and how rarely they are taken. */
#include "core/durations.h"

#include "check.h"

static struct vgi_durations table;

static struct vgi_duration *entry_of(uintptr_t function, uint64_t threads) {
    return vgi_duration_find(&table, vgi_duration_key(function, 0, threads));
}

static uint64_t learn(struct vgi_duration *entry, uint64_t elapsed, uint64_t backlog, uint64_t calls) {
    vgi_duration_learn(entry, (struct vgi_measure){elapsed, backlog, calls}, 50000);
    return atomic_load(&entry->estimate_ns);
}

static void test_keys(void) {
    CHECK(entry_of(0x1000, 256) == entry_of(0x1000, 300)); /* of one magnitude */
    CHECK(entry_of(0x1000, 256) != entry_of(0x1000, 4096));
    CHECK(entry_of(0x1000, 256) != entry_of(0x1010, 256));
    CHECK(vgi_duration_key(0x1000, 0, 256) != vgi_duration_key(0x1000, 1, 256));
    vgi_duration_suppose(entry_of(0x1000, 256), 77);
    CHECK_EQUAL(entry_of(0x1000, 256)->estimate_ns, 77);
    vgi_duration_suppose(entry_of(0x1000, 256), 78); /* known already */
    CHECK_EQUAL(entry_of(0x1000, 256)->estimate_ns, 77);
    vgi_duration_forget(&table, vgi_duration_key(0x1000, 0, 256));
    CHECK_EQUAL(entry_of(0x1000, 256)->estimate_ns, 0);
}

/* More functions than places: what is forgotten is unknown, never another's. */
static void test_bounded(void) {
    static struct vgi_durations small;
    uint64_t wrong = 0, kept = 0;
    for (uintptr_t f = 1; f <= 20000; f++) {
        vgi_duration_suppose(vgi_duration_find(&small, vgi_duration_key(f * 64, 0, 1)), f);
        uintptr_t earlier = f - f % 97;
        uint64_t found =
            earlier == 0 ? 0 : vgi_duration_find(&small, vgi_duration_key(earlier * 64, 0, 1))->estimate_ns;
        kept += found == earlier;
        wrong += found != 0 && found != earlier;
    }
    CHECK_EQUAL(wrong, 0);
    CHECK(kept > 5000);
}

static void test_alone(void) {
    struct vgi_duration *entry = entry_of(0x2000, 1);
    CHECK_EQUAL(learn(entry, 10000, 0, 0), 10000); /* the first measure is the estimate */
    CHECK_EQUAL(learn(entry, 12000, 0, 0), 11000); /* then the mean */
    for (int i = 0; i < 100; i++)
        (void)learn(entry, i % 2 == 0 ? 10000 : 30000, 0, 0);
    CHECK(entry->estimate_ns > 17000 && entry->estimate_ns < 22000);
    (void)learn(entry, 1000000000, 0, 0); /* one that the card put aside */
    CHECK(entry->estimate_ns < 28000);
}

/* Where others ran in between only bounds are known. */
static void test_mixed(void) {
    struct vgi_duration *entry = entry_of(0x3000, 1);
    (void)learn(entry, 100000, 0, 0);
    CHECK_EQUAL(learn(entry, 500000, 450000, 0), 100000);              /* between 50 and 500 us */
    CHECK_EQUAL(learn(entry, 500000, VGI_UNKNOWN_BACKLOG, 0), 100000); /* at most 500 */
    CHECK(learn(entry, 50000, 10000, 0) < 100000);
    CHECK(learn(entry, 500000, 100000, 0) > 90000); /* at least 400 */
    entry = entry_of(0x3100, 1);
    CHECK_EQUAL(learn(entry, 900000, 600000, 0), 300000); /* a first one: provisional, */
    CHECK_EQUAL(learn(entry, 700000, 0, 0), 700000);      /* so a good one counts alone */
    entry = entry_of(0x3200, 1);
    CHECK_EQUAL(learn(entry, 900000, 900000, 0), 50000); /* no less than the guess */
}

/* What is shorter than the host's calls is only known to be short. */
static void test_hidden(void) {
    struct vgi_duration *entry = entry_of(0x4000, 1);
    CHECK_EQUAL(learn(entry, 4000, 0, 4000), 500);
    CHECK_EQUAL(learn(entry, 3000, 0, 0), 3000); /* in a busy stream it is measured */
    CHECK_EQUAL(learn(entry, 4000, 0, 4000), 3000);
    CHECK_EQUAL(learn(entry_of(0x4100, 1), 0, 0, 0), 1); /* never "unknown" */
}

/* Half of the time a launch is measured at first, in the end one of 256, or each 100 ms of the card's time. */
static void test_rareness(void) {
    static const struct {
        uint64_t duration;
        unsigned least, most;
    } rows[] = {{1000, 40, 60}, {1000000, 90, 110}, {50000000, 4900, 5100}, {200000000, 10000, 10000}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct vgi_duration *entry = entry_of(0x5000 + i, 1);
        unsigned measured = 0;
        for (int launch = 0; launch < 10000; launch++)
            if (vgi_duration_is_due(entry)) {
                measured++;
                (void)learn(entry, rows[i].duration, 0, 0);
            }
        CHECK(measured >= rows[i].least && measured <= rows[i].most);
    }
    struct vgi_duration *entry = entry_of(0x6000, 1);
    CHECK(vgi_duration_is_due(entry));
    vgi_duration_put_off(entry);
    CHECK(!vgi_duration_is_due(entry));
}

/* Linear in the number of processors. */
static void test_guess(void) {
    CHECK_EQUAL(vgi_duration_guess(1, 108 * 2048), 50000);
    CHECK_EQUAL(vgi_duration_guess(108 * 2048, 108 * 2048), 50000);
    CHECK_EQUAL(vgi_duration_guess(108 * 2048 * 20, 108 * 2048), 20 * 50000);
    CHECK_EQUAL(vgi_duration_guess(108 * 2048 * 20, 54 * 2048), 40 * 50000);
    CHECK_EQUAL(vgi_duration_guess(0, 0), 50000);
    CHECK(vgi_duration_guess(UINT64_MAX, 1) <= 10000 * 50000ull);
}

int main(void) {
    test_keys();
    test_bounded();
    test_alone();
    test_mixed();
    test_hidden();
    test_rareness();
    test_guess();
    return check_done();
}
