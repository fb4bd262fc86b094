/* Memory of graphs: claimed before a launch or upload puts it in place, refused where it does not fit, and then charged
 * as what the driver has reserved for graphs; given back by a trim, wherever that comes from. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "reach.h"
#include "sandbox.h"
#include "vgpu/shm_layout.h"

#define MIB (1024ull * 1024ull)
#define LIMIT_MIB 1024

static struct sandbox here; /* the machine that this process is in */
static CUstream stream, other;

static void start(void) {
    CUcontext context = NULL;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamCreate(&stream, 1), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamCreate(&other, 1), CUDA_SUCCESS);
    snprintf(here.directory, sizeof here.directory, "%s", getenv("VGPU_TEST_DIRECTORY"));
    snprintf(here.region, sizeof here.region, "%s", getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"));
}

static uint64_t in_slot(unsigned card) {
    static struct vg_region *region;
    uint64_t used = 0;
    if (region == NULL)
        region = sandbox_region(&here);
    for (int s = 0; region != NULL && s < VG_MAX_SLOTS; s++)
        if (region->slots[s].pid == getpid())
            used += region->slots[s].used[card].total;
    return used;
}

static void check_used(unsigned card, uint64_t mib, const char *what) {
    CHECK_EQUAL_THAT(in_slot(card), mib * MIB, what);
    CHECK_EQUAL_THAT(sandbox_books_used(&here, card, getpid()), mib * MIB, what);
}

static CUDA_MEM_ALLOC_NODE_PARAMS on_device(int device, uint64_t mib) {
    return (CUDA_MEM_ALLOC_NODE_PARAMS){.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}},
                                        .bytesize = mib * MIB};
}

/* Allocates and frees, one after the other, as often as is said: the driver needs it once. */
static CUgraph make_graph(int device, uint64_t mib, unsigned times) {
    CUgraph graph = NULL;
    CUgraphNode before = NULL, node = NULL;
    CHECK_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
    for (unsigned i = 0; i < times; i++) {
        CUDA_MEM_ALLOC_NODE_PARAMS params = on_device(device, mib);
        CHECK_EQUAL(cuGraphAddMemAllocNode(&node, graph, &before, before != NULL, &params), CUDA_SUCCESS);
        CHECK_EQUAL(cuGraphAddMemFreeNode(&before, graph, &node, 1, params.dptr), CUDA_SUCCESS);
    }
    return graph;
}

static CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec exec = NULL;
    CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
    return exec;
}

static void body_launch(void) {
    CUdeviceptr pointer = 0;
    CUgraphExec first = instantiate(make_graph(0, 300, 2));
    check_used(0, 0, "instantiated");
    CHECK_EQUAL(cuGraphLaunch(first, stream), CUDA_SUCCESS);
    check_used(0, 300, "launched: less than the sum of its allocations");
    for (int i = 0; i < 20; i++)
        CHECK_EQUAL(cuGraphLaunch_ptsz(first, stream), CUDA_SUCCESS);
    check_used(0, 300, "launched again: it is in place");
    CUgraphExec second = instantiate(make_graph(0, 800, 1));
    CHECK_EQUAL(cuGraphUpload(second, stream), CUDA_SUCCESS); /* what the first does not use now can go */
    check_used(0, 800, "the first's memory made room");
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 300 * MIB), CUDA_SUCCESS);
    check_used(0, 300, "and so did the second's");
    CHECK_EQUAL(cuGraphLaunch(second, stream), CUDA_ERROR_OUT_OF_MEMORY);
    check_used(0, 300, "refused");
    CHECK_EQUAL(cuGraphLaunch(first, stream), CUDA_SUCCESS); /* claimed anew */
    check_used(0, 600, "in place again");
    CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphExecDestroy(first), CUDA_SUCCESS);
    check_used(0, 300, "the driver keeps it for other graphs");
    CHECK_EQUAL(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
    check_used(0, 0, "trimmed");
    CHECK_EQUAL(cuGraphLaunch(second, stream), CUDA_SUCCESS);
    check_used(0, 800, "there is room now");
    CHECK_EQUAL(cuGraphExecDestroy(second), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphExecDestroy(second), CUDA_ERROR_INVALID_VALUE);
}

/* Memory that is not freed by its graph stays, is in nobody's way, and is freed by either call. */
static void body_kept(void) {
    CUgraph graph = NULL;
    CUgraphNode node = NULL;
    CUdeviceptr more = 0;
    CUDA_MEM_ALLOC_NODE_PARAMS params = on_device(0, 600);
    CHECK_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params), CUDA_SUCCESS);
    CUgraphExec exec = instantiate(graph);
    for (int at_once = 0; at_once < 2; at_once++) {
        CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_SUCCESS);
        CHECK_EQUAL(cuGraphLaunch(exec, NULL), CUDA_ERROR_INVALID_VALUE); /* the driver's answer */
        check_used(0, 600, "allocated");
        CHECK_EQUAL(cuMemAlloc_v2(&more, 500 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQUAL(at_once ? cuMemFree_v2(params.dptr) : cuMemFreeAsync(params.dptr, NULL), CUDA_SUCCESS);
        CHECK_EQUAL(cuMemAlloc_v2(&more, 500 * MIB), CUDA_SUCCESS);
        check_used(0, 500, "freed, and taken back from the graphs");
        CHECK_EQUAL(cuMemFree_v2(more), CUDA_SUCCESS);
    }
    CHECK_EQUAL(cuGraphExecDestroy(exec), CUDA_SUCCESS);
}

/* An upload by the instantiation itself; several devices; nodes added by the newer call. */
static void body_ways(void) {
    CUgraph graph = make_graph(0, 700, 1);
    CUDA_GRAPH_INSTANTIATE_PARAMS params = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD, .hUploadStream = stream};
    CUgraphExec exec = NULL, refused = NULL;
    CUgraphNode node = NULL;
    CUdeviceptr pointer = 0;
    CHECK_EQUAL(cuGraphInstantiateWithParams(&exec, graph, &params), CUDA_SUCCESS);
    check_used(0, 700, "uploaded");
    CUgraphNodeParams added = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .alloc = on_device(1, 50)};
    CHECK_EQUAL(cuGraphAddNode(&node, graph, NULL, 0, &added), CUDA_SUCCESS);
    CUgraphNodeParams freed = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .free = {added.alloc.dptr}};
    CHECK_EQUAL(cuGraphAddNode_v2(&node, graph, &node, NULL, 1, &freed), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphExecDestroy(exec), CUDA_SUCCESS);
    CHECK_EQUAL(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 400 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphInstantiateWithParams_ptsz(&refused, graph, &params), CUDA_ERROR_OUT_OF_MEMORY);
    check_used(0, 400, "refused");
    check_used(1, 0, "refused");
    CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphInstantiateWithParams_ptsz(&exec, graph, &params), CUDA_SUCCESS);
    check_used(0, 700, "on both cards");
    check_used(1, 50, "on both cards");
    CHECK_EQUAL(cuGraphUpload_ptsz(exec, stream), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphExecDestroy(exec), CUDA_SUCCESS);
    for (int device = 0; device < 2; device++) {
        CHECK_EQUAL(cuDeviceGraphMemTrim(device), CUDA_SUCCESS);
        check_used((unsigned)device, 0, "trimmed");
    }
}

/* What a capture records costs nothing, however much it is and whichever stream of it records; its graph's launch does.
 */
static void body_capture(void) {
    CUdeviceptr pointers[3] = {0};
    CUevent fork = NULL, join = NULL;
    CUgraph graph = NULL;
    CHECK_EQUAL(cuEventCreate(&fork, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuEventCreate(&join, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAllocAsync(&pointers[0], 300 * MIB, stream), CUDA_SUCCESS);
    CHECK_EQUAL(cuEventRecord(fork, stream), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamWaitEvent(other, fork, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAllocAsync_ptsz(&pointers[1], 300 * MIB, other), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemFreeAsync(pointers[1], other), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAllocAsync(&pointers[2], 2000 * MIB, other), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemFreeAsync(pointers[2], other), CUDA_SUCCESS);
    check_used(0, 0, "recorded");
    CHECK_EQUAL(cuEventRecordWithFlags(join, other, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamWaitEvent_ptsz(stream, join, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemFreeAsync(pointers[0], stream), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    CUgraphExec exec = instantiate(graph);
    CHECK_EQUAL(cuGraphLaunch(exec, stream), CUDA_ERROR_OUT_OF_MEMORY);
    check_used(0, 0, "refused");
    /* The streams are ordinary ones again. */
    CHECK_EQUAL(cuMemAllocAsync(&pointers[0], 300 * MIB, other), CUDA_SUCCESS);
    check_used(0, 300, "allocated");
    CHECK_EQUAL(cuMemFreeAsync(pointers[0], other), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamSynchronize(other), CUDA_SUCCESS);
    check_used(0, 0, "freed");
    /* Memory of a stream that takes no part is charged and given back meanwhile, and spoils nothing. */
    CHECK_EQUAL(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    for (int i = 0; i < 3; i++) {
        CHECK_EQUAL(cuMemAllocAsync(&pointers[0], 600 * MIB, other), CUDA_SUCCESS);
        check_used(0, 600, "beside a capture");
        CHECK_EQUAL(cuMemAllocAsync(&pointers[1], 600 * MIB, other), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQUAL(cuMemFreeAsync(pointers[0], other), CUDA_SUCCESS);
        CHECK_EQUAL(cuStreamSynchronize(other), CUDA_SUCCESS);
        check_used(0, 0, "freed beside a capture");
    }
    CHECK_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
}

/* The simulated driver gives the handle out again that was destroyed last. */
static CUstream make_stream_at(CUstream wanted) {
    CUstream made = NULL;
    CHECK_EQUAL(cuStreamCreate(&made, 1), CUDA_SUCCESS);
    CHECK_EQUAL((uintptr_t)made, (uintptr_t)wanted);
    return made;
}

static CUevent make_event_at(CUevent wanted) {
    CUevent made = NULL;
    CHECK_EQUAL(cuEventCreate(&made, 0), CUDA_SUCCESS);
    CHECK_EQUAL((uintptr_t)made, (uintptr_t)wanted);
    return made;
}

/* That is no part of a capture, whatever was done: it takes memory, which is charged and limited. */
static void check_ordinary(CUstream of, const char *what) {
    CUdeviceptr pointer = 0, refused = 0;
    CHECK_EQUAL_THAT(cuMemAllocAsync(&pointer, 600 * MIB, of), CUDA_SUCCESS, what);
    check_used(0, 600, what);
    CHECK_EQUAL_THAT(cuMemAllocAsync(&refused, 600 * MIB, of), CUDA_ERROR_OUT_OF_MEMORY, what);
    CHECK_EQUAL_THAT(cuMemFreeAsync(pointer, of), CUDA_SUCCESS, what);
    CHECK_EQUAL_THAT(cuStreamSynchronize(of), CUDA_SUCCESS, what);
    check_used(0, 0, what);
}

static void *begin_and_end(void *unused) {
    CUcontext context = NULL;
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamBeginCapture_v2_ptsz(NULL, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    return unused;
}

static void *allocate_on_own_stream(void *unused) {
    CUcontext context = NULL;
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
    check_ordinary(CU_STREAM_PER_THREAD, "another thread's own stream");
    return unused;
}

/* Handles that are given out again, while the capture goes on that they took part in, or was left behind. */
static void body_not_captured(void) {
    CUevent event = NULL;
    CUstream joined = NULL;
    pthread_t thread;
    CHECK_EQUAL(cuStreamCreate(&joined, 1), CUDA_SUCCESS);
    CHECK_EQUAL(cuEventCreate(&event, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    CHECK_EQUAL(cuEventRecord(event, stream), CUDA_SUCCESS);

    CHECK_EQUAL(cuEventDestroy_v2(event), CUDA_SUCCESS);
    event = make_event_at(event);
    CHECK_EQUAL(cuStreamWaitEvent(other, event, 0), CUDA_SUCCESS);
    check_ordinary(other, "waited for an event that has a captured one's handle");

    CHECK_EQUAL(cuEventRecord(event, stream), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamWaitEvent(joined, event, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamDestroy_v2(joined), CUDA_SUCCESS);
    joined = make_stream_at(joined);
    check_ordinary(joined, "has the handle of a stream that had joined");

    CHECK_EQUAL(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
    stream = make_stream_at(stream);
    check_ordinary(stream, "has the handle of the stream that began");

    CHECK_EQUAL(pthread_create(&thread, NULL, begin_and_end, NULL), 0);
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
    CHECK_EQUAL(pthread_create(&thread, NULL, allocate_on_own_stream, NULL), 0);
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
}

static const struct {
    const char *name;
    void (*run)(void);
} bodies[] = {{"launch", body_launch},
              {"kept", body_kept},
              {"ways", body_ways},
              {"capture", body_capture},
              {"not captured", body_not_captured}};

static void run_body(const char *name) {
    struct sandbox sandbox = sandbox_make();
    char directory[128], output[SANDBOX_OUTPUT];
    snprintf(directory, sizeof directory, "VGPU_TEST_DIRECTORY=%s", sandbox.directory);
    const char *environment[] = {directory, "CUDA_DEVICE_MEMORY_LIMIT=1g", NULL};
    const char *argv[] = {sandbox_self(), name, NULL};
    if (!CHECK_EQUAL_THAT(sandbox_run(&sandbox, true, environment, argv, output), 0, name))
        fputs(output, stderr);
    CHECK_EQUAL_THAT(sandbox_books_used(&sandbox, 0, 0), 0, name);
    sandbox_remove(&sandbox);
}

int main(int argc, char **argv) {
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++)
        if (argc == 1) {
            run_body(bodies[i].name);
        } else if (strcmp(bodies[i].name, argv[1]) == 0) {
            start();
            bodies[i].run();
        }
    return check_done();
}
