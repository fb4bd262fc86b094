#include "compute/graph_cost.h"

#include <stdlib.h>

#include "account/account.h"
#include "compute/gate.h"

static uint64_t cost_of_kernel(CUgraphNode node) {
    CUDA_KERNEL_NODE_PARAMS_v1 v1;
    CUDA_KERNEL_NODE_PARAMS_v2 v2;
    if (vgi_cuda.cuGraphKernelNodeGetParams_v2 != NULL) {
        if (vgi_cuda.cuGraphKernelNodeGetParams_v2(node, &v2) != CUDA_SUCCESS)
            return 0;
        uintptr_t what = v2.func != NULL ? (uintptr_t)v2.func : (uintptr_t)v2.kern;
        return vgi_known_cost(what, (unsigned[]){v2.gridDimX, v2.gridDimY, v2.gridDimZ},
                              (unsigned[]){v2.blockDimX, v2.blockDimY, v2.blockDimZ});
    }
    if (VGI_CUDA(cuGraphKernelNodeGetParams, node, &v1) != CUDA_SUCCESS)
        return 0;
    return vgi_known_cost((uintptr_t)v1.func, (unsigned[]){v1.gridDimX, v1.gridDimY, v1.gridDimZ},
                          (unsigned[]){v1.blockDimX, v1.blockDimY, v1.blockDimZ});
}

/* 0 = some node's cost is not known: the first launch will be measured. Only kernels are paid for. */
static uint64_t cost_of_nodes(const CUgraphNode *nodes, size_t count) {
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        CUgraphNodeType type;
        if (VGI_CUDA(cuGraphNodeGetType, nodes[i], &type) != CUDA_SUCCESS || type == CU_GRAPH_NODE_TYPE_GRAPH)
            return 0;
        uint64_t cost = type == CU_GRAPH_NODE_TYPE_KERNEL ? cost_of_kernel(nodes[i]) : 0;
        if (type == CU_GRAPH_NODE_TYPE_KERNEL && cost == 0)
            return 0;
        sum += cost;
    }
    return sum;
}

void vgi_learn_graph(CUgraphExec exec, CUgraph graph) {
    size_t count = 0;
    if (!vgi_compute_is_limited() || VGI_CUDA(cuGraphGetNodes, graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return;
    CUgraphNode *nodes = calloc(count, sizeof *nodes);
    if (nodes == NULL)
        return;
    if (VGI_CUDA(cuGraphGetNodes, graph, nodes, &count) == CUDA_SUCCESS)
        vgi_suppose_cost((uintptr_t)exec, cost_of_nodes(nodes, count));
    free(nodes);
}

void vgi_forget_graph(CUgraphExec exec) {
    vgi_forget_cost((uintptr_t)exec);
}
