/* What the driver gives a handle for and that holds memory of a card: arrays, imported memory, modules. */
#ifndef SIM_OBJECTS_H
#define SIM_OBJECTS_H

#include "driver.h"

enum sim_object_kind { SIM_ARRAY, SIM_MIPMAPPED, SIM_EXTERNAL_MEMORY, SIM_MODULE, SIM_LIBRARY };

struct sim_object {
    enum sim_object_kind kind;
    int device;
    size_t bytes; /* charged */
    CUcontext context;
    CUDA_ARRAY3D_DESCRIPTOR array; /* of arrays */
    unsigned levels;
    size_t size;                     /* of an array, whether or not it is backed; of imported memory */
    const struct sim_object *parent; /* of a mipmap's level */
    struct sim_object *next;
};

/* Charges the current context's card and makes the object; the context's end ends it too. */
CUresult sim_object_make(const struct sim_object *wanted, struct sim_object **made);

/* Whether the handle is a living object of that kind; `found` is a copy. */
bool sim_object_find(enum sim_object_kind kind, const void *handle, struct sim_object *found);

/* CUDA_ERROR_INVALID_HANDLE where there is none; what hangs on it goes too. */
CUresult sim_object_destroy(enum sim_object_kind kind, const void *handle);

/* Lets go of what is mapped into an array that ends (cuda_array_map.c). The caller holds sim.lock. */
void sim_array_unmap_all(const void *array);

/* The caller does not hold sim.lock. */
void sim_objects_end_with(CUcontext context);

#endif
