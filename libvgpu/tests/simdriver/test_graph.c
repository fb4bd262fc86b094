/* The simulated driver's graphs and captures by themselves, as the public reference says they behave. */
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "reach.h"
#include "sandbox.h"

#define MIB (1024ull * 1024ull)

static CUfunction kernel;
static CUstream stream, other;

static void start(void) {
    CUcontext context = NULL;
    CUmodule module = NULL;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleGetFunction(&kernel, module, "kernel"), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamCreate(&stream, 1), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamCreate(&other, 1), CUDA_SUCCESS);
}

static CUDA_KERNEL_NODE_PARAMS_v2 one_block(void) {
    return (CUDA_KERNEL_NODE_PARAMS_v2){
        .func = kernel, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1};
}

static CUresult launch(CUstream on) {
    return cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, on, NULL, NULL);
}

static uint64_t graph_memory(CUgraphMem_attribute attribute) {
    cuuint64_t value = 0;
    CHECK_EQUAL(cuDeviceGetGraphMemAttribute(0, attribute, &value), CUDA_SUCCESS);
    return value;
}

static void count_up(void *counter) {
    ++*(int *)counter;
}

static void body_nodes(void) {
    CUgraph graph = NULL, clone = NULL, child = NULL;
    CUgraphNode nodes[8] = {0}, copy = NULL, listed[8];
    CUgraphExec exec = NULL;
    CUgraphNodeType type;
    CUdeviceptr pointer = 0;
    CUDA_KERNEL_NODE_PARAMS_v2 params, told;
    int calls = 0;
    unsigned char text[4] = "";
    size_t count = 0;
    start();
    params = one_block();
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 4), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphAddKernelNode_v2(&nodes[0], graph, NULL, 0, &params), CUDA_SUCCESS);
    CUDA_HOST_NODE_PARAMS_v1 host = {count_up, &calls};
    CHECK_EQUAL(cuGraphAddHostNode(&nodes[1], graph, nodes, 1, &host), CUDA_SUCCESS);
    CUDA_MEMSET_NODE_PARAMS_v1 fill = {.dst = pointer, .value = 7, .elementSize = 1, .width = 4, .height = 1};
    CHECK_EQUAL(cuGraphAddMemsetNode(&nodes[2], graph, NULL, 0, &fill, NULL), CUDA_SUCCESS);
    CUDA_MEMCPY3D box = {.srcMemoryType = 2, .srcDevice = pointer, .dstMemoryType = 1, .dstHost = text};
    box.WidthInBytes = 4, box.Height = box.Depth = 1;
    CHECK_EQUAL(cuGraphAddMemcpyNode(&nodes[3], graph, NULL, 0, &box, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphAddDependencies(graph, &nodes[2], &nodes[3], 1), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphAddEmptyNode(&nodes[4], graph, nodes, 4), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphClone(&child, graph), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphAddChildGraphNode(&nodes[5], graph, &nodes[4], 1, child), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphDestroy(child), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphGetNodes(graph, NULL, &count), CUDA_SUCCESS);
    CHECK_EQUAL(count, 6);
    count = 8;
    CHECK_EQUAL(cuGraphGetRootNodes(graph, listed, &count), CUDA_SUCCESS);
    CHECK_EQUAL(count, 2);
    CHECK(listed[0] == nodes[0] && listed[1] == nodes[2] && listed[2] == NULL);
    CHECK_EQUAL(cuGraphGetEdges(graph, NULL, NULL, &count), CUDA_SUCCESS);
    CHECK_EQUAL(count, 7);
    CHECK_EQUAL(cuGraphNodeGetType(nodes[5], &type), CUDA_SUCCESS);
    CHECK_EQUAL(type, CU_GRAPH_NODE_TYPE_GRAPH);
    CHECK_EQUAL(cuGraphChildGraphNodeGetGraph(nodes[5], &child), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphDestroy(child), CUDA_ERROR_INVALID_VALUE); /* the node's */
    CHECK_EQUAL(cuGraphClone(&clone, graph), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphNodeFindInClone(&copy, nodes[0], clone), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphKernelNodeGetParams_v2(copy, &told), CUDA_SUCCESS);
    CHECK(told.func == kernel && told.blockDimX == 32);
    CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    params.gridDimX = 5;
    CHECK_EQUAL(cuGraphExecKernelNodeSetParams_v2(exec, nodes[0], &params), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphDestroyNode(nodes[0]), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
    CHECK_EQUAL(calls, 2); /* its own and its child's */
    CHECK_EQUAL(text[3], 7);
    CHECK_EQUAL(cuGraphExecDestroy(exec), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphDestroy(clone), CUDA_SUCCESS);
    /* A circle cannot run. */
    CHECK_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphAddEmptyNode(&nodes[0], graph, NULL, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphAddEmptyNode(&nodes[1], graph, nodes, 1), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphAddDependencies(graph, &nodes[1], &nodes[0], 1), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_ERROR_INVALID_VALUE);
}

static void body_capture(void) {
    CUgraph graph = NULL;
    CUevent fork = NULL, join = NULL;
    CUgraphExec exec = NULL;
    CUstreamCaptureStatus status;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUdeviceptr pointer = 0, never = 0;
    size_t count = 0;
    start();
    CHECK_EQUAL(cuEventCreate(&fork, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuEventCreate(&join, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
    CHECK_EQUAL(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
    CHECK_EQUAL(cuMemAllocAsync(&pointer, MIB, stream), CUDA_SUCCESS);
    CHECK_EQUAL(launch(stream), CUDA_SUCCESS);
    CHECK_EQUAL(cuEventRecord(fork, stream), CUDA_SUCCESS);
    CHECK_EQUAL(cuEventQuery(fork), CUDA_ERROR_CAPTURED_EVENT);
    CHECK_EQUAL(cuStreamWaitEvent(other, fork, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamIsCapturing(other, &status), CUDA_SUCCESS);
    CHECK_EQUAL(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CHECK_EQUAL(launch(other), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemsetD8Async(pointer, 1, MIB, other), CUDA_SUCCESS);
    CHECK_EQUAL(cuEventRecord(join, other), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamWaitEvent(stream, join, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamEndCapture(other, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    CHECK_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphGetNodes(graph, NULL, &count), CUDA_SUCCESS);
    CHECK_EQUAL(count, 5);
    CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
    CHECK_EQUAL(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), MIB);
    /* What was not joined, and what was called that may not be. */
    CHECK_EQUAL(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    CHECK_EQUAL(cuEventRecord(fork, stream), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamWaitEvent(other, fork, 0), CUDA_SUCCESS);
    CHECK_EQUAL(launch(other), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    CHECK_EQUAL(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAlloc_v2(&never, 1), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_EQUAL(launch(stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK_EQUAL(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    CHECK_EQUAL(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
    CHECK_EQUAL(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CHECK_EQUAL(cuMemAlloc_v2(&never, 1), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static CUgraphExec allocating(uint64_t bytes, bool freed, unsigned long long flags, CUdeviceptr *pointer) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                       .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}},
                                         .bytesize = bytes};
    CUgraph graph = NULL;
    CUgraphNode node = NULL, end = NULL;
    CUgraphExec exec = NULL;
    CHECK_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params), CUDA_SUCCESS);
    if (freed)
        CHECK_EQUAL(cuGraphAddMemFreeNode(&end, graph, &node, 1, params.dptr), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, graph, flags), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
    *pointer = params.dptr;
    return exec;
}

static void body_memory(void) {
    CUdeviceptr a = 0, b = 0;
    char byte = 1;
    start();
    CUgraphExec kept = allocating(3 * MIB, false, 0, &a);
    CUgraphExec freed = allocating(5 * MIB, true, 0, &b);
    CHECK_EQUAL(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0); /* nothing before the first launch */
    CHECK_EQUAL(cuMemcpyHtoD_v2(a, &byte, 1), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuGraphLaunch(kept, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemcpyHtoD_v2(a, &byte, 1), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphLaunch(kept, NULL), CUDA_ERROR_INVALID_VALUE); /* its memory is still allocated */
    CHECK_EQUAL(cuGraphUpload(freed, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 8 * MIB);
    CHECK_EQUAL(cuGraphExecDestroy(kept), CUDA_SUCCESS);
    CHECK_EQUAL(cuDeviceGraphMemTrim(0), CUDA_SUCCESS); /* allocated memory stays, an idle graph's goes */
    CHECK_EQUAL(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 3 * MIB);
    CHECK_EQUAL(cuMemFreeAsync(a, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphLaunch(freed, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 5 * MIB);
    CHECK_EQUAL(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), 8 * MIB);
    CHECK_EQUAL(cuGraphExecDestroy(freed), CUDA_SUCCESS);
    CHECK_EQUAL(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0);
    CHECK_EQUAL(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
    CHECK_EQUAL(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0);
    CUgraphExec again = allocating(MIB, false, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH, &a);
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(cuGraphLaunch(again, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemFree_v2(a), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemFree_v2(a), CUDA_ERROR_INVALID_VALUE);
}

static const struct {
    const char *name;
    void (*run)(void);
} bodies[] = {{"nodes", body_nodes}, {"capture", body_capture}, {"memory", body_memory}};

int main(int argc, char **argv) {
    size_t count = sizeof bodies / sizeof bodies[0];
    for (size_t i = 0; argc == 2 && i < count; i++)
        if (strcmp(bodies[i].name, argv[1]) == 0) {
            bodies[i].run();
            return check_done();
        }
    for (size_t i = 0; argc == 1 && i < count; i++) {
        struct sandbox sandbox = sandbox_make();
        char output[SANDBOX_OUTPUT];
        const char *arguments[] = {sandbox_self(), bodies[i].name, NULL};
        if (!CHECK_EQUAL_THAT(sandbox_run(&sandbox, false, NULL, arguments, output), 0, bodies[i].name))
            fputs(output, stderr);
        CHECK_EQUAL(sandbox_books_used(&sandbox, 0, 0), 0);
        sandbox_remove(&sandbox);
    }
    return check_done();
}
