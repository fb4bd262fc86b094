/* Hundreds of processes that start together in one slice: all get in, each has its own place, the slice is shared out
 * to the byte; joining looks at few others; no slice waits for another's lock. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "core/region.h"
#include "reach.h"
#include "sandbox.h"
#include "vgpu/shm_layout.h"

#define MIB (1024ull * 1024ull)
#define PROCESSES 200
#define LIMIT "CUDA_DEVICE_MEMORY_LIMIT=200m"
#define PROBES_PER_JOIN 4 /* of owners, each a few system calls */

/* ---- the process under test: waits for the start, takes one MiB, stays ---- */

static CUresult take_one(void) {
    CUcontext context = NULL;
    CUdeviceptr pointer = 0;
    CUresult result = cuInit(0);
    if (result == CUDA_SUCCESS)
        result = cuDevicePrimaryCtxRetain(&context, 0);
    if (result == CUDA_SUCCESS)
        result = cuCtxSetCurrent(context);
    return result == CUDA_SUCCESS ? cuMemAlloc_v2(&pointer, MIB) : result;
}

/* The gate opens when the last writing end is closed, for all at once. */
static void wait_at_gate(void) {
    int reading = -1, writing = -1;
    char nothing;
    const char *gate = getenv("VGPU_TEST_GATE");
    if (gate == NULL || sscanf(gate, "%d,%d", &reading, &writing) != 2)
        return;
    close(writing);
    (void)!read(reading, &nothing, 1);
}

static int run_child(bool stays) {
    wait_at_gate();
    printf("result %d.", (int)take_one());
    fflush(stdout);
    if (stays)
        pause();
    return 0;
}

/* ---- case SCL-02: joining probes few others, however many there are ---- */

struct counted {
    unsigned probes;
};

static bool count_probe(void *context, unsigned slot, const struct vgi_identity *owner) {
    struct counted *counted = context;
    (void)slot, (void)owner;
    counted->probes++;
    return false;
}

static void test_joins_probe_few(void) {
    struct counted counted = {0};
    struct vgi_judge judge = {&counted, count_probe};
    struct vgi_limits limits = {0};
    struct vg_region *region = calloc(1, VG_FILE_BYTES);
    vgi_region_lay_out(region, &limits, 0);
    for (int32_t pid = 1; pid <= PROCESSES; pid++) {
        struct vgi_identity self = {.pid = pid, .start_time = 1, .pid_namespace = 1};
        uint32_t cards = 0;
        counted.probes = 0;
        CHECK_EQUAL(vgi_region_claim(region, &self, &judge, &cards), pid - 1);
        CHECK(counted.probes <= PROBES_PER_JOIN);
    }
    free(region);
}

/* ---- case SCL-03: they start at the same moment ---- */

static struct sandbox_process start(const struct sandbox *sandbox, const char *what, const char *more) {
    const char *const environment[] = {LIMIT, more, NULL};
    return sandbox_start(sandbox, true, environment, (const char *[]){sandbox_self(), what, NULL});
}

static unsigned running_slots(const struct sandbox *sandbox, uint64_t *bytes) {
    struct vg_region *region = sandbox_region(sandbox);
    unsigned running = 0;
    *bytes = 0;
    for (int i = 0; CHECK(region != NULL) && i < VG_MAX_SLOTS; i++)
        if (region->slots[i].status == VG_SLOT_RUNNING) {
            running++;
            *bytes += region->slots[i].used[0].total;
        }
    return running;
}

static void test_storm(void) {
    static struct sandbox_process processes[PROCESSES];
    char gate_text[64], output[SANDBOX_OUTPUT];
    uint64_t bytes = 0;
    int gate[2];
    struct sandbox sandbox = sandbox_make();
    if (!CHECK_EQUAL(pipe(gate), 0))
        return;
    snprintf(gate_text, sizeof gate_text, "VGPU_TEST_GATE=%d,%d", gate[0], gate[1]);
    for (int i = 0; i < PROCESSES; i++)
        processes[i] = start(&sandbox, "stay", gate_text);
    close(gate[0]);
    close(gate[1]);
    for (int i = 0; i < PROCESSES; i++)
        CHECK(sandbox_await(&processes[i], "result 0."));
    CHECK_EQUAL(running_slots(&sandbox, &bytes), PROCESSES);
    CHECK_EQUAL(bytes, PROCESSES * MIB);
    CHECK_EQUAL(sandbox_books_used(&sandbox, 0, 0), PROCESSES * MIB);

    struct sandbox_process late = start(&sandbox, "try", NULL);
    CHECK_EQUAL(sandbox_finish(&late, output), 0);
    CHECK_THAT(strstr(output, "result 2.") != NULL, output); /* the slice is full */

    for (int i = 0; i < PROCESSES; i++) {
        kill(processes[i].pid, SIGKILL);
        CHECK_EQUAL(sandbox_finish(&processes[i], NULL), -SIGKILL);
    }
    late = start(&sandbox, "try", NULL);
    CHECK_EQUAL(sandbox_finish(&late, output), 0);
    CHECK_THAT(strstr(output, "result 0.") != NULL, output); /* the dead hold nothing */
    sandbox_remove(&sandbox);
}

/* The only lock there is belongs to one slice: while it is held, another slice's processes come and go. */
static void test_slices_do_not_wait_for_each_other(void) {
    char output[SANDBOX_OUTPUT], other[160];
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    struct sandbox sandbox = sandbox_make();
    struct sandbox_process first = start(&sandbox, "try", NULL);
    CHECK_EQUAL(sandbox_finish(&first, output), 0);
    int file = open(sandbox.region, O_RDWR | O_CLOEXEC);
    CHECK_EQUAL(fcntl(file, F_OFD_SETLK, &lock), 0);
    struct sandbox_process waiting = start(&sandbox, "try", NULL);
    snprintf(other, sizeof other, "CUDA_DEVICE_MEMORY_SHARED_CACHE=%s/other/test.cache", sandbox.directory);
    struct sandbox_process passing = start(&sandbox, "try", other);
    CHECK_EQUAL(sandbox_finish(&passing, output), 0);
    CHECK_THAT(strstr(output, "result 0.") != NULL, output);
    close(file);
    CHECK_EQUAL(sandbox_finish(&waiting, output), 0);
    CHECK_THAT(strstr(output, "result 0.") != NULL, output);
    sandbox_remove(&sandbox);
}

int main(int argc, char **argv) {
    if (argc > 1)
        return run_child(strcmp(argv[1], "stay") == 0);
    test_joins_probe_few();
    test_storm();
    test_slices_do_not_wait_for_each_other();
    return check_done();
}
