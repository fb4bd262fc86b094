/* This process's allocations by address, and their place in the books. */
#include <stdlib.h>
#include <sys/mman.h>

#include "objects.h"
#include "pool.h"

#define BUCKETS (1u << 16)

static struct sim_allocation *table[BUCKETS];

static unsigned bucket_of(CUdeviceptr address) {
    return (unsigned)((address >> 12) * 0x9e3779b97f4a7c15ull >> 48);
}

struct sim_allocation *sim_allocation_find(CUdeviceptr address) {
    for (struct sim_allocation *a = table[bucket_of(address)]; a != NULL; a = a->next)
        if (a->address == address)
            return a;
    return NULL;
}

struct sim_allocation *sim_allocation_containing(CUdeviceptr address) {
    struct sim_allocation *found = sim_allocation_find(address);
    for (unsigned i = 0; i < BUCKETS && found == NULL; i++)
        for (struct sim_allocation *a = table[i]; a != NULL && found == NULL; a = a->next)
            if (address >= a->address && address - a->address < a->bytes)
                found = a;
    return found;
}

bool sim_allocation_add(struct sim_allocation allocation) {
    struct sim_allocation *entry = malloc(sizeof *entry);
    if (entry == NULL)
        return false;
    struct sim_allocation **head = &table[bucket_of(allocation.address)];
    *entry = allocation;
    entry->next = *head;
    *head = entry;
    return true;
}

bool sim_allocation_remove(CUdeviceptr address, struct sim_allocation *removed) {
    for (struct sim_allocation **link = &table[bucket_of(address)]; *link != NULL; link = &(*link)->next) {
        struct sim_allocation *entry = *link;
        if (entry->address != address)
            continue;
        *removed = *entry;
        *link = entry->next;
        free(entry);
        return true;
    }
    return false;
}

CUresult sim_charge(int device, size_t bytes) {
    const struct sim_card *card = sim_card_of(device);
    uint64_t capacity = card->memory_bytes - card->reserved_bytes;
    sim_books_lock(sim.books);
    struct sim_card_state *state = sim_state_of(device);
    if (bytes > capacity || state->used_bytes > capacity - bytes)
        sim_books_reclaim(sim.books);
    bool fits = bytes <= capacity && state->used_bytes <= capacity - bytes;
    if (fits) {
        sim_own_card(device)->used_bytes += bytes;
        state->used_bytes += bytes;
    }
    sim_books_unlock(sim.books);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void sim_uncharge(int device, size_t bytes) {
    sim_books_lock(sim.books);
    sim_state_of(device)->used_bytes -= bytes;
    sim_own_card(device)->used_bytes -= bytes;
    sim_books_unlock(sim.books);
}

void sim_count_allocations(int device, int change) {
    sim_books_lock(sim.books);
    sim_own_card(device)->allocations += (uint32_t)change;
    sim_books_unlock(sim.books);
}

/* Gives the pages back that were touched, so that a reused address reads as fresh memory. */
static void forget_content(const struct sim_allocation *a) {
    if (a->touched || a->kind == SIM_MANAGED) /* managed memory the program may touch itself */
        madvise((void *)(uintptr_t)a->address, a->bytes, MADV_DONTNEED);
}

void sim_allocation_released(const struct sim_allocation *removed) {
    if (removed->kind == SIM_HOST || removed->kind == SIM_REGISTERED) {
        sim_host_released(removed);
        return;
    }
    forget_content(removed);
    if (removed->kind == SIM_GRAPH) {
        sim_graph_block_freed(removed->block);
        return;
    }
    sim_address_give_back(removed->address, removed->bytes);
    sim_count_allocations(removed->device, -1);
    if (removed->kind == SIM_POOLED)
        sim_pool_returned(removed->pool, removed->bytes);
    else if (removed->kind == SIM_LINEAR || removed->kind == SIM_MANAGED)
        sim_uncharge(removed->device, removed->bytes);
}

void sim_free_context_memory(CUcontext context) {
    sim_objects_end_with(context);
    for (unsigned i = 0; i < BUCKETS; i++) {
        pthread_mutex_lock(&sim.lock);
        struct sim_allocation **link = &table[i];
        while (*link != NULL) {
            struct sim_allocation *entry = *link;
            /* Pools and mapped handles outlive the context. */
            if (entry->context != context || entry->kind == SIM_POOLED || entry->kind == SIM_MAPPED) {
                link = &entry->next;
                continue;
            }
            *link = entry->next;
            sim_allocation_released(entry);
            free(entry);
        }
        pthread_mutex_unlock(&sim.lock);
    }
}

CUresult sim_allocate(CUdeviceptr *pointer, size_t bytes, enum sim_allocation_kind kind,
                      CUdeviceptr (*take)(size_t bytes)) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (pointer == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    result = sim_unsafe_call();
    if (result == CUDA_SUCCESS)
        result = sim_charge(context->device, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    struct sim_allocation made = {.bytes = bytes, .device = context->device, .kind = kind, .context = context};
    made.address = take(bytes);
    pthread_mutex_lock(&sim.lock);
    bool entered = made.address != 0 && sim_allocation_add(made);
    pthread_mutex_unlock(&sim.lock);
    if (!entered) {
        if (made.address != 0)
            sim_address_give_back(made.address, bytes);
        sim_uncharge(context->device, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_count_allocations(context->device, 1);
    *pointer = made.address;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    return sim_allocate(pointer, bytes, SIM_LINEAR, sim_address_take);
}

SIM_API CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags) {
    if (flags != 1 && flags != 2)
        return CUDA_ERROR_INVALID_VALUE;
    return sim_allocate(pointer, bytes, SIM_MANAGED, sim_address_take);
}

SIM_API CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t widthInBytes, size_t height,
                                    unsigned int elementSizeBytes) {
    if (pitch == NULL || widthInBytes == 0 || height == 0 ||
        (elementSizeBytes != 4 && elementSizeBytes != 8 && elementSizeBytes != 16))
        return CUDA_ERROR_INVALID_VALUE;
    size_t row = (widthInBytes + 511) & ~(size_t)511;
    size_t bytes = 0;
    if (row < widthInBytes || __builtin_mul_overflow(row, height, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = sim_allocate(pointer, bytes, SIM_LINEAR, sim_address_take);
    if (result == CUDA_SUCCESS)
        *pitch = row;
    return result;
}

CUresult sim_free(CUdeviceptr pointer) {
    struct sim_allocation removed;
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS || pointer == 0)
        return result;
    pthread_mutex_lock(&sim.lock);
    const struct sim_allocation *found = sim_allocation_find(pointer);
    if (found == NULL || (found->kind != SIM_LINEAR && found->kind != SIM_MANAGED && found->kind != SIM_POOLED &&
                          found->kind != SIM_GRAPH && found->kind != SIM_EXTERNAL_BUFFER))
        result = CUDA_ERROR_INVALID_VALUE;
    else if ((result = sim_card_fault(found->device)) == CUDA_SUCCESS)
        (void)sim_allocation_remove(pointer, &removed);
    pthread_mutex_unlock(&sim.lock);
    if (result == CUDA_SUCCESS)
        sim_allocation_released(&removed);
    return result;
}

/* Waits for what uses the memory, as the driver does; pools then give back what they need not keep. */
SIM_API CUresult cuMemFree_v2(CUdeviceptr pointer) {
    CUresult result = sim_unsafe_call();
    if (result == CUDA_SUCCESS)
        result = sim_free(pointer);
    if (result == CUDA_SUCCESS)
        sim_pools_synchronised();
    return result;
}

SIM_API CUresult cuMemGetInfo_v2(size_t *freeBytes, size_t *totalBytes) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    const struct sim_card *card = sim_card_of(context->device);
    sim_books_lock(sim.books);
    sim_books_reclaim(sim.books);
    uint64_t used = sim_state_of(context->device)->used_bytes;
    sim_books_unlock(sim.books);
    uint64_t total = card->memory_bytes - card->reserved_bytes;
    if (totalBytes != NULL) /* programs are known to ask for one of them only */
        *totalBytes = total;
    if (freeBytes != NULL)
        *freeBytes = total - used;
    return CUDA_SUCCESS;
}
