/* Graphs, their executable copies, their memory, and the capture of streams into graphs. */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H

#include "driver.h"

struct sim_kernel {
    CUfunction function;
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    void **parameters, **extra; /* as given; nothing is computed with them */
};

/* A box of bytes: rows of `width` at a pitch, slices of rows. */
struct sim_copy {
    CUdeviceptr destination, source;
    size_t width, height, depth;
    size_t destination_pitch, destination_slice, source_pitch, source_slice;
};

/* Memory of an allocation node: its address belongs to the graph and all its copies, whether it is allocated or not. */
struct sim_graph_block {
    CUdeviceptr address;
    size_t bytes;
    int device;
    unsigned references;
    struct sim_graph_mapping *mapping; /* what backs it while it is allocated */
};

struct CUgraphNode_st {
    uint32_t magic;
    CUgraphNodeType type;
    CUgraph graph;
    CUgraphNode original; /* in a clone */
    CUgraphNode *dependencies;
    size_t dependency_count;
    CUgraphNode next;
    bool done; /* while a graph is walked in order */
    union {
        struct sim_kernel kernel;
        struct sim_copy copy;
        CUDA_MEMSET_NODE_PARAMS_v1 fill;
        CUDA_HOST_NODE_PARAMS_v1 host;
        CUgraph child;
        CUdeviceptr freed;
    };
    CUDA_MEM_ALLOC_NODE_PARAMS allocation;
    struct sim_graph_block *block;
};

struct CUgraph_st {
    uint32_t magic;
    bool owned; /* by a node or an exec: not the program's to destroy */
    CUgraphNode first, last;
    size_t count;
};

/* ---- cuda_graph.c ---- */

bool sim_is_graph(CUgraph graph);
CUgraph sim_graph_make(void);
CUgraph sim_graph_copy(CUgraph graph);
void sim_graph_free(CUgraph graph);
CUresult sim_graph_add(CUgraph graph, const CUgraphNode *dependencies, size_t count,
                       const struct CUgraphNode_st *content, CUgraphNode *made);

/* Calls `visit` for each node after all it depends on; stops at what is no success. */
CUresult sim_graph_walk(CUgraph graph, CUresult (*visit)(CUgraphNode node, void *context), void *context);

/* ---- cuda_graph_exec.c ---- */

CUgraph sim_graph_of_exec(CUgraphExec exec); /* NULL where it is none */

/* ---- cuda_launch.c ---- */

CUresult sim_kernel_is_valid(const struct sim_kernel *kernel);
CUresult sim_kernel_run(const struct sim_kernel *kernel, CUstream stream, bool per_thread);

/* ---- cuda_graph_memory.c ---- */

struct sim_graph_block *sim_graph_block_make(int device, size_t bytes);
void sim_graph_block_drop(struct sim_graph_block *block);

/* Backs an exec's memory; NULL where it allocates none. Dropped by the exec and by each block that is allocated. */
CUresult sim_graph_map(CUgraph graph, struct sim_graph_mapping **mapping);
void sim_graph_unmap(struct sim_graph_mapping *mapping);
void sim_graph_mapping_busy(struct sim_graph_mapping *mapping, uint64_t until_ns);
bool sim_graph_any_allocated(CUgraph graph);
void sim_graph_free_all(CUgraph graph);
CUresult sim_graph_allocate(struct sim_graph_block *block, struct sim_graph_mapping *mapping);

/* ---- cuda_capture.c ---- */

struct sim_capture;

/* The capture that the stream takes part in, or NULL. */
struct sim_capture *sim_capture_of(CUstream stream, bool per_thread);

/* Adds a node to it, after what the stream did last. */
CUresult sim_capture_add(struct sim_capture *capture, CUstream stream, bool per_thread,
                         const struct CUgraphNode_st *content, CUgraphNode *made);

/* An event that takes part in a capture. Whether the call was one of the capture's; `result` is then its answer. */
bool sim_capture_record(CUevent event, CUstream stream, bool per_thread);
bool sim_capture_wait(CUstream stream, bool per_thread, CUevent event, CUresult *result);
bool sim_capture_has_event(CUevent event);

/* A stream or an event is being destroyed. Without the stream that began it a capture is over, without another it is
 * spoilt. */
void sim_capture_stream_ended(CUstream stream);
void sim_capture_event_ended(CUevent event);

/* Waiting for, or asking about, a stream that is captured. */
CUresult sim_capture_forbids_wait(CUstream stream, bool per_thread);

#endif
