/* Seams of the graph hooks: who else has business with graphs that can be launched. */
#ifndef VGPU_HOOKS_GRAPH_H
#define VGPU_HOOKS_GRAPH_H

#include "account/account.h"

/* hooks/launch.c. After an instantiation, while `graph` is still what was instantiated; before a launch; at the end. */
void vgi_launch_learn_graph(CUgraphExec exec, CUgraph graph);
void vgi_launch_gate_graph(CUgraphExec exec);
void vgi_launch_forget_graph(CUgraphExec exec);

#endif
