/* A container is held to its percent of the card's time: all of it is asked for, on a virtual clock, and what was got
 * within ten seconds from the first launch on is counted by the simulated card. */
#include "share.h"

#include <math.h>
#include <stdlib.h>

#include "check.h"

struct row {
    const char *name;
    unsigned sm_count, processes;
    struct share_program program;
};

#define TEN_SECONDS .seconds = 10

static const struct row rows[] = {
    {"short kernels", 108, 1, {SHARE_KERNEL, 10, .threads = 1, TEN_SECONDS}},
    {"kernels of a millisecond", 108, 1, {SHARE_KERNEL, 1000, .threads = 1, TEN_SECONDS}},
    {"long kernels", 108, 1, {SHARE_KERNEL, 200000, .threads = 1, TEN_SECONDS}},
    {"short and long ones in turn", 108, 1, {SHARE_KERNEL, 50, .other_us = 20000, .threads = 1, TEN_SECONDS}},
    {"streams", 108, 1, {SHARE_KERNEL, 500, .threads = 1, .streams = 4, TEN_SECONDS}},
    {"threads", 108, 1, {SHARE_KERNEL, 1000, .threads = 3, TEN_SECONDS}},
    {"threads with a stream each", 108, 1, {SHARE_PER_THREAD, 1000, .threads = 3, TEN_SECONDS}},
    {"processes", 108, 3, {SHARE_KERNEL, 1000, .threads = 1, TEN_SECONDS}},
    {"processes of long kernels", 108, 4, {SHARE_KERNEL, 200000, .threads = 1, TEN_SECONDS}},
    {"processes with threads and streams", 108, 2, {SHARE_KERNEL, 2000, .threads = 2, .streams = 3, TEN_SECONDS}},
    {"cuLaunchKernelEx", 108, 1, {SHARE_EX, 1000, .threads = 1, TEN_SECONDS}},                        /* case CSY-04 */
    {"cuLaunchCooperativeKernel", 108, 1, {SHARE_COOPERATIVE, 1000, .threads = 1, TEN_SECONDS}},      /* case CSY-04 */
    {"cuLaunchGrid", 108, 1, {SHARE_GRID, 1000, .threads = 1, TEN_SECONDS}},                          /* case CSY-04 */
    {"cuLaunchGridAsync", 108, 1, {SHARE_GRID_ASYNC, 1000, .threads = 1, .streams = 2, TEN_SECONDS}}, /* case CSY-04 */
    {"cuLaunchCooperativeKernelMultiDevice",                                                          /* case CSY-04 */
     108,
     1,
     {SHARE_MULTI_DEVICE, 1000, .threads = 1, .streams = 1, TEN_SECONDS}},
    {"graphs", 108, 1, {SHARE_GRAPH, 1000, .threads = 1, TEN_SECONDS}}, /* case CGR-01 */
    {"beside a capture", 108, 1, {SHARE_BESIDE_CAPTURE, 1000, .threads = 1, TEN_SECONDS}},
    {"a small card", 20, 1, {SHARE_KERNEL, 1000, .threads = 1, TEN_SECONDS}},
    {"a large card", 200, 1, {SHARE_KERNEL, 1000, .threads = 1, TEN_SECONDS}},
};

static void check_held(const struct row *row, unsigned percent, bool known_to_nvml) {
    char what[160];
    struct share_container container = {
        .percent = percent, .processes = row->processes, .known_to_nvml = known_to_nvml, .program = row->program};
    bool ran = share_run(row->sm_count, &container, 1);
    double got = (double)container.served_ns / (row->program.seconds * 1e7);
    snprintf(what, sizeof what, "%s%s: %u %% asked for, %.2f %% got", row->name, known_to_nvml ? ", seen by NVML" : "",
             percent, got);
    if (getenv("VGPU_TEST_VERBOSE") != NULL)
        fprintf(stderr, "%s, %llu launches\n", what, (unsigned long long)container.launches);
    CHECK_THAT(ran && fabs(got - percent) <= 3.0, what);
}

int main(int argc, char **argv) {
    static const unsigned percents[] = {10, 30, 50, 90};
    if (share_is_program(argc, argv))
        return 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t k = 0; k < sizeof percents / sizeof percents[0]; k++) {
            check_held(&rows[i], percents[k], false);
            if (k % 2 == 1)
                check_held(&rows[i], percents[k], true);
        }
    return check_done();
}
