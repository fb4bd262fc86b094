/* Stream-ordered memory: handed out by pools, which are charged with what they have reserved from their card. Memory of
 * a pool outlives contexts. In a captured stream it is a node of the graph instead, and nothing is charged (graph.c).
 */
#include "pool.h"

#include "allocation.h"
#include "capture.h"
#include "pool_account.h"
#include "stream.h"
#include "vgpu/prim.h"

static struct vgi_map pooled; /* by address; `owner` is its pool */

/* The pool that each device's streams allocate from, once it is known; and how often the program began and ended to
 * choose another: what was read before or meanwhile may be old. */
static struct vgi_pool *_Atomic current[VGI_MAX_DEVICES];
static _Atomic uint32_t choices_begun, choices_ended;

void vgi_forget_pooled(void) {
    vgi_map_reset(&pooled);
    for (int i = 0; i < VGI_MAX_DEVICES; i++)
        atomic_store(&current[i], NULL);
}

static CUresult current_pool(CUdevice device, struct vgi_pool **pool) {
    CUmemoryPool handle = NULL;
    *pool = atomic_load(&current[device]);
    if (*pool != NULL)
        return CUDA_SUCCESS;
    uint32_t begun = atomic_load(&choices_begun);
    CUresult result = VGI_CUDA(cuDeviceGetMemPool, &handle, device);
    if (result != CUDA_SUCCESS)
        return result;
    *pool = vgi_pool_enter(handle, device, true);
    atomic_store(&current[device], *pool);
    if (atomic_load(&choices_begun) != begun || atomic_load(&choices_ended) != begun)
        atomic_store(&current[device], NULL);
    return CUDA_SUCCESS;
}

static void before_choice(void) {
    atomic_fetch_add(&choices_begun, 1);
}

static void after_choice(void) {
    for (int i = 0; i < VGI_MAX_DEVICES; i++)
        atomic_store(&current[i], NULL);
    atomic_fetch_add(&choices_ended, 1);
}

/* ---- allocating ---- */

struct request {
    CUdeviceptr *pointer;
    size_t bytes;
    CUmemoryPool pool; /* NULL: that of the stream's device */
    CUstream stream;
    bool per_thread;
};

static CUresult ask_driver(const struct request *r) {
    if (r->pool == NULL)
        return r->per_thread ? VGI_CUDA(cuMemAllocAsync_ptsz, r->pointer, r->bytes, r->stream)
                             : VGI_CUDA(cuMemAllocAsync, r->pointer, r->bytes, r->stream);
    return r->per_thread ? VGI_CUDA(cuMemAllocFromPoolAsync_ptsz, r->pointer, r->bytes, r->pool, r->stream)
                         : VGI_CUDA(cuMemAllocFromPoolAsync, r->pointer, r->bytes, r->pool, r->stream);
}

static CUresult undo(const struct request *r) {
    return r->per_thread ? VGI_CUDA(cuMemFreeAsync_ptsz, *r->pointer, r->stream)
                         : VGI_CUDA(cuMemFreeAsync, *r->pointer, r->stream);
}

static CUresult find_pool(const struct request *r, struct vgi_pool **pool) {
    CUdevice device = 0;
    *pool = r->pool != NULL ? vgi_pool_find(r->pool) : NULL;
    if (*pool != NULL)
        return CUDA_SUCCESS;
    CUresult result = vgi_device_of_stream(r->stream, &device);
    if (result == CUDA_SUCCESS && (device < 0 || device >= VGI_MAX_DEVICES))
        result = CUDA_ERROR_INVALID_DEVICE;
    /* A pool that did not come through us counts as the device's whose stream it serves. */
    if (result == CUDA_SUCCESS && r->pool == NULL)
        result = current_pool(device, pool);
    else if (result == CUDA_SUCCESS)
        *pool = vgi_pool_enter(r->pool, device, true);
    return result == CUDA_SUCCESS && *pool == NULL ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

/* Another pool was chosen meanwhile: whichever of the two grew, both accounts are true again. */
static void settle_after_choice(const struct request *r) {
    struct vgi_pool *now = NULL;
    if (find_pool(r, &now) == CUDA_SUCCESS)
        vgi_pool_look(now);
}

static CUresult allocate_from(struct vgi_pool *pool, const struct request *r, uint32_t begun) {
    struct vgi_growth growth;
    CUresult result = vgi_pool_claim(pool, r->bytes, 1, &growth);
    if (result != CUDA_SUCCESS)
        return result;
    result = ask_driver(r);
    bool fits = vgi_pool_settle(pool, &growth, result);
    if (r->pool == NULL && (atomic_load(&choices_begun) != begun || atomic_load(&choices_ended) != begun))
        settle_after_choice(r);
    if (result != CUDA_SUCCESS)
        return result;
    vgi_drop_stale(*r->pointer);
    struct vgi_entry entry = {.key = *r->pointer, .bytes = r->bytes, .owner = (uintptr_t)pool};
    if (fits && vgi_map_put(&pooled, &entry))
        return CUDA_SUCCESS;
    if (fits)
        vgi_say(VGI_ERROR, "the host has no memory to keep account of an allocation; it is refused");
    (void)undo(r);
    vgi_pool_freed(pool, r->stream);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate(struct request r) {
    struct vgi_pool *pool = NULL;
    if (r.pointer == NULL || r.bytes == 0 || vgi_capturing(r.stream, r.per_thread))
        return ask_driver(&r);
    if (__builtin_expect(vgi_state() != VGI_ATTACHED, 0)) {
        CUresult result = vgi_attach();
        if (result != CUDA_SUCCESS)
            return result;
        if (vgi_state() == VGI_UNLIMITED)
            return ask_driver(&r);
    }
    uint32_t begun = atomic_load(&choices_begun);
    CUresult result = find_pool(&r, &pool);
    if (result != CUDA_SUCCESS)
        return result;
    return pool->counted ? allocate_from(pool, &r, begun) : ask_driver(&r);
}

VGI_HOOK CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return vgi_bind_cuda() ? allocate((struct request){pointer, bytes, NULL, stream, false}) : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return vgi_bind_cuda() ? allocate((struct request){pointer, bytes, NULL, stream, true}) : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    return pool == NULL ? VGI_CUDA(cuMemAllocFromPoolAsync, pointer, bytes, pool, stream)
                        : allocate((struct request){pointer, bytes, pool, stream, false});
}

VGI_HOOK CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    return pool == NULL ? VGI_CUDA(cuMemAllocFromPoolAsync_ptsz, pointer, bytes, pool, stream)
                        : allocate((struct request){pointer, bytes, pool, stream, true});
}

/* ---- freeing ---- */

bool vgi_pooled_take(CUdeviceptr pointer, struct vgi_entry *entry) {
    return vgi_map_take(&pooled, pointer, entry);
}

void vgi_pooled_freed(CUresult result, const struct vgi_entry *entry) {
    if (result == CUDA_SUCCESS)
        vgi_pool_freed_at_once((struct vgi_pool *)(uintptr_t)entry->owner);
    else
        (void)vgi_map_put(&pooled, entry); /* its place in the table was free a moment ago */
}

/* In the order of a stream. It may also be linear memory, which then is free at once for all we know: the driver waits
 * for the stream where it has to. */
static CUresult free_in_order(PFN_cuMemFreeAsync_v11020 driver, CUdeviceptr pointer, CUstream stream, bool per_thread) {
    if (driver == NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (vgi_capturing(stream, per_thread))
        return driver(pointer, stream);
    struct vgi_freeing freeing = vgi_begin_free(pointer);
    CUresult result = driver(pointer, stream);
    if (!freeing.pooled || result != CUDA_SUCCESS)
        return vgi_end_free(result, &freeing);
    vgi_pool_freed((struct vgi_pool *)(uintptr_t)freeing.entry.owner,
                   stream == NULL && per_thread ? CU_STREAM_PER_THREAD : stream);
    return result;
}

VGI_HOOK CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    return vgi_bind_cuda() ? free_in_order(vgi_cuda.cuMemFreeAsync, pointer, stream, false) : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    return vgi_bind_cuda() ? free_in_order(vgi_cuda.cuMemFreeAsync_ptsz, pointer, stream, true) : VGI_NO_DRIVER;
}

/* ---- pools themselves ---- */

/* The device whose card a pool's memory lies on. Managed memory without a place moves to where it is used: it counts on
 * the current context's device, as cuMemAllocManaged does. -1: the host's. */
static CUdevice device_of_location(const CUmemLocation *location, CUmemAllocationType type) {
    CUdevice device = -1;
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
        return location->id;
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN)
        return location->id & 0xff;
    if (type == CU_MEM_ALLOCATION_TYPE_MANAGED && VGI_CUDA(cuCtxGetDevice, &device) != CUDA_SUCCESS)
        device = 0;
    return device;
}

static CUresult learn(CUresult result, const CUmemoryPool *pool, CUdevice device) {
    if (result == CUDA_SUCCESS && vgi_state() == VGI_ATTACHED && vgi_pool_enter(*pool, device, device >= 0) == NULL)
        vgi_say(VGI_ERROR, "the host has no memory to keep account of a memory pool");
    return result;
}

VGI_HOOK CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    CUresult result = VGI_CUDA(cuMemPoolCreate, pool, props);
    return result == CUDA_SUCCESS ? learn(result, pool, device_of_location(&props->location, props->allocType))
                                  : result;
}

/* Its memory is the exporter's. */
VGI_HOOK CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type,
                                                     unsigned long long flags) {
    return vgi_bind_cuda() ? learn(VGI_CUDA(cuMemPoolImportFromShareableHandle, pool, handle, type, flags), pool, -1)
                           : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    return vgi_bind_cuda() ? learn(VGI_CUDA(cuDeviceGetDefaultMemPool, pool, device), pool, device) : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    return vgi_bind_cuda() ? learn(VGI_CUDA(cuDeviceGetMemPool, pool, device), pool, device) : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    CUresult result = VGI_CUDA(cuMemGetDefaultMemPool, pool, location, type);
    return result == CUDA_SUCCESS ? learn(result, pool, device_of_location(location, type)) : result;
}

VGI_HOOK CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    CUresult result = VGI_CUDA(cuMemGetMemPool, pool, location, type);
    return result == CUDA_SUCCESS ? learn(result, pool, device_of_location(location, type)) : result;
}

VGI_HOOK CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    before_choice();
    CUresult result = VGI_CUDA(cuDeviceSetMemPool, device, pool);
    after_choice();
    return result;
}

VGI_HOOK CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    before_choice();
    CUresult result = VGI_CUDA(cuMemSetMemPool, location, type, pool);
    after_choice();
    return result;
}

static CUresult settle(CUresult result, CUmemoryPool handle) {
    struct vgi_pool *pool = vgi_state() == VGI_ATTACHED ? vgi_pool_find(handle) : NULL;
    if (pool != NULL)
        vgi_pool_look(pool);
    return result;
}

VGI_HOOK CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytesToKeep) {
    return vgi_bind_cuda() ? settle(VGI_CUDA(cuMemPoolTrimTo, pool, bytesToKeep), pool) : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    CUresult result = VGI_CUDA(cuMemPoolSetAttribute, handle, attribute, value);
    struct vgi_pool *pool = vgi_state() == VGI_ATTACHED ? vgi_pool_find(handle) : NULL;
    if (result == CUDA_SUCCESS && pool != NULL && attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        vgi_pool_set_threshold(pool, *(cuuint64_t *)value);
    return settle(result, handle);
}

/* Where it was a device's current pool, the default one takes its place. */
VGI_HOOK CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    struct vgi_pool *pool = vgi_state() == VGI_ATTACHED ? vgi_pool_find(handle) : NULL;
    if (pool == NULL)
        return VGI_CUDA(cuMemPoolDestroy, handle);
    before_choice();
    vgi_pool_hide(pool);
    CUresult result = VGI_CUDA(cuMemPoolDestroy, handle);
    vgi_pool_destroyed(pool, result == CUDA_SUCCESS);
    after_choice();
    return result;
}
