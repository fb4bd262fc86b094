/* What the program lets a context set aside on its card: the heap and the output of its kernels, and their stacks,
 * which every thread that fits on the card has. What a context has of them when it begins is part of the context. */
#include "allocation.h"

/* Bytes of the card that a unit of the limit takes; 0: it takes none. */
static uint64_t bytes_of_unit(CUlimit limit, CUdevice device) {
    int processors = 0, threads = 0;
    if (limit == CU_LIMIT_MALLOC_HEAP_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE)
        return 1;
    if (limit != CU_LIMIT_STACK_SIZE ||
        VGI_CUDA(cuDeviceGetAttribute, &processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) != CUDA_SUCCESS ||
        VGI_CUDA(cuDeviceGetAttribute, &threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device) !=
            CUDA_SUCCESS)
        return 0;
    return (uint64_t)processors * (uint64_t)threads;
}

/* No address is this high: the charge stands among the context's allocations, and goes with them. */
static uint64_t key_of(CUcontext context, CUlimit limit) {
    return 1ull << 63 | (uint64_t)(uintptr_t)context << 4 | (uint64_t)limit;
}

/* A context's charge: `key` 0 where it has none yet. The limit that it began with is kept in `unused`. */
static struct vgi_entry known_charge(CUcontext context, CUlimit limit) {
    struct vgi_entry entry = {.key = 0};
    size_t value = 0;
    if (vgi_map_find(&vgi_allocations, key_of(context, limit), &entry))
        return entry;
    (void)VGI_CUDA(cuCtxGetLimit, &value, limit);
    return (struct vgi_entry){.unused = value > UINT32_MAX ? UINT32_MAX : (uint32_t)value};
}

/* ---- heaps that drivers have not taken yet ---- */

static struct vgi_map unmet; /* by the charge's key */

void vgi_forget_heaps(void) {
    vgi_map_reset(&unmet);
}

/* Never more than is charged still: the context may be another with the same handle. */
static struct vgi_entry unmet_of(const void *context) {
    struct vgi_entry charge = {.bytes = 0}, entry = {.bytes = 0};
    uint64_t key = key_of((CUcontext)(uintptr_t)context, CU_LIMIT_MALLOC_HEAP_SIZE);
    if (!vgi_map_find(&unmet, key, &entry) || !vgi_map_find(&vgi_allocations, key, &charge))
        return (struct vgi_entry){.key = key};
    entry.bytes = entry.bytes < charge.bytes ? entry.bytes : charge.bytes;
    return entry;
}

uint64_t vgi_unmet_heap(const void *context) {
    return unmet_of(context).bytes;
}

void vgi_met_heap(const void *context, uint64_t bytes) {
    struct vgi_entry entry = unmet_of(context);
    entry.bytes = entry.bytes > bytes ? entry.bytes - bytes : 0;
    (void)vgi_map_put(&unmet, &entry);
}

/* ---- charging ---- */

static uint64_t charge_of(uint64_t value, uint64_t unit, const struct vgi_entry *known) {
    uint64_t bytes = 0, more = value > known->unused ? value - known->unused : 0;
    return __builtin_mul_overflow(more, unit, &bytes) ? UINT64_MAX : bytes;
}

/* Enters what is charged now; two threads may have set the limit at once, and each has claimed what it needed. */
static void enter(struct vgi_entry entry, struct vgi_claim *claim, uint64_t known_bytes) {
    struct vgi_entry replaced;
    bool entered = vgi_map_put_over(&vgi_allocations, &entry, &replaced);
    uint64_t charged = (replaced.key != 0 ? replaced.bytes : 0) + claim->bytes;
    uint64_t right = entered ? entry.bytes : known_bytes;
    if (charged > right)
        vgi_give_back(claim->card, claim->kind, charged - right);
    else
        vgi_charge_overhead(claim->card, claim->kind, right - charged);
    if ((entry.key & 15) == CU_LIMIT_MALLOC_HEAP_SIZE)
        (void)vgi_map_put(&unmet, &entry);
}

static CUresult set_limit(CUlimit limit, size_t value, CUdevice device, CUcontext context, uint64_t unit) {
    struct vgi_entry known = known_charge(context, limit);
    uint64_t wanted = charge_of(value, unit, &known);
    struct vgi_claim claim;
    size_t actual = value;
    CUresult result = vgi_claim(device, wanted > known.bytes ? wanted - known.bytes : 0, &claim);
    if (result != CUDA_SUCCESS)
        return result;
    result = VGI_CUDA(cuCtxSetLimit, limit, value);
    if (result != CUDA_SUCCESS || claim.card < 0) {
        vgi_give_back(claim.card, claim.kind, claim.bytes);
        return result;
    }
    (void)VGI_CUDA(cuCtxGetLimit, &actual, limit); /* drivers round */
    enter((struct vgi_entry){.key = key_of(context, limit),
                             .bytes = charge_of(actual, unit, &known),
                             .owner = (uintptr_t)context,
                             .card = (uint32_t)claim.card,
                             .kind = claim.kind,
                             .unused = known.unused},
          &claim, known.bytes);
    return result;
}

VGI_HOOK CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    CUdevice device = 0;
    CUcontext context = NULL;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    if (VGI_CUDA(cuCtxGetDevice, &device) != CUDA_SUCCESS || VGI_CUDA(cuCtxGetCurrent, &context) != CUDA_SUCCESS)
        return VGI_CUDA(cuCtxSetLimit, limit, value); /* the driver says what is wrong */
    uint64_t unit = bytes_of_unit(limit, device);
    return unit == 0 ? VGI_CUDA(cuCtxSetLimit, limit, value) : set_limit(limit, value, device, context, unit);
}
