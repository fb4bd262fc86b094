/* Memory of one process for another: by file descriptor, or by fabric handle. */
#include <stdlib.h>
#include <string.h>

#include "books_shared.h"
#include "vmm.h"

#define FABRIC_MAGIC 0x53494d4641425231ull
#define FABRIC_HANDLE_BYTES 64

struct fabric_handle {
    uint64_t magic, serial;
    int32_t place;
};

SIM_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                        CUmemGenericAllocationHandle handle) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim.lock);
    const struct sim_handle *found = sim_handle_find(handle);
    if (found == NULL || prop == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    else
        *prop = found->prop;
    pthread_mutex_unlock(&sim.lock);
    return result;
}

/* With both locks held. */
static CUresult export_to(void *shareable, struct sim_handle *handle, CUmemAllocationHandleType type) {
    if (handle->shared < 0)
        handle->shared = sim_shared_publish(sim.books, sim.process, sim.cards[handle->device], handle->bytes);
    if (handle->shared < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
        struct fabric_handle made = {FABRIC_MAGIC, sim.books->shared[handle->shared].serial, handle->shared};
        memset(shareable, 0, FABRIC_HANDLE_BYTES);
        memcpy(shareable, &made, sizeof made);
        return CUDA_SUCCESS;
    }
    int descriptor = sim_shared_open(sim.books, handle->shared);
    if (descriptor < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    memcpy(shareable, &descriptor, sizeof descriptor);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type, unsigned long long flags) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (shareable == NULL || flags != 0 ||
        (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && type != CU_MEM_HANDLE_TYPE_FABRIC))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    struct sim_handle *found = sim_handle_find(handle);
    bool allowed = found != NULL && (found->prop.requestedHandleTypes & type) == type; /* said when it was made */
    if (allowed) {
        sim_books_lock(sim.books);
        result = export_to(shareable, found, type);
        sim_books_unlock(sim.books);
    }
    pthread_mutex_unlock(&sim.lock);
    return allowed ? result : CUDA_ERROR_INVALID_VALUE;
}

/* The place that a shareable handle names, or -1. With the books locked. */
static int place_of(void *shareable, CUmemAllocationHandleType type) {
    struct fabric_handle given;
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return sim_shared_of(sim.books, (int)(intptr_t)shareable);
    if (type != CU_MEM_HANDLE_TYPE_FABRIC || shareable == NULL)
        return -1;
    memcpy(&given, shareable, sizeof given);
    bool valid = given.magic == FABRIC_MAGIC && given.place >= 0 && given.place < SIM_MAX_SHARED && given.serial != 0 &&
                 sim.books->shared[given.place].serial == given.serial;
    return valid ? given.place : -1;
}

static int device_of_card(unsigned card) {
    for (int device = 0; sim_valid_device(device); device++)
        if (sim.cards[device] == card)
            return device;
    return -1;
}

/* With both locks held; `made` is filled. */
static CUresult import_from(void *shareable, CUmemAllocationHandleType type, struct sim_handle *made) {
    int place = place_of(shareable, type);
    int device = place < 0 ? -1 : device_of_card(sim.books->shared[place].card);
    if (place < 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (device < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    sim_shared_hold(sim.books, place, sim.process);
    *made = (struct sim_handle){
        .device = device, .bytes = sim.books->shared[place].bytes, .shared = place, .references = 1};
    made->prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                       .requestedHandleTypes = type,
                                       .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                                CUmemAllocationHandleType type) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    struct sim_handle *made = calloc(1, sizeof *made);
    if (handle == NULL || made == NULL) {
        free(made);
        return handle == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&sim.lock);
    sim_books_lock(sim.books);
    result = import_from(shareable, type, made);
    sim_books_unlock(sim.books);
    if (result == CUDA_SUCCESS) {
        made->next = sim_handles;
        sim_handles = made;
        *handle = sim_handle_value(made);
    }
    pthread_mutex_unlock(&sim.lock);
    if (result != CUDA_SUCCESS)
        free(made);
    return result;
}

void sim_handle_unshare(const struct sim_handle *ended) {
    for (const struct sim_handle *h = sim_handles; h != NULL; h = h->next)
        if (h->shared == ended->shared)
            return;
    sim_books_lock(sim.books);
    sim_shared_drop(sim.books, ended->shared, sim.process);
    sim_books_unlock(sim.books);
}
