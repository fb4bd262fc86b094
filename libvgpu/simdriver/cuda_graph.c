/* Graphs: their nodes and edges, and what can be asked about them. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

#define GRAPH_MAGIC 0x47524146u
#define NODE_MAGIC 0x4e4f4445u

bool sim_is_graph(CUgraph graph) {
    return graph != NULL && graph->magic == GRAPH_MAGIC;
}

static bool is_node(CUgraphNode node) {
    return node != NULL && node->magic == NODE_MAGIC;
}

CUgraph sim_graph_make(void) {
    CUgraph graph = calloc(1, sizeof *graph);
    if (graph != NULL)
        graph->magic = GRAPH_MAGIC;
    return graph;
}

static void free_node(CUgraphNode node) {
    if (node->type == CU_GRAPH_NODE_TYPE_GRAPH)
        sim_graph_free(node->child);
    if (node->block != NULL)
        sim_graph_block_drop(node->block);
    free(node->dependencies);
    node->magic = 0;
    free(node);
}

void sim_graph_free(CUgraph graph) {
    for (CUgraphNode node = graph->first, next; node != NULL; node = next) {
        next = node->next;
        free_node(node);
    }
    graph->magic = 0;
    free(graph);
}

static bool add_dependencies(CUgraphNode node, const CUgraphNode *dependencies, size_t count) {
    if (count == 0)
        return true;
    CUgraphNode *grown = realloc(node->dependencies, (node->dependency_count + count) * sizeof(CUgraphNode));
    if (grown == NULL)
        return false;
    memcpy(grown + node->dependency_count, dependencies, count * sizeof(CUgraphNode));
    node->dependencies = grown;
    node->dependency_count += count;
    return true;
}

CUresult sim_graph_add(CUgraph graph, const CUgraphNode *dependencies, size_t count,
                       const struct CUgraphNode_st *content, CUgraphNode *made) {
    if (!sim_is_graph(graph) || made == NULL || (count > 0 && dependencies == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!is_node(dependencies[i]) || dependencies[i]->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
    CUgraphNode node = malloc(sizeof *node);
    if (node == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *node = *content;
    node->magic = NODE_MAGIC;
    node->graph = graph;
    node->dependencies = NULL;
    node->dependency_count = 0;
    node->next = NULL;
    if (!add_dependencies(node, dependencies, count)) {
        free(node);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (node->block != NULL)
        node->block->references++;
    if (graph->last != NULL)
        graph->last->next = node;
    else
        graph->first = node;
    graph->last = node;
    graph->count++;
    *made = node;
    return CUDA_SUCCESS;
}

static bool is_free_to_run(CUgraphNode node) {
    for (size_t i = 0; i < node->dependency_count; i++)
        if (!node->dependencies[i]->done)
            return false;
    return true;
}

CUresult sim_graph_walk(CUgraph graph, CUresult (*visit)(CUgraphNode node, void *context), void *context) {
    size_t left = graph->count;
    for (CUgraphNode node = graph->first; node != NULL; node = node->next)
        node->done = false;
    for (bool advanced = true; left > 0 && advanced;) {
        advanced = false;
        for (CUgraphNode node = graph->first; node != NULL; node = node->next) {
            if (node->done || !is_free_to_run(node))
                continue;
            CUresult result = visit(node, context);
            if (result != CUDA_SUCCESS)
                return result;
            node->done = advanced = true;
            left--;
        }
    }
    return left == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; /* what is left is a circle */
}

/* The node of the clone made from that one. */
static CUgraphNode find_in_clone(CUgraph clone, CUgraphNode original) {
    CUgraphNode node = clone->first;
    while (node != NULL && node->original != original)
        node = node->next;
    return node;
}

CUgraph sim_graph_copy(CUgraph graph) {
    CUgraph copy = sim_graph_make();
    bool complete = copy != NULL;
    for (CUgraphNode node = graph->first; complete && node != NULL; node = node->next) {
        struct CUgraphNode_st content = *node;
        CUgraphNode made = NULL;
        content.original = node;
        if (node->type == CU_GRAPH_NODE_TYPE_GRAPH) {
            content.child = sim_graph_copy(node->child);
            complete = content.child != NULL;
            if (complete)
                content.child->owned = true;
        }
        complete = complete && sim_graph_add(copy, NULL, 0, &content, &made) == CUDA_SUCCESS;
    }
    for (CUgraphNode node = complete ? copy->first : NULL; complete && node != NULL; node = node->next)
        for (size_t i = 0; complete && i < node->original->dependency_count; i++) {
            CUgraphNode dependency = find_in_clone(copy, node->original->dependencies[i]);
            complete = add_dependencies(node, &dependency, 1);
        }
    if (complete || copy == NULL)
        return copy;
    sim_graph_free(copy);
    return NULL;
}

SIM_API CUresult cuGraphCreate(CUgraph *graph, unsigned int flags) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (graph == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = sim_graph_make();
    return *graph == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

SIM_API CUresult cuGraphDestroy(CUgraph graph) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (!sim_is_graph(graph) || graph->owned)
        return CUDA_ERROR_INVALID_VALUE;
    sim_graph_free(graph);
    return CUDA_SUCCESS;
}

static CUresult no_memory_node(CUgraphNode node, void *unused) {
    (void)unused;
    return node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE
               ? CUDA_ERROR_NOT_SUPPORTED
               : CUDA_SUCCESS;
}

/* A graph that allocates cannot be cloned, nor be a child that is copied. */
SIM_API CUresult cuGraphClone(CUgraph *clone, CUgraph original) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (clone == NULL || !sim_is_graph(original))
        return CUDA_ERROR_INVALID_VALUE;
    result = sim_graph_walk(original, no_memory_node, NULL);
    if (result != CUDA_SUCCESS)
        return result;
    *clone = sim_graph_copy(original);
    return *clone == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

SIM_API CUresult cuGraphNodeFindInClone(CUgraphNode *node, CUgraphNode original, CUgraph clone) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (node == NULL || !is_node(original) || !sim_is_graph(clone))
        return CUDA_ERROR_INVALID_VALUE;
    *node = find_in_clone(clone, original);
    return *node == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static void forget_dependency(CUgraphNode node, CUgraphNode gone) {
    for (size_t i = 0; i < node->dependency_count;)
        if (node->dependencies[i] == gone)
            node->dependencies[i] = node->dependencies[--node->dependency_count];
        else
            i++;
}

/* Nodes of a graph that allocates stay. */
SIM_API CUresult cuGraphDestroyNode(CUgraphNode node) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (!is_node(node))
        return CUDA_ERROR_INVALID_VALUE;
    CUgraph graph = node->graph;
    result = sim_graph_walk(graph, no_memory_node, NULL);
    if (result != CUDA_SUCCESS)
        return result;
    CUgraphNode before = NULL;
    for (CUgraphNode other = graph->first; other != NULL; other = other->next) {
        forget_dependency(other, node);
        if (other->next == node)
            before = other;
    }
    if (before != NULL)
        before->next = node->next;
    else
        graph->first = node->next;
    if (graph->last == node)
        graph->last = before;
    graph->count--;
    free_node(node);
    return CUDA_SUCCESS;
}

/* As the reference says for lists: without an array, how many there are; with one, as many as fit, the rest NULL. */
struct listing {
    CUgraphNode *nodes;
    size_t room, found;
};

static void list_node(struct listing *listing, CUgraphNode node) {
    if (listing->nodes != NULL && listing->found < listing->room)
        listing->nodes[listing->found] = node;
    listing->found++;
}

static CUresult end_listing(struct listing *listing, size_t *count) {
    for (size_t i = listing->found; listing->nodes != NULL && i < listing->room; i++)
        listing->nodes[i] = NULL;
    *count = listing->nodes != NULL && listing->room < listing->found ? listing->room : listing->found;
    return CUDA_SUCCESS;
}

static CUresult list_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count, bool roots_only) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (!sim_is_graph(graph) || count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct listing listing = {.nodes = nodes, .room = *count};
    for (CUgraphNode node = graph->first; node != NULL; node = node->next)
        if (!roots_only || node->dependency_count == 0)
            list_node(&listing, node);
    return end_listing(&listing, count);
}

SIM_API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *numNodes) {
    return list_nodes(graph, nodes, numNodes, false);
}

SIM_API CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *rootNodes, size_t *numRootNodes) {
    return list_nodes(graph, rootNodes, numRootNodes, true);
}

SIM_API CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *dependencies, size_t *numDependencies) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (!is_node(node) || numDependencies == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct listing listing = {.nodes = dependencies, .room = *numDependencies};
    for (size_t i = 0; i < node->dependency_count; i++)
        list_node(&listing, node->dependencies[i]);
    return end_listing(&listing, numDependencies);
}

SIM_API CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (!sim_is_graph(graph) || numEdges == NULL || (from == NULL) != (to == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    struct listing sources = {.nodes = from, .room = *numEdges}, targets = {.nodes = to, .room = *numEdges};
    for (CUgraphNode node = graph->first; node != NULL; node = node->next)
        for (size_t i = 0; i < node->dependency_count; i++) {
            list_node(&sources, node->dependencies[i]);
            list_node(&targets, node);
        }
    (void)end_listing(&sources, numEdges);
    return end_listing(&targets, numEdges);
}

SIM_API CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
    CUresult result = sim_ready();
    if (result == CUDA_SUCCESS && (!is_node(node) || type == NULL))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *type = node->type;
    return result;
}

SIM_API CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                        size_t numDependencies) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (!sim_is_graph(graph) || (numDependencies > 0 && (from == NULL || to == NULL)))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < numDependencies; i++) {
        if (!is_node(from[i]) || !is_node(to[i]) || from[i]->graph != graph || to[i]->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
        if (!add_dependencies(to[i], &from[i], 1))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph) {
    CUresult result = sim_ready();
    if (result == CUDA_SUCCESS && (!is_node(node) || graph == NULL || node->type != CU_GRAPH_NODE_TYPE_GRAPH))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *graph = node->child;
    return result;
}

SIM_API CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams) {
    CUresult result = sim_ready();
    if (result == CUDA_SUCCESS && (!is_node(node) || nodeParams == NULL || node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *nodeParams = node->allocation;
    return result;
}

SIM_API CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *pointer) {
    CUresult result = sim_ready();
    if (result == CUDA_SUCCESS && (!is_node(node) || pointer == NULL || node->type != CU_GRAPH_NODE_TYPE_MEM_FREE))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *pointer = node->freed;
    return result;
}
