/* A process in exit() that does not end: its destructors, its last flush of a stream and its other threads may go on
 * for as long as they like. What it holds stays charged, what it launches is paid for, until it is gone. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "reach.h"
#include "sandbox.h"
#include "vgpu/shm_layout.h"

#define MIB (1024ull * 1024ull)
#define REFUSED 4

static const char *const environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=100m", "CUDA_DEVICE_SM_LIMIT=50",
                                          "HAMI_SIM_KERNEL_MICROSECONDS=100", NULL};

/* ---- the process that leaves ---- */

static CUfunction function;
static CUgraphExec graph_exec;

static void launch(void) {
    CHECK_EQUAL(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
}

/* Not launched before exit(), and more than there is. */
static void make_graph(void) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                       .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}},
                                         .bytesize = 200 * MIB};
    CUgraph graph = NULL;
    CUgraphNode node = NULL;
    CHECK_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphInstantiateWithFlags(&graph_exec, graph, 0), CUDA_SUCCESS);
}

static uint64_t granted_work(void) {
    struct sandbox here = {.directory = ""};
    snprintf(here.region, sizeof here.region, "%s", getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"));
    struct vg_region *region = sandbox_region(&here);
    return vg_extension_of(region)->compute[0].work_ns;
}

/* Called for the last flush, after all destructors. */
static ssize_t while_exiting(void *cookie, const char *bytes, size_t size) {
    CUdeviceptr pointer = 0;
    char end;
    (void)cookie, (void)bytes;
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_DEINITIALIZED);
    CHECK(cuGraphLaunch(graph_exec, NULL) != CUDA_SUCCESS);
    uint64_t before = granted_work();
    for (int i = 0; i < 200; i++)
        launch();
    CHECK(granted_work() > before);
    CHECK_EQUAL(write(STDOUT_FILENO, "leaving\n", 8), 8);
    CHECK_EQUAL(read(STDIN_FILENO, &end, 1), 0);
    _exit(check_done());
    return (ssize_t)size;
}

static int leave(void) {
    CUcontext context = NULL;
    CUdeviceptr pointer = 0;
    CUmodule module = NULL;
    FILE *last = fopencookie(NULL, "w", (cookie_io_functions_t){.write = while_exiting});
    CHECK(last != NULL && fputc('x', last) == 'x');
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleGetFunction(&function, module, "kernel"), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 50 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAllocAsync(&pointer, 10 * MIB, NULL), CUDA_SUCCESS);
    make_graph();
    launch();
    exit(check_done());
}

/* ---- the test ---- */

static int run_alloc(const struct sandbox *sandbox, const char *mib) {
    char output[SANDBOX_OUTPUT];
    return sandbox_run(sandbox, true, environment, (const char *[]){WORKLOAD, "alloc", "--mib", mib, NULL}, output);
}

static void test_held_while_leaving(void) {
    struct sandbox sandbox = sandbox_make();
    int ends[2], saved = dup(STDIN_FILENO);
    char output[SANDBOX_OUTPUT];
    if (pipe2(ends, O_CLOEXEC) != 0)
        exit(1);
    dup2(ends[0], STDIN_FILENO);
    struct sandbox_process leaver =
        sandbox_start(&sandbox, true, environment, (const char *[]){sandbox_self(), "leave", NULL});
    dup2(saved, STDIN_FILENO);
    close(ends[0]);
    if (CHECK(sandbox_await(&leaver, "leaving\n"))) {
        struct vg_region *region = sandbox_region(&sandbox);
        CHECK_EQUAL(sandbox_books_used(&sandbox, 0, leaver.pid), 60 * MIB);
        CHECK(region->slots[0].pid == 0 && region->slots[0].status == VG_SLOT_FREE);
        CHECK_EQUAL(vg_card_used(region, 0), 0); /* monitors sum what is shown */
        CHECK_EQUAL(run_alloc(&sandbox, "41"), REFUSED);
        CHECK_EQUAL(run_alloc(&sandbox, "40"), 0);
    }
    close(ends[1]);
    if (!CHECK_EQUAL(sandbox_finish(&leaver, output), 0))
        fputs(output, stderr);
    CHECK_EQUAL(run_alloc(&sandbox, "100"), 0);
    close(saved);
    sandbox_remove(&sandbox);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "leave") == 0)
        return leave();
    test_held_while_leaving();
    return check_done();
}
