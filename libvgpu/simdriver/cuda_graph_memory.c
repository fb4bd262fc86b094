/* Memory that graphs allocate. A device keeps one reserve for all graphs: an exec's need is mapped from it when it is
 * first launched or uploaded, stays mapped while the exec or something it allocated lives, and returns to the card only
 * by a trim. An exec needs the most that is allocated at once in the order of its nodes. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

struct sim_graph_mapping {
    unsigned references; /* the exec, and each block that is allocated */
    unsigned allocated;
    uint64_t busy_until_ns;
    uint64_t bytes[SIM_MAX_CARDS]; /* by device */
    bool resident[SIM_MAX_CARDS];
    struct sim_graph_mapping *next;
};

struct reserve {
    uint64_t used, used_high, reserved, reserved_high;
};

static struct reserve reserves[SIM_MAX_CARDS];
static struct sim_graph_mapping *mappings; /* all guarded by sim.lock */

struct sim_graph_block *sim_graph_block_make(int device, size_t bytes) {
    struct sim_graph_block *block = calloc(1, sizeof *block);
    if (block == NULL)
        return NULL;
    *block = (struct sim_graph_block){.bytes = bytes, .device = device, .references = 1};
    block->address = sim_address_take(bytes);
    if (block->address != 0)
        return block;
    free(block);
    return NULL;
}

void sim_graph_block_drop(struct sim_graph_block *block) {
    pthread_mutex_lock(&sim.lock);
    bool last = --block->references == 0;
    pthread_mutex_unlock(&sim.lock);
    if (!last)
        return;
    sim_address_give_back(block->address, block->bytes);
    free(block);
}

/* ---- what a graph needs ---- */

struct need {
    CUgraph graph;
    uint64_t now[SIM_MAX_CARDS], most[SIM_MAX_CARDS];
};

static struct sim_graph_block *find_block(CUgraph graph, CUdeviceptr address) {
    struct sim_graph_block *found = NULL;
    for (CUgraphNode node = graph->first; node != NULL && found == NULL; node = node->next)
        if (node->type == CU_GRAPH_NODE_TYPE_GRAPH)
            found = find_block(node->child, address);
        else if (node->block != NULL && node->block->address == address)
            found = node->block;
    return found;
}

static CUresult add_need(CUgraphNode node, void *context) {
    struct need *need = context;
    if (node->type == CU_GRAPH_NODE_TYPE_GRAPH)
        return sim_graph_walk(node->child, add_need, need);
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
        int device = node->block->device;
        need->now[device] += sim_pool_round(device, node->block->bytes);
        if (need->now[device] > need->most[device])
            need->most[device] = need->now[device];
    } else if (node->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
        const struct sim_graph_block *freed = find_block(need->graph, node->freed);
        if (freed != NULL)
            need->now[freed->device] -= sim_pool_round(freed->device, freed->bytes);
    }
    return CUDA_SUCCESS;
}

/* ---- backing it; the caller holds sim.lock ---- */

static CUresult make_resident(struct sim_graph_mapping *mapping, int device) {
    struct reserve *reserve = &reserves[device];
    uint64_t spare = reserve->reserved - reserve->used, bytes = mapping->bytes[device];
    if (bytes > spare) {
        CUresult result = sim_charge(device, bytes - spare);
        if (result != CUDA_SUCCESS)
            return result;
        reserve->reserved += bytes - spare;
    }
    reserve->used += bytes;
    if (reserve->used > reserve->used_high)
        reserve->used_high = reserve->used;
    if (reserve->reserved > reserve->reserved_high)
        reserve->reserved_high = reserve->reserved;
    mapping->resident[device] = true;
    return CUDA_SUCCESS;
}

static void drop_mapping(struct sim_graph_mapping *mapping) {
    if (--mapping->references > 0)
        return;
    for (int device = 0; device < SIM_MAX_CARDS; device++)
        if (mapping->resident[device])
            reserves[device].used -= mapping->bytes[device];
    for (struct sim_graph_mapping **link = &mappings; *link != NULL; link = &(*link)->next)
        if (*link == mapping) {
            *link = mapping->next;
            break;
        }
    free(mapping);
}

CUresult sim_graph_map(CUgraph graph, struct sim_graph_mapping **mapping) {
    struct need need = {.graph = graph};
    bool any = false;
    CUresult result = sim_graph_walk(graph, add_need, &need);
    for (int device = 0; device < SIM_MAX_CARDS; device++)
        any = any || need.most[device] > 0;
    if (result != CUDA_SUCCESS || !any)
        return result;
    pthread_mutex_lock(&sim.lock);
    struct sim_graph_mapping *this = *mapping;
    if (this == NULL && (this = calloc(1, sizeof *this)) != NULL) {
        this->references = 1;
        memcpy(this->bytes, need.most, sizeof this->bytes);
        this->next = mappings;
        mappings = *mapping = this;
    }
    result = this == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    for (int device = 0; device < SIM_MAX_CARDS && result == CUDA_SUCCESS; device++)
        if (this->bytes[device] > 0 && !this->resident[device])
            result = make_resident(this, device);
    pthread_mutex_unlock(&sim.lock);
    return result;
}

void sim_graph_unmap(struct sim_graph_mapping *mapping) {
    if (mapping == NULL)
        return;
    pthread_mutex_lock(&sim.lock);
    drop_mapping(mapping);
    pthread_mutex_unlock(&sim.lock);
}

void sim_graph_mapping_busy(struct sim_graph_mapping *mapping, uint64_t until_ns) {
    if (mapping == NULL)
        return;
    pthread_mutex_lock(&sim.lock);
    if (until_ns > mapping->busy_until_ns)
        mapping->busy_until_ns = until_ns;
    pthread_mutex_unlock(&sim.lock);
}

/* ---- nodes at work ---- */

CUresult sim_graph_allocate(struct sim_graph_block *block, struct sim_graph_mapping *mapping) {
    pthread_mutex_lock(&sim.lock);
    bool entered = block->mapping == NULL && mapping != NULL &&
                   sim_allocation_add((struct sim_allocation){.address = block->address,
                                                              .bytes = block->bytes,
                                                              .device = block->device,
                                                              .kind = SIM_GRAPH,
                                                              .block = block});
    if (entered) {
        block->mapping = mapping;
        block->references++;
        mapping->references++;
        mapping->allocated++;
    }
    pthread_mutex_unlock(&sim.lock);
    return entered ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void sim_graph_block_freed(struct sim_graph_block *block) {
    pthread_mutex_lock(&sim.lock);
    block->mapping->allocated--;
    drop_mapping(block->mapping);
    block->mapping = NULL;
    pthread_mutex_unlock(&sim.lock);
    sim_graph_block_drop(block);
}

bool sim_graph_any_allocated(CUgraph graph) {
    bool any = false;
    for (CUgraphNode node = graph->first; node != NULL && !any; node = node->next)
        any = node->type == CU_GRAPH_NODE_TYPE_GRAPH ? sim_graph_any_allocated(node->child)
                                                     : node->block != NULL && node->block->mapping != NULL;
    return any;
}

void sim_graph_free_all(CUgraph graph) {
    for (CUgraphNode node = graph->first; node != NULL; node = node->next)
        if (node->type == CU_GRAPH_NODE_TYPE_GRAPH)
            sim_graph_free_all(node->child);
        else if (node->block != NULL && node->block->mapping != NULL)
            (void)sim_free(node->block->address);
}

/* ---- what is told of it ---- */

static CUresult check_device(CUdevice device) {
    CUresult result = sim_ready();
    return result == CUDA_SUCCESS && !sim_valid_device(device) ? CUDA_ERROR_INVALID_DEVICE : result;
}

/* What no graph uses that runs or is about to goes back to the card. */
SIM_API CUresult cuDeviceGraphMemTrim(CUdevice device) {
    CUresult result = check_device(device);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t now = sim_now_ns();
    pthread_mutex_lock(&sim.lock);
    struct reserve *reserve = &reserves[device];
    for (struct sim_graph_mapping *m = mappings; m != NULL; m = m->next)
        if (m->resident[device] && m->allocated == 0 && m->busy_until_ns <= now) {
            m->resident[device] = false;
            reserve->used -= m->bytes[device];
        }
    sim_uncharge(device, reserve->reserved - reserve->used);
    reserve->reserved = reserve->used;
    pthread_mutex_unlock(&sim.lock);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value) {
    CUresult result = check_device(device);
    if (result != CUDA_SUCCESS)
        return result;
    if (value == NULL || attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    const struct reserve *r = &reserves[device];
    const uint64_t values[] = {r->used, r->used_high, r->reserved, r->reserved_high};
    *(cuuint64_t *)value = values[attribute];
    pthread_mutex_unlock(&sim.lock);
    return CUDA_SUCCESS;
}

/* The high marks can be set, to nothing but zero. */
SIM_API CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value) {
    CUresult result = check_device(device);
    if (result != CUDA_SUCCESS)
        return result;
    bool high = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
    if (value == NULL || !high || *(cuuint64_t *)value != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
        reserves[device].used_high = reserves[device].used;
    else
        reserves[device].reserved_high = reserves[device].reserved;
    pthread_mutex_unlock(&sim.lock);
    return CUDA_SUCCESS;
}
