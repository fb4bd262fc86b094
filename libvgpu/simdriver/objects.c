#include "objects.h"

#include <stdlib.h>

static struct sim_object *objects; /* guarded by sim.lock */

CUresult sim_object_make(const struct sim_object *wanted, struct sim_object **made) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    struct sim_object *object = malloc(sizeof *object);
    if (object == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *object = *wanted;
    object->device = context->device;
    object->context = context;
    result = sim_charge(object->device, object->bytes);
    if (result != CUDA_SUCCESS) {
        free(object);
        return result;
    }
    sim_count_allocations(object->device, 1);
    pthread_mutex_lock(&sim.lock);
    object->next = objects;
    objects = object;
    pthread_mutex_unlock(&sim.lock);
    *made = object;
    return CUDA_SUCCESS;
}

/* With sim.lock held. */
static bool find(enum sim_object_kind kind, const void *handle, struct sim_object *found) {
    for (const struct sim_object *o = objects; o != NULL; o = o->next)
        if (o == handle && o->kind == kind) {
            *found = *o;
            return true;
        }
    return false;
}

bool sim_object_find(enum sim_object_kind kind, const void *handle, struct sim_object *found) {
    pthread_mutex_lock(&sim.lock);
    bool exists = find(kind, handle, found);
    pthread_mutex_unlock(&sim.lock);
    return exists;
}

/* With sim.lock held. */
static void remove_where(CUcontext context, const void *handle) {
    for (struct sim_object **link = &objects; *link != NULL;) {
        struct sim_object *object = *link;
        if (object->context != context && object != handle && (handle == NULL || object->parent != handle)) {
            link = &object->next;
            continue;
        }
        *link = object->next;
        sim_array_unmap_all(object);
        sim_uncharge(object->device, object->bytes);
        sim_count_allocations(object->device, -1);
        free(object);
    }
}

CUresult sim_object_destroy(enum sim_object_kind kind, const void *handle) {
    struct sim_object found;
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&sim.lock);
    if (!find(kind, handle, &found) || found.parent != NULL)
        result = CUDA_ERROR_INVALID_HANDLE;
    else if ((result = sim_card_fault(found.device)) == CUDA_SUCCESS)
        remove_where(NULL, handle);
    pthread_mutex_unlock(&sim.lock);
    return result;
}

void sim_objects_end_with(CUcontext context) {
    pthread_mutex_lock(&sim.lock);
    remove_where(context, NULL);
    pthread_mutex_unlock(&sim.lock);
}
