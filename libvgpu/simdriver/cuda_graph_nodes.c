/* Graphs: the kinds of node that a program adds. */
#include "graph.h"

#include <stdlib.h>

static CUresult add(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                    const struct CUgraphNode_st *content) {
    CUresult result = sim_ready();
    return result == CUDA_SUCCESS ? sim_graph_add(graph, dependencies, count, content, node) : result;
}

static struct sim_kernel kernel_of_v1(const CUDA_KERNEL_NODE_PARAMS_v1 *p) {
    return (struct sim_kernel){.function = p->func,
                               .grid = {p->gridDimX, p->gridDimY, p->gridDimZ},
                               .block = {p->blockDimX, p->blockDimY, p->blockDimZ},
                               .shared_bytes = p->sharedMemBytes,
                               .parameters = p->kernelParams,
                               .extra = p->extra};
}

static struct sim_kernel kernel_of_v2(const CUDA_KERNEL_NODE_PARAMS_v2 *p) {
    return (struct sim_kernel){.function = p->func,
                               .grid = {p->gridDimX, p->gridDimY, p->gridDimZ},
                               .block = {p->blockDimX, p->blockDimY, p->blockDimZ},
                               .shared_bytes = p->sharedMemBytes,
                               .parameters = p->kernelParams,
                               .extra = p->extra};
}

static CUresult add_kernel(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                           struct sim_kernel kernel) {
    struct CUgraphNode_st content = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = kernel};
    CUresult result = sim_kernel_is_valid(&kernel);
    return result == CUDA_SUCCESS ? add(node, graph, dependencies, count, &content) : result;
}

SIM_API CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                      size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
    return nodeParams == NULL ? CUDA_ERROR_INVALID_VALUE
                              : add_kernel(node, graph, dependencies, numDependencies, kernel_of_v1(nodeParams));
}

SIM_API CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                         size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams) {
    return nodeParams == NULL ? CUDA_ERROR_INVALID_VALUE
                              : add_kernel(node, graph, dependencies, numDependencies, kernel_of_v2(nodeParams));
}

static bool is_kernel_node(CUgraphNode node) {
    CUgraphNodeType type;
    return cuGraphNodeGetType(node, &type) == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_KERNEL;
}

SIM_API CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams) {
    if (!is_kernel_node(node) || nodeParams == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sim_kernel *k = &node->kernel;
    *nodeParams = (CUDA_KERNEL_NODE_PARAMS_v2){.func = k->function,
                                               .gridDimX = k->grid[0],
                                               .gridDimY = k->grid[1],
                                               .gridDimZ = k->grid[2],
                                               .blockDimX = k->block[0],
                                               .blockDimY = k->block[1],
                                               .blockDimZ = k->block[2],
                                               .sharedMemBytes = k->shared_bytes,
                                               .kernelParams = k->parameters,
                                               .extra = k->extra};
    return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
    CUDA_KERNEL_NODE_PARAMS_v2 p;
    CUresult result = nodeParams == NULL ? CUDA_ERROR_INVALID_VALUE : cuGraphKernelNodeGetParams_v2(node, &p);
    if (result == CUDA_SUCCESS)
        *nodeParams = (CUDA_KERNEL_NODE_PARAMS_v1){.func = p.func,
                                                   .gridDimX = p.gridDimX,
                                                   .gridDimY = p.gridDimY,
                                                   .gridDimZ = p.gridDimZ,
                                                   .blockDimX = p.blockDimX,
                                                   .blockDimY = p.blockDimY,
                                                   .blockDimZ = p.blockDimZ,
                                                   .sharedMemBytes = p.sharedMemBytes,
                                                   .kernelParams = p.kernelParams,
                                                   .extra = p.extra};
    return result;
}

static CUresult set_kernel(CUgraphNode node, struct sim_kernel kernel) {
    CUresult result = is_kernel_node(node) ? sim_kernel_is_valid(&kernel) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        node->kernel = kernel;
    return result;
}

SIM_API CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
    return nodeParams == NULL ? CUDA_ERROR_INVALID_VALUE : set_kernel(node, kernel_of_v1(nodeParams));
}

SIM_API CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams) {
    return nodeParams == NULL ? CUDA_ERROR_INVALID_VALUE : set_kernel(node, kernel_of_v2(nodeParams));
}

/* The exec's own node is the copy of the graph's. */
static CUresult set_exec_kernel(CUgraphExec exec, CUgraphNode node, struct sim_kernel kernel) {
    CUgraphNode copy = NULL;
    CUresult result =
        is_kernel_node(node) ? cuGraphNodeFindInClone(&copy, node, sim_graph_of_exec(exec)) : CUDA_ERROR_INVALID_VALUE;
    return result == CUDA_SUCCESS ? set_kernel(copy, kernel) : result;
}

SIM_API CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
    return nodeParams == NULL ? CUDA_ERROR_INVALID_VALUE : set_exec_kernel(exec, node, kernel_of_v1(nodeParams));
}

SIM_API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                   const CUDA_KERNEL_NODE_PARAMS_v2 *nodeParams) {
    return nodeParams == NULL ? CUDA_ERROR_INVALID_VALUE : set_exec_kernel(exec, node, kernel_of_v2(nodeParams));
}

enum { MEMORY_HOST = 1, MEMORY_ARRAY = 3 };

SIM_API CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                      size_t numDependencies, const CUDA_MEMCPY3D *p, CUcontext ctx) {
    (void)ctx;
    if (p == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (p->srcMemoryType == MEMORY_ARRAY || p->dstMemoryType == MEMORY_ARRAY)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUdeviceptr source = p->srcMemoryType == MEMORY_HOST ? (CUdeviceptr)(uintptr_t)p->srcHost : p->srcDevice;
    CUdeviceptr destination = p->dstMemoryType == MEMORY_HOST ? (CUdeviceptr)(uintptr_t)p->dstHost : p->dstDevice;
    struct CUgraphNode_st content = {.type = CU_GRAPH_NODE_TYPE_MEMCPY,
                                     .copy = {.width = p->WidthInBytes,
                                              .height = p->Height,
                                              .depth = p->Depth,
                                              .source_pitch = p->srcPitch,
                                              .source_slice = p->srcPitch * p->srcHeight,
                                              .destination_pitch = p->dstPitch,
                                              .destination_slice = p->dstPitch * p->dstHeight}};
    content.copy.source = source + p->srcXInBytes + p->srcY * p->srcPitch + p->srcZ * content.copy.source_slice;
    content.copy.destination =
        destination + p->dstXInBytes + p->dstY * p->dstPitch + p->dstZ * content.copy.destination_slice;
    return add(node, graph, dependencies, numDependencies, &content);
}

SIM_API CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                      size_t numDependencies, const CUDA_MEMSET_NODE_PARAMS_v1 *p, CUcontext ctx) {
    (void)ctx;
    if (p == NULL || (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4))
        return CUDA_ERROR_INVALID_VALUE;
    struct CUgraphNode_st content = {.type = CU_GRAPH_NODE_TYPE_MEMSET, .fill = *p};
    return add(node, graph, dependencies, numDependencies, &content);
}

SIM_API CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                    size_t numDependencies, const CUDA_HOST_NODE_PARAMS_v1 *nodeParams) {
    if (nodeParams == NULL || nodeParams->fn == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct CUgraphNode_st content = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = *nodeParams};
    return add(node, graph, dependencies, numDependencies, &content);
}

SIM_API CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                     size_t numDependencies) {
    struct CUgraphNode_st content = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
    return add(node, graph, dependencies, numDependencies, &content);
}

/* The child is copied: what becomes of the original later does not matter. */
SIM_API CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                          size_t numDependencies, CUgraph childGraph) {
    struct CUgraphNode_st content = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
    CUresult result = cuGraphClone(&content.child, childGraph);
    if (result != CUDA_SUCCESS)
        return result;
    content.child->owned = true;
    result = add(node, graph, dependencies, numDependencies, &content);
    if (result != CUDA_SUCCESS)
        sim_graph_free(content.child);
    return result;
}

SIM_API CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                        size_t numDependencies, CUDA_MEM_ALLOC_NODE_PARAMS *p) {
    if (p == NULL || p->bytesize == 0 || p->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        p->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE || !sim_valid_device(p->poolProps.location.id))
        return CUDA_ERROR_INVALID_VALUE;
    struct CUgraphNode_st content = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .allocation = *p};
    content.block = sim_graph_block_make(p->poolProps.location.id, p->bytesize);
    if (content.block == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    content.allocation.dptr = content.block->address;
    CUresult result = add(node, graph, dependencies, numDependencies, &content);
    if (result == CUDA_SUCCESS)
        p->dptr = content.block->address;
    sim_graph_block_drop(content.block);
    return result;
}

SIM_API CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                       size_t numDependencies, CUdeviceptr pointer) {
    if (pointer == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct CUgraphNode_st content = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .freed = pointer};
    return add(node, graph, dependencies, numDependencies, &content);
}

SIM_API CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                size_t numDependencies, CUgraphNodeParams *p) {
    if (p == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    switch (p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return cuGraphAddKernelNode_v2(node, graph, dependencies, numDependencies, &p->kernel);
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return cuGraphAddEmptyNode(node, graph, dependencies, numDependencies);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return cuGraphAddMemAllocNode(node, graph, dependencies, numDependencies, &p->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return cuGraphAddMemFreeNode(node, graph, dependencies, numDependencies, p->free.dptr);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

SIM_API CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                   const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                   CUgraphNodeParams *p) {
    (void)dependencyData; /* every edge waits for the whole node before it */
    return cuGraphAddNode(node, graph, dependencies, numDependencies, p);
}
