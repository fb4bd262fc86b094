/* The pools of this process by handle, and their beginning and end. */
#include <stdlib.h>

#include "pool_account.h"
#include "vgpu/prim.h"

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct vgi_pool *list;    /* entries stay for the process's life */
static struct vgi_map by_handle; /* `owner` is the entry's address */
static struct vgi_pool *_Atomic of_graphs[VGI_MAX_DEVICES];

void vgi_forget_pools(void) {
    pthread_mutex_init(&list_lock, NULL);
    vgi_map_reset(&by_handle);
    for (int i = 0; i < VGI_MAX_DEVICES; i++)
        atomic_store(&of_graphs[i], NULL);
    while (list != NULL) {
        struct vgi_pool *next = list->next;
        free(list);
        list = next;
    }
    atomic_store(&vgi_pools_watched, 0);
}

/* ---- the list ---- */

struct vgi_pool *vgi_pool_first(void) {
    pthread_mutex_lock(&list_lock);
    struct vgi_pool *pool = list;
    pthread_mutex_unlock(&list_lock);
    return pool;
}

struct vgi_pool *vgi_pool_find(CUmemoryPool handle) {
    struct vgi_entry entry;
    bool known = handle != NULL && vgi_map_find(&by_handle, (uintptr_t)handle, &entry);
    return known ? (struct vgi_pool *)(uintptr_t)entry.owner : NULL;
}

/* With the list locked: an entry that is no longer needed, or a new one. */
static struct vgi_pool *take_entry(void) {
    struct vgi_pool *pool = list;
    while (pool != NULL && !(pool->destroyed && pool->handed_out == 0 && pool->reserve.settled == 0))
        pool = pool->next;
    if (pool != NULL)
        return pool;
    pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return NULL;
    pthread_mutex_init(&pool->lock, NULL);
    pool->next = list;
    list = pool;
    return pool;
}

static struct vgi_pool *enter(CUmemoryPool handle, CUdevice device, bool counted, bool graphs) {
    int card = device >= 0 && device < VGI_MAX_DEVICES ? vgi_card_of_device[device] : -1;
    struct vgi_pool *pool = take_entry();
    if (pool == NULL)
        return NULL;
    pthread_mutex_lock(&pool->lock);
    pool->handle = handle;
    pool->of_graphs = graphs;
    pool->destroyed = false;
    pool->counted = counted && card >= 0;
    pool->device = device;
    pool->card = card;
    pool->reserve = (struct vgi_reserve){.settled = 0};
    pool->threshold = pool->seen = pool->lent = pool->handed_out = 0;
    pool->looks_left = 0;
    atomic_store(&pool->hidden, false);
    pthread_mutex_unlock(&pool->lock);
    return pool;
}

struct vgi_pool *vgi_pool_enter(CUmemoryPool handle, CUdevice device, bool counted) {
    pthread_mutex_lock(&list_lock);
    struct vgi_pool *pool = vgi_pool_find(handle);
    if (pool == NULL && (pool = enter(handle, device, counted, false)) != NULL) {
        struct vgi_entry entry = {.key = (uintptr_t)handle, .owner = (uintptr_t)pool};
        if (!vgi_map_put(&by_handle, &entry)) {
            pool->destroyed = true;
            atomic_store(&pool->hidden, true);
            pool = NULL;
        }
    }
    pthread_mutex_unlock(&list_lock);
    return pool;
}

struct vgi_pool *vgi_pool_of_graphs(CUdevice device) {
    if (device < 0 || device >= VGI_MAX_DEVICES)
        return NULL;
    struct vgi_pool *pool = atomic_load(&of_graphs[device]);
    if (pool != NULL)
        return pool;
    pthread_mutex_lock(&list_lock);
    pool = atomic_load(&of_graphs[device]);
    if (pool == NULL)
        atomic_store(&of_graphs[device], pool = enter(NULL, device, true, true));
    pthread_mutex_unlock(&list_lock);
    return pool;
}

/* Also waits for our own questions about it: they end soon. */
void vgi_pool_hide(struct vgi_pool *pool) {
    struct vgi_entry entry;
    (void)vgi_map_take(&by_handle, (uintptr_t)pool->handle, &entry);
    atomic_store(&pool->hidden, true);
    while (atomic_load(&pool->in_use) != 0)
        vgi_sleep_microseconds(1);
}

void vgi_pool_destroyed(struct vgi_pool *pool, bool destroyed) {
    struct vgi_entry entry = {.key = (uintptr_t)pool->handle, .owner = (uintptr_t)pool};
    if (!destroyed) {
        atomic_store(&pool->hidden, false);
        (void)vgi_map_put(&by_handle, &entry); /* its place in the table was free a moment ago */
        return;
    }
    pthread_mutex_lock(&pool->lock);
    pool->destroyed = true;
    pthread_mutex_unlock(&pool->lock);
    vgi_pool_settle_destroyed(pool, NULL, true);
}
