/* Memory that graphs allocate when they are launched. */
#ifndef VGPU_HOOKS_GRAPH_MEMORY_H
#define VGPU_HOOKS_GRAPH_MEMORY_H

#include "pool_account.h"

/* What an exec's allocation nodes may need at most, by device. */
struct vgi_graph_need {
    CUdevice device;
    uint64_t bytes, pieces;
    uint64_t resident_since; /* count of the device's trims when its memory was last in place; 0 = it is not */
};

struct vgi_graph_memory {
    unsigned count;
    struct vgi_graph_need needs[VGI_MAX_DEVICES];
};

/* What the graph's nodes allocate, its children's too. NULL: nothing. */
struct vgi_graph_memory *vgi_graph_measure(CUgraph graph);

/* Whether an exec that allocates was made; and what that one needs, or NULL. */
bool vgi_graphs_allocate(void);
struct vgi_graph_memory *vgi_graph_memory_of(CUgraphExec exec);
void vgi_graph_memory_enter(CUgraphExec exec, struct vgi_graph_memory *memory);
struct vgi_graph_memory *vgi_graph_memory_take(CUgraphExec exec);

/* Around a call that puts it in place. */
struct vgi_graph_claim {
    struct vgi_growth growth[VGI_MAX_DEVICES];
    uint64_t trims[VGI_MAX_DEVICES];
    bool in_place[VGI_MAX_DEVICES]; /* so nothing was claimed */
};
CUresult vgi_graph_claim(struct vgi_graph_memory *memory, struct vgi_graph_claim *claim);
CUresult vgi_graph_settle(CUresult result, struct vgi_graph_memory *memory, struct vgi_graph_claim *claim);

/* The driver's trim, after which what it took away is claimed anew. */
CUresult vgi_graph_trim(CUdevice device);

#endif
