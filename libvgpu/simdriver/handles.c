#include "handles.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct sim_free_handle {
    struct sim_free_handle *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void *sim_handle_make(struct sim_handle_store *store, size_t bytes) {
    size_t whole = bytes < sizeof(struct sim_free_handle) ? sizeof(struct sim_free_handle) : bytes;
    pthread_mutex_lock(&lock);
    struct sim_free_handle *reused = store->first;
    if (reused != NULL)
        store->first = reused->next;
    pthread_mutex_unlock(&lock);
    return reused != NULL ? memset(reused, 0, whole) : calloc(1, whole);
}

void sim_handle_drop(struct sim_handle_store *store, void *object) {
    struct sim_free_handle *dropped = object;
    pthread_mutex_lock(&lock);
    dropped->next = store->first;
    store->first = dropped;
    pthread_mutex_unlock(&lock);
}
