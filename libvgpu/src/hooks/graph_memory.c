/* A device keeps one reserve for the memory of all graphs, which counts like a pool. An exec's memory is put in place
 * when it is first launched or uploaded, and stays until a trim: until then it is claimed no more. Graphs may share
 * memory, so the sum of a graph's allocations is the most that it can add. */
#include "graph_memory.h"

#include <stdlib.h>

static struct vgi_map execs; /* by exec; `owner` is the address of what it needs */
static _Atomic uint32_t known_execs;
static _Atomic uint64_t trims[VGI_MAX_DEVICES]; /* begun and ended ones */

void vgi_forget_graphs(void) {
    vgi_map_reset(&execs);
    atomic_store(&known_execs, 0);
}

/* ---- measuring ---- */

static void add_need(struct vgi_graph_memory *memory, const CUDA_MEM_ALLOC_NODE_PARAMS *p) {
    CUdevice device = p->poolProps.location.id;
    unsigned i = 0;
    if (p->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE || device < 0 || device >= VGI_MAX_DEVICES)
        return;
    while (i < memory->count && memory->needs[i].device != device)
        i++;
    if (i == memory->count)
        memory->needs[memory->count++] = (struct vgi_graph_need){.device = device};
    memory->needs[i].bytes += p->bytesize;
    memory->needs[i].pieces++;
}

static void measure(CUgraph graph, struct vgi_graph_memory *memory);

static void measure_node(CUgraphNode node, struct vgi_graph_memory *memory) {
    CUgraphNodeType type;
    CUDA_MEM_ALLOC_NODE_PARAMS allocation;
    CUgraph child = NULL;
    if (VGI_CUDA(cuGraphNodeGetType, node, &type) != CUDA_SUCCESS)
        return;
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
        VGI_CUDA(cuGraphMemAllocNodeGetParams, node, &allocation) == CUDA_SUCCESS)
        add_need(memory, &allocation);
    if (type == CU_GRAPH_NODE_TYPE_GRAPH && VGI_CUDA(cuGraphChildGraphNodeGetGraph, node, &child) == CUDA_SUCCESS)
        measure(child, memory);
}

static void measure(CUgraph graph, struct vgi_graph_memory *memory) {
    size_t count = 0;
    if (VGI_CUDA(cuGraphGetNodes, graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return;
    CUgraphNode *nodes = calloc(count, sizeof(CUgraphNode));
    if (nodes != NULL && VGI_CUDA(cuGraphGetNodes, graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count; i++)
            measure_node(nodes[i], memory);
    free(nodes);
}

struct vgi_graph_memory *vgi_graph_measure(CUgraph graph) {
    struct vgi_graph_memory memory = {.count = 0};
    if (graph == NULL || !vgi_is_limited())
        return NULL;
    measure(graph, &memory);
    struct vgi_graph_memory *kept = memory.count == 0 ? NULL : malloc(sizeof *kept);
    if (kept != NULL)
        *kept = memory;
    return kept;
}

/* ---- which exec needs what ---- */

bool vgi_graphs_allocate(void) {
    return __builtin_expect(atomic_load_explicit(&known_execs, memory_order_relaxed) != 0, 0);
}

struct vgi_graph_memory *vgi_graph_memory_of(CUgraphExec exec) {
    struct vgi_entry entry;
    bool known = exec != NULL && vgi_is_limited() && vgi_map_find(&execs, (uintptr_t)exec, &entry);
    return known ? (struct vgi_graph_memory *)(uintptr_t)entry.owner : NULL;
}

void vgi_graph_memory_enter(CUgraphExec exec, struct vgi_graph_memory *memory) {
    struct vgi_entry entry = {.key = (uintptr_t)exec, .owner = (uintptr_t)memory};
    if (vgi_map_put(&execs, &entry))
        atomic_fetch_add(&known_execs, 1);
}

struct vgi_graph_memory *vgi_graph_memory_take(CUgraphExec exec) {
    struct vgi_entry entry;
    if (exec == NULL || !vgi_is_limited() || !vgi_map_take(&execs, (uintptr_t)exec, &entry))
        return NULL;
    atomic_fetch_sub(&known_execs, 1);
    return (struct vgi_graph_memory *)(uintptr_t)entry.owner;
}

/* ---- claiming ---- */

static bool in_place(const struct vgi_graph_need *need) {
    return need->resident_since == atomic_load(&trims[need->device]) + 1;
}

CUresult vgi_graph_claim(struct vgi_graph_memory *memory, struct vgi_graph_claim *claim) {
    CUresult result = CUDA_SUCCESS;
    unsigned done = 0;
    for (; done < memory->count && result == CUDA_SUCCESS; done++) {
        const struct vgi_graph_need *need = &memory->needs[done];
        struct vgi_pool *pool = vgi_pool_of_graphs(need->device);
        claim->trims[done] = atomic_load(&trims[need->device]);
        claim->in_place[done] = in_place(need);
        if (!claim->in_place[done])
            result = pool == NULL ? CUDA_ERROR_OUT_OF_MEMORY
                                  : vgi_pool_claim(pool, need->bytes, need->pieces, &claim->growth[done]);
    }
    if (result == CUDA_SUCCESS)
        return result;
    for (unsigned i = 0; i + 1 < done; i++)
        if (!claim->in_place[i])
            (void)vgi_pool_settle(vgi_pool_of_graphs(memory->needs[i].device), &claim->growth[i], result);
    return result;
}

/* What was launched cannot be undone: if it reserved more than its nodes say, that is charged all the same. */
CUresult vgi_graph_settle(CUresult result, struct vgi_graph_memory *memory, struct vgi_graph_claim *claim) {
    for (unsigned i = 0; i < memory->count; i++) {
        struct vgi_graph_need *need = &memory->needs[i];
        if (claim->in_place[i])
            continue;
        (void)vgi_pool_settle(vgi_pool_of_graphs(need->device), &claim->growth[i], result);
        if (result == CUDA_SUCCESS)
            need->resident_since = claim->trims[i] + 1;
    }
    return result;
}

CUresult vgi_graph_trim(CUdevice device) {
    bool known = device >= 0 && device < VGI_MAX_DEVICES;
    if (known)
        atomic_fetch_add(&trims[device], 1);
    CUresult result = VGI_CUDA(cuDeviceGraphMemTrim, device);
    if (known)
        atomic_fetch_add(&trims[device], 1);
    return result;
}
