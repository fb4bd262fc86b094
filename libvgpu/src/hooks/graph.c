/* Graphs that can be launched: their kernels are held to the slice's cores like other kernels. */
#include "allocation.h"
#include "compute/gate.h"
#include "compute/graph_cost.h"

static CUresult learn(CUresult result, const CUgraphExec *exec, CUgraph graph) {
    if (result == CUDA_SUCCESS && exec != NULL)
        vgi_learn_graph(*exec, graph);
    return result;
}

#define INSTANTIATE(symbol, parameters, ...)                                                                           \
    VGI_HOOK CUresult symbol parameters {                                                                              \
        return vgi_bind_cuda() ? learn(VGI_CUDA(symbol, exec, graph, __VA_ARGS__), exec, graph) : VGI_NO_DRIVER;       \
    }

INSTANTIATE(cuGraphInstantiate,
            (CUgraphExec * exec, CUgraph graph, CUgraphNode *errorNode, char *logBuffer, size_t bufferSize), errorNode,
            logBuffer, bufferSize)
INSTANTIATE(cuGraphInstantiate_v2,
            (CUgraphExec * exec, CUgraph graph, CUgraphNode *errorNode, char *logBuffer, size_t bufferSize), errorNode,
            logBuffer, bufferSize)
INSTANTIATE(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags), flags)
INSTANTIATE(cuGraphInstantiateWithParams,
            (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams), instantiateParams)
INSTANTIATE(cuGraphInstantiateWithParams_ptsz,
            (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams), instantiateParams)

VGI_HOOK CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    struct vgi_work work = {.what = (uintptr_t)exec, .stream = stream};
    struct vgi_sample *sample = vgi_before_launch(&work);
    return vgi_launched(sample, VGI_CUDA(cuGraphLaunch, exec, stream));
}

VGI_HOOK CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    struct vgi_work work = {.what = (uintptr_t)exec, .stream = stream, .per_thread = true};
    struct vgi_sample *sample = vgi_before_launch(&work);
    return vgi_launched(sample, VGI_CUDA(cuGraphLaunch_ptsz, exec, stream));
}

VGI_HOOK CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    return vgi_bind_cuda() ? VGI_CUDA(cuGraphUpload, exec, stream) : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
    return vgi_bind_cuda() ? VGI_CUDA(cuGraphUpload_ptsz, exec, stream) : VGI_NO_DRIVER;
}

/* Forgotten before the driver is asked: afterwards the same handle may already be another graph's. */
VGI_HOOK CUresult cuGraphExecDestroy(CUgraphExec exec) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    vgi_forget_graph(exec);
    return VGI_CUDA(cuGraphExecDestroy, exec);
}

VGI_HOOK CUresult cuDeviceGraphMemTrim(CUdevice device) {
    return vgi_bind_cuda() ? VGI_CUDA(cuDeviceGraphMemTrim, device) : VGI_NO_DRIVER;
}
