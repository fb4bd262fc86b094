/* What changes a container's share of compute while it runs, and what does not: other containers, policies, the
 * monitor, limits changed live, processes that are killed, nonsense in the region. On a virtual clock. */
#include "share.h"

#include <math.h>
#include <stdlib.h>

#include "check.h"

#define SECOND_NS 1e9

static const struct share_program busy = {SHARE_KERNEL, 1000, .threads = 1, .seconds = 10};
static const struct share_program long_kernels = {SHARE_KERNEL, 200000, .threads = 1, .seconds = 10};
static const struct share_program minutes = {SHARE_KERNEL, 20000, .threads = 1, .seconds = 200};

/* Seconds of device time that one container with these settings gets. */
struct row {
    const char *name;
    struct share_container container;
    double least, most; /* seconds of device time */
};

#define ONE .processes = 1

static const struct row rows[] = {
    {"the default policy, the monitor's switch on", {30, ONE, .program = busy}, 2.7, 3.3},
    {"the default policy, switch off", {30, ONE, .program = busy, .actions = {{0, SHARE_SET_SWITCH, 0}}}, 9.7, 10.0},
    {"force, switch off",
     {30, ONE, .policy = "FORCE", .program = busy, .actions = {{0, SHARE_SET_SWITCH, 0}}},
     2.7,
     3.3},
    {"force in small letters",
     {30, ONE, .policy = "force", .program = busy, .actions = {{0, SHARE_SET_SWITCH, 0}}},
     2.7,
     3.3},
    {"disable", {30, ONE, .policy = "DISABLE", .program = busy}, 9.7, 10.0},
    {"disable in small letters", {30, ONE, .policy = "disable", .program = busy}, 9.7, 10.0},
    {"100 percent", {100, ONE, .program = busy}, 9.7, 10.0},
    {"0 percent is no limit", {0, ONE, .program = busy}, 9.7, 10.0},

    {"switched on after five seconds",
     {30, ONE, .program = busy, .actions = {{0, SHARE_SET_SWITCH, 0}, {5000, SHARE_SET_SWITCH, 1}}},
     6.2,
     6.8},
    {"limit raised live", {10, ONE, .program = busy, .actions = {{5000, SHARE_SET_LIMIT, 50}}}, 2.7, 3.3},
    {"limit raised live ends a long wait", /* for 200 ms at 1 %: 20 s */
     {1, ONE, .program = long_kernels, .actions = {{2000, SHARE_SET_LIMIT, 90}}},
     6.7,
     7.7},
    {"limit taken away ends a long wait",
     {1, ONE, .program = long_kernels, .actions = {{2000, SHARE_SET_LIMIT, 100}}},
     7.8,
     8.4},

    {"blocked by the monitor for four seconds",
     {50, ONE, .program = busy, .actions = {{2000, SHARE_BLOCK, -1}, {6000, SHARE_BLOCK, 0}}},
     2.8,
     3.3},
    {"blocked without a limit",
     {100, ONE, .program = busy, .actions = {{2000, SHARE_BLOCK, -1}, {6000, SHARE_BLOCK, 0}}},
     5.9,
     6.2},
    {"disable does not wait for the monitor either",
     {50, ONE, .policy = "DISABLE", .program = busy, .actions = {{2000, SHARE_BLOCK, -1}}},
     9.7,
     10.0},
    {"blocked by a monitor that lives: for ever",
     {50, ONE, .program = minutes, .actions = {{1000, SHARE_KEEP_BLOCKED, 0}}},
     0.3,
     0.7},
    {"blocked by a monitor that died: for a minute and a quarter",
     {50, ONE, .program = minutes, .actions = {{1000, SHARE_BLOCK, -1}}},
     (200 - 75) * 0.47,
     (200 - 75) * 0.52},

    {"a process that samples is killed; the other has the share alone",
     {50, .processes = 2, .known_to_nvml = true, .program = busy, .actions = {{3000, SHARE_KILL, 0}}},
     5.0 - 0.75 - 0.4,
     5.0 - 0.75 + 0.4},
    {"a process that runs its first kernel alone is killed; the other waits for its deadline, no longer",
     {50, .processes = 2, .program = long_kernels, .actions = {{100, SHARE_KILL_MEASURING, 0}}},
     4.3,
     5.3},
    {"nonsense in the region: ones", {30, ONE, .program = busy, .actions = {{3000, SHARE_NONSENSE, 0xff}}}, 0.8, 4.5},
    {"nonsense in the region: large", {30, ONE, .program = busy, .actions = {{3000, SHARE_NONSENSE, 0x7f}}}, 0.8, 4.5},
    {"nonsense in the region: negative",
     {30, ONE, .program = busy, .actions = {{3000, SHARE_NONSENSE, 0x80}}},
     0.8,
     4.5},
    {"nonsense in the region: zeros", {30, ONE, .program = busy, .actions = {{3000, SHARE_NONSENSE, 0}}}, 2.6, 3.4},
};

static void check_row(const struct row *row) {
    char what[160];
    struct share_container container = row->container;
    bool ran = share_run(108, &container, 1);
    double got = (double)container.served_ns / SECOND_NS;
    snprintf(what, sizeof what, "%s: %.2f s got", row->name, got);
    if (getenv("VGPU_TEST_VERBOSE") != NULL)
        fprintf(stderr, "%s\n", what);
    CHECK_THAT(ran && got >= row->least && got <= row->most, what);
}

/* case CUT-05: two containers that both keep the card's queue full, on one card: 10 to 90. */
static void check_shares(unsigned first_us, unsigned second_us) {
    char what[160];
    struct share_container pair[2] = {
        {10, ONE, .known_to_nvml = true, .program = {SHARE_KERNEL, first_us, .threads = 1, .seconds = 30}},
        {90, ONE, .known_to_nvml = true, .program = {SHARE_KERNEL, second_us, .threads = 1, .seconds = 30}},
    };
    bool ran = share_run(108, pair, 2);
    double ratio = (double)pair[1].served_ns / (double)pair[0].served_ns;
    snprintf(what, sizeof what, "kernels of %u us and %u us: %.2f and %.2f %%, 1 : %.2f", first_us, second_us,
             (double)pair[0].served_ns / 3e8, (double)pair[1].served_ns / 3e8, ratio);
    if (getenv("VGPU_TEST_VERBOSE") != NULL)
        fprintf(stderr, "%s\n", what);
    CHECK_THAT(ran && ratio >= 8.1 && ratio <= 9.9, what);
}

/* Without NVML's view nobody gets more than its share, whatever the others do. */
static void check_not_more(unsigned percent) {
    char what[160];
    struct share_container pair[2] = {{percent, ONE, .program = busy}, {100, ONE, .program = busy}};
    bool ran = share_run(108, pair, 2);
    double got = (double)pair[0].served_ns / 1e8;
    snprintf(what, sizeof what, "%u %% beside one without a limit: %.2f %%", percent, got);
    if (getenv("VGPU_TEST_VERBOSE") != NULL)
        fprintf(stderr, "%s\n", what);
    CHECK_THAT(ran && got <= percent + 3.0, what);
}

/* A program that asks for less than its share is not made to wait. */
static void check_little_use(unsigned kernel_us, unsigned pause_us) {
    char what[160];
    struct share_program program = {SHARE_KERNEL, kernel_us, .threads = 1, .pause_us = pause_us, .seconds = 10};
    struct share_container limited = {10, ONE, .program = program}, unlimited = {100, ONE, .program = program};
    bool ran = share_run(108, &limited, 1) && share_run(108, &unlimited, 1);
    snprintf(what, sizeof what, "%u us every %u: %llu launches, %llu without a limit", kernel_us, pause_us,
             (unsigned long long)limited.launches, (unsigned long long)unlimited.launches);
    if (getenv("VGPU_TEST_VERBOSE") != NULL)
        fprintf(stderr, "%s\n", what);
    CHECK_THAT(ran && limited.launches * 100 >= unlimited.launches * 99, what);
}

int main(int argc, char **argv) {
    if (share_is_program(argc, argv))
        return 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_row(&rows[i]);
    check_shares(1000, 1000);
    check_shares(1000, 20000);
    check_shares(20000, 1000);
    check_shares(10, 100);
    check_not_more(10);
    check_not_more(50);
    check_little_use(1000, 100000);
    check_little_use(8000, 100000);
    check_little_use(20, 1000);
    return check_done();
}
