/* Objects of which programs know nothing but the address. It is given out again as soon as it is free, the last one
 * first: that is as hard as a driver may be on whoever remembers handles. */
#ifndef SIM_HANDLES_H
#define SIM_HANDLES_H

#include <stddef.h>

struct sim_free_handle;

/* Objects of one size that are free; zeros: none. */
struct sim_handle_store {
    struct sim_free_handle *first;
};

/* Zeroed; NULL when the host has no memory. */
void *sim_handle_make(struct sim_handle_store *store, size_t bytes);
void sim_handle_drop(struct sim_handle_store *store, void *object);

#endif
