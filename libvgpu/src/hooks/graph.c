/* Graphs that can be launched: their kernels are held to the slice's cores like other kernels, and the memory they
 * allocate is claimed before it is put in place. */
#include "graph_memory.h"

#include <stdlib.h>

#include "allocation.h"
#include "capture.h"
#include "compute/gate.h"
#include "compute/graph_cost.h"

/* ---- instantiating ---- */

static CUresult learn(CUresult result, const CUgraphExec *exec, CUgraph graph, struct vgi_graph_memory *memory) {
    if (result != CUDA_SUCCESS || exec == NULL) {
        free(memory);
        return result;
    }
    if (memory != NULL)
        vgi_graph_memory_enter(*exec, memory);
    vgi_learn_graph(*exec, graph);
    return result;
}

#define INSTANTIATE(symbol, parameters, ...)                                                                           \
    VGI_HOOK CUresult symbol parameters {                                                                              \
        if (!vgi_bind_cuda())                                                                                          \
            return VGI_NO_DRIVER;                                                                                      \
        struct vgi_graph_memory *memory = vgi_graph_measure(graph);                                                    \
        return learn(VGI_CUDA(symbol, exec, graph, __VA_ARGS__), exec, graph, memory);                                 \
    }

INSTANTIATE(cuGraphInstantiate,
            (CUgraphExec * exec, CUgraph graph, CUgraphNode *errorNode, char *logBuffer, size_t bufferSize), errorNode,
            logBuffer, bufferSize)
INSTANTIATE(cuGraphInstantiate_v2,
            (CUgraphExec * exec, CUgraph graph, CUgraphNode *errorNode, char *logBuffer, size_t bufferSize), errorNode,
            logBuffer, bufferSize)
INSTANTIATE(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags), flags)

/* May put the graph's memory in place at once. */
static CUresult instantiate_with(PFN_cuGraphInstantiateWithParams_v12000 driver, CUgraphExec *exec, CUgraph graph,
                                 CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    struct vgi_graph_claim claim;
    if (driver == NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct vgi_graph_memory *memory = vgi_graph_measure(graph);
    if (memory == NULL || params == NULL || (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) == 0)
        return learn(driver(exec, graph, params), exec, graph, memory);
    CUresult result = vgi_graph_claim(memory, &claim);
    if (result == CUDA_SUCCESS)
        result = vgi_graph_settle(driver(exec, graph, params), memory, &claim);
    return learn(result, exec, graph, memory);
}

VGI_HOOK CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                               CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    return vgi_bind_cuda() ? instantiate_with(vgi_cuda.cuGraphInstantiateWithParams, exec, graph, params)
                           : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                                    CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    return vgi_bind_cuda() ? instantiate_with(vgi_cuda.cuGraphInstantiateWithParams_ptsz, exec, graph, params)
                           : VGI_NO_DRIVER;
}

/* ---- launching and uploading ---- */

static CUresult put_in_place(PFN_cuGraphLaunch_v10000 driver, CUgraphExec exec, CUstream stream, bool per_thread) {
    struct vgi_graph_claim claim;
    if (driver == NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct vgi_graph_memory *memory = vgi_graphs_allocate() ? vgi_graph_memory_of(exec) : NULL;
    if (memory == NULL || vgi_capturing(stream, per_thread))
        return driver(exec, stream);
    CUresult result = vgi_graph_claim(memory, &claim);
    return result == CUDA_SUCCESS ? vgi_graph_settle(driver(exec, stream), memory, &claim) : result;
}

static struct vgi_sample *pay_for(CUgraphExec exec, CUstream stream, bool per_thread) {
    int card = vgi_before_launch();
    if (card < 0)
        return NULL;
    struct vgi_work work = {.what = (uintptr_t)exec, .stream = stream, .per_thread = per_thread};
    return vgi_pay_for((unsigned)card, &work);
}

VGI_HOOK CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    struct vgi_sample *sample = pay_for(exec, stream, false);
    return vgi_launched(sample, put_in_place(vgi_cuda.cuGraphLaunch, exec, stream, false));
}

VGI_HOOK CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    struct vgi_sample *sample = pay_for(exec, stream, true);
    return vgi_launched(sample, put_in_place(vgi_cuda.cuGraphLaunch_ptsz, exec, stream, true));
}

VGI_HOOK CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    return vgi_bind_cuda() ? put_in_place(vgi_cuda.cuGraphUpload, exec, stream, false) : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
    return vgi_bind_cuda() ? put_in_place(vgi_cuda.cuGraphUpload_ptsz, exec, stream, true) : VGI_NO_DRIVER;
}

/* ---- the end ---- */

static void settle_graphs_of(CUdevice device) {
    struct vgi_pool *pool = vgi_state() == VGI_ATTACHED ? vgi_pool_of_graphs(device) : NULL;
    if (pool != NULL)
        vgi_pool_look(pool);
}

/* Forgotten before the driver is asked: afterwards the same handle may already be another graph's. */
VGI_HOOK CUresult cuGraphExecDestroy(CUgraphExec exec) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    struct vgi_graph_memory *memory = vgi_graphs_allocate() ? vgi_graph_memory_take(exec) : NULL;
    vgi_forget_graph(exec);
    CUresult result = VGI_CUDA(cuGraphExecDestroy, exec);
    for (unsigned i = 0; memory != NULL && result == CUDA_SUCCESS && i < memory->count; i++)
        settle_graphs_of(memory->needs[i].device);
    if (memory != NULL && result != CUDA_SUCCESS)
        vgi_graph_memory_enter(exec, memory);
    else
        free(memory);
    return result;
}

VGI_HOOK CUresult cuDeviceGraphMemTrim(CUdevice device) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    CUresult result = vgi_graph_trim(device);
    settle_graphs_of(device);
    return result;
}
