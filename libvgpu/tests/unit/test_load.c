/* The container's part of a card's load, from NVML's samples. */
#include "core/load.h"

#include <stdlib.h>

#include "check.h"

#define OWN_NAMESPACE 4026531999ull
#define NEW_REGION() calloc(1, VG_FILE_BYTES)

static void put_slot(struct vg_region *region, unsigned slot, int32_t host_pid) {
    region->slots[slot].pid = 100 + (int32_t)slot;
    region->slots[slot].host_pid = host_pid;
    region->slots[slot].status = VG_SLOT_RUNNING;
    region->slot_count = (int32_t)slot + 1;
}

/* Own processes count, by their host pid; others on the card do not. */
static void test_sums(void) {
    struct vg_region *region = NEW_REGION();
    const nvmlProcessUtilizationSample_t samples[] = {{.pid = 7001, .timeStamp = 10, .smUtil = 12},
                                                      {.pid = 9000, .timeStamp = 10, .smUtil = 55},
                                                      {.pid = 7002, .timeStamp = 11, .smUtil = 30},
                                                      {.pid = 7002, .timeStamp = 10, .smUtil = 99}};
    put_slot(region, 0, 7001);
    put_slot(region, 1, 7002);
    put_slot(region, 2, 7003);
    region->slots[2].utilisation[1].sm = 40;
    region->slots[0].utilisation[0].sm = 3; /* another card's */
    struct vgi_load load = vgi_load_of(region, 1, OWN_NAMESPACE, samples, 4);
    CHECK(load.known && load.complete);
    CHECK_EQUAL(load.busy_percent, 42);
    CHECK_EQUAL(region->slots[0].utilisation[1].sm, 12);
    CHECK_EQUAL(region->slots[1].utilisation[1].sm, 30); /* the newest */
    CHECK_EQUAL(region->slots[2].utilisation[1].sm, 0);  /* it did nothing */
    CHECK_EQUAL(region->slots[0].utilisation[0].sm, 3);
    free(region);
}

/* case CUT-03: no samples are no news: what was known stays. */
static void test_no_samples(void) {
    struct vg_region *region = NEW_REGION();
    const nvmlProcessUtilizationSample_t others = {.pid = 9000, .timeStamp = 10, .smUtil = 55};
    const nvmlProcessUtilizationSample_t nonsense = {.pid = 7001, .timeStamp = 10, .smUtil = 4000000000u};
    put_slot(region, 0, 7001);
    region->slots[0].utilisation[0].sm = 40;
    CHECK(!vgi_load_of(region, 0, OWN_NAMESPACE, NULL, 0).known);
    CHECK_EQUAL(region->slots[0].utilisation[0].sm, 40);
    CHECK_EQUAL(vgi_load_of(region, 0, OWN_NAMESPACE, &others, 1).busy_percent, 0);
    CHECK_EQUAL(vgi_load_of(region, 0, OWN_NAMESPACE, &nonsense, 1).busy_percent, 100);
    free(region);
}

/* One process that cannot be told among NVML's: the sum would be too small to go by. */
static void test_unknown_pid(void) {
    struct vg_region *region = NEW_REGION();
    const nvmlProcessUtilizationSample_t sample = {.pid = 7001, .timeStamp = 10, .smUtil = 20};
    CHECK(!vgi_any_host_pid(region));
    put_slot(region, 0, 7001);
    put_slot(region, 1, 0);
    region->slots[1].utilisation[0].sm = 9;
    CHECK(vgi_any_host_pid(region));
    CHECK(!vgi_load_of(region, 0, OWN_NAMESPACE, &sample, 1).complete);
    CHECK_EQUAL(region->slots[1].utilisation[0].sm, 9); /* a monitor's, perhaps */
    region->slots[1].status = VG_SLOT_FREE;
    CHECK(vgi_load_of(region, 0, OWN_NAMESPACE, &sample, 1).complete);
    region->slot_count = INT32_MAX; /* nonsense in the file */
    CHECK(vgi_load_of(region, 0, OWN_NAMESPACE, &sample, 1).complete);
    free(region);
}

/* A driver that tells the asking process its own namespace's pids: those of this namespace are found, others not. */
static void test_pids_of_the_namespace(void) {
    struct vg_region *region = NEW_REGION();
    const nvmlProcessUtilizationSample_t samples[] = {{.pid = 100, .timeStamp = 10, .smUtil = 30},
                                                      {.pid = 101, .timeStamp = 10, .smUtil = 20}};
    struct vg_slot_owner *owners = vg_extension_of(region)->owners;
    for (unsigned i = 0; i < 2; i++) {
        put_slot(region, i, 7001 + (int32_t)i);
        owners[i].pid = 100 + (int32_t)i;
        owners[i].pid_namespace = OWN_NAMESPACE;
    }
    CHECK_EQUAL(vgi_load_of(region, 0, OWN_NAMESPACE, samples, 2).busy_percent, 50);
    owners[1].pid_namespace = OWN_NAMESPACE + 1;
    CHECK_EQUAL(vgi_load_of(region, 0, OWN_NAMESPACE, samples, 2).busy_percent, 30);
    CHECK_EQUAL(vgi_load_of(region, 0, 0, samples, 2).busy_percent, 0);
    region->slots[0].host_pid = 0; /* not certain */
    CHECK(!vgi_load_of(region, 0, OWN_NAMESPACE, samples, 2).complete);
    free(region);
}

int main(void) {
    test_pids_of_the_namespace();
    test_sums();
    test_no_samples();
    test_unknown_pid();
    return check_done();
}
