/* Graphs that can be launched. A launch does what its nodes say, in their order; its kernels take their time on the
 * card, one after the other. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

#define EXEC_MAGIC 0x47455845u

struct CUgraphExec_st {
    uint32_t magic;
    unsigned long long flags;
    CUgraph graph; /* its own copy */
    struct sim_graph_mapping *mapping;
};

static bool is_exec(CUgraphExec exec) {
    return exec != NULL && exec->magic == EXEC_MAGIC;
}

CUgraph sim_graph_of_exec(CUgraphExec exec) {
    return is_exec(exec) ? exec->graph : NULL;
}

static CUresult visit_nothing(CUgraphNode node, void *unused) {
    (void)node, (void)unused;
    return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (exec == NULL || !sim_is_graph(graph) || flags > 15)
        return CUDA_ERROR_INVALID_VALUE;
    result = sim_graph_walk(graph, visit_nothing, NULL);
    if (result != CUDA_SUCCESS)
        return result;
    CUgraphExec made = calloc(1, sizeof *made);
    if (made != NULL)
        made->graph = sim_graph_copy(graph);
    if (made == NULL || made->graph == NULL) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->magic = EXEC_MAGIC;
    made->flags = flags;
    made->graph->owned = true;
    *exec = made;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *errorNode, char *logBuffer,
                                    size_t bufferSize) {
    if (errorNode != NULL)
        *errorNode = NULL;
    if (logBuffer != NULL && bufferSize > 0)
        logBuffer[0] = '\0';
    return instantiate(exec, graph, 0);
}

SIM_API CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *errorNode, char *logBuffer,
                                       size_t bufferSize) {
    return cuGraphInstantiate(exec, graph, errorNode, logBuffer, bufferSize);
}

SIM_API CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    return instantiate(exec, graph, flags & ~(unsigned long long)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
}

static CUresult upload(CUgraphExec exec) {
    if (!is_exec(exec))
        return CUDA_ERROR_INVALID_VALUE;
    return sim_graph_map(exec->graph, &exec->mapping);
}

static CUresult instantiate_with(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p) {
    if (p == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = instantiate(exec, graph, p->flags);
    if (result == CUDA_SUCCESS && (p->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) {
        result = upload(*exec);
        if (result != CUDA_SUCCESS)
            (void)cuGraphExecDestroy(*exec);
    }
    p->hErrNode_out = NULL;
    p->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

SIM_API CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                              CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams) {
    return instantiate_with(exec, graph, instantiateParams);
}

SIM_API CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                                   CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams) {
    return instantiate_with(exec, graph, instantiateParams);
}

SIM_API CUresult cuGraphExecDestroy(CUgraphExec exec) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (!is_exec(exec))
        return CUDA_ERROR_INVALID_VALUE;
    sim_graph_unmap(exec->mapping);
    sim_graph_free(exec->graph);
    exec->magic = 0;
    free(exec);
    return CUDA_SUCCESS;
}

struct launch {
    CUstream stream;
    bool per_thread;
    struct sim_graph_mapping *mapping;
};

static CUresult run(CUgraphNode node, void *context);

static void copy_box(const struct sim_copy *c) {
    for (size_t z = 0; z < c->depth; z++)
        for (size_t y = 0; y < c->height; y++)
            (void)cuMemcpy(c->destination + z * c->destination_slice + y * c->destination_pitch,
                           c->source + z * c->source_slice + y * c->source_pitch, c->width);
}

static CUresult fill_rows(const CUDA_MEMSET_NODE_PARAMS_v1 *f) {
    CUresult result = CUDA_SUCCESS;
    for (size_t y = 0; y < f->height && result == CUDA_SUCCESS; y++) {
        CUdeviceptr row = f->dst + y * f->pitch;
        if (f->elementSize == 4)
            result = cuMemsetD32_v2(row, f->value, f->width);
        else if (f->elementSize == 1)
            result = cuMemsetD8_v2(row, (unsigned char)f->value, f->width);
        else
            for (size_t x = 0; x < f->width && result == CUDA_SUCCESS; x++) {
                result = cuMemsetD8_v2(row + 2 * x, (unsigned char)f->value, 1);
                if (result == CUDA_SUCCESS)
                    result = cuMemsetD8_v2(row + 2 * x + 1, (unsigned char)(f->value >> 8), 1);
            }
    }
    return result;
}

static CUresult run(CUgraphNode node, void *context) {
    struct launch *launch = context;
    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return sim_kernel_run(&node->kernel, launch->stream, launch->per_thread);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        copy_box(&node->copy);
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return fill_rows(&node->fill);
    case CU_GRAPH_NODE_TYPE_HOST:
        node->host.fn(node->host.userData);
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return sim_graph_walk(node->child, run, launch);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return sim_graph_allocate(node->block, launch->mapping);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return sim_free(node->freed);
    default:
        return CUDA_SUCCESS;
    }
}

static CUresult launch(CUgraphExec exec, CUstream stream, bool per_thread) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!is_exec(exec))
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_capture *capture = sim_capture_of(stream, per_thread);
    if (capture != NULL) {
        struct CUgraphNode_st content = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .child = sim_graph_copy(exec->graph)};
        CUgraphNode made = NULL;
        return sim_capture_add(capture, stream, per_thread, &content, &made);
    }
    if ((exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0)
        sim_graph_free_all(exec->graph);
    else if (sim_graph_any_allocated(exec->graph))
        return CUDA_ERROR_INVALID_VALUE; /* what the last launch allocated was not freed */
    result = upload(exec);
    if (result != CUDA_SUCCESS)
        return result;
    struct launch this = {stream, per_thread, exec->mapping};
    sim_host_spend(SIM_LAUNCH_HOST_NS);
    result = sim_graph_walk(exec->graph, run, &this);
    sim_graph_mapping_busy(exec->mapping, sim_stream_end(stream, per_thread));
    return result;
}

SIM_API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    return launch(exec, stream, false);
}

SIM_API CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    return launch(exec, stream, true);
}

SIM_API CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    (void)stream;
    return result == CUDA_SUCCESS ? upload(exec) : result;
}

SIM_API CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
    return cuGraphUpload(exec, stream);
}

/* The same nodes with other parameters; graphs that allocate cannot be updated. */
static CUgraphExecUpdateResult update(CUgraph own, CUgraph with, CUgraphNode *wrong) {
    CUgraphNode mine = own->first, theirs = with->first;
    for (; mine != NULL && theirs != NULL; mine = mine->next, theirs = theirs->next) {
        *wrong = theirs;
        if (mine->type != theirs->type)
            return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        if (mine->dependency_count != theirs->dependency_count)
            return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        if (mine->block != NULL || mine->type == CU_GRAPH_NODE_TYPE_GRAPH)
            return CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
    }
    if (mine != NULL || theirs != NULL)
        return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    *wrong = NULL;
    for (mine = own->first, theirs = with->first; mine != NULL; mine = mine->next, theirs = theirs->next)
        switch (mine->type) {
        case CU_GRAPH_NODE_TYPE_KERNEL:
            mine->kernel = theirs->kernel;
            break;
        case CU_GRAPH_NODE_TYPE_MEMCPY:
            mine->copy = theirs->copy;
            break;
        case CU_GRAPH_NODE_TYPE_MEMSET:
            mine->fill = theirs->fill;
            break;
        case CU_GRAPH_NODE_TYPE_HOST:
            mine->host = theirs->host;
            break;
        default:
            break;
        }
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

SIM_API CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *resultInfo) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (!is_exec(exec) || !sim_is_graph(graph) || resultInfo == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memset(resultInfo, 0, sizeof *resultInfo);
    resultInfo->result = update(exec->graph, graph, &resultInfo->errorNode);
    return resultInfo->result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

SIM_API CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *errorNode,
                                   CUgraphExecUpdateResult *updateResult) {
    CUgraphExecUpdateResultInfo info;
    if (errorNode == NULL || updateResult == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuGraphExecUpdate_v2(exec, graph, &info);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE) {
        *errorNode = info.errorNode;
        *updateResult = info.result;
    }
    return result;
}
