/* What a graph's launch costs, before one was measured: the sum over its kernels, where all of them are known. */
#ifndef VGPU_COMPUTE_GRAPH_COST_H
#define VGPU_COMPUTE_GRAPH_COST_H

#include "bind/table.h"

/* After an instantiation, while `graph` is still what was instantiated. */
void vgi_learn_graph(CUgraphExec exec, CUgraph graph);

/* The handle may become another graph's. */
void vgi_forget_graph(CUgraphExec exec);

#endif
