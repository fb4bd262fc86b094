#include "allocation.h"

#include "pool.h"
#include "pool_account.h"
#include "vgpu/prim.h"

static CUresult find_current(CUdevice *device, CUcontext *context) {
    CUresult result = VGI_CUDA(cuCtxGetDevice, device);
    return result == CUDA_SUCCESS ? VGI_CUDA(cuCtxGetCurrent, context) : result;
}

CUresult vgi_claim_current(uint64_t bytes, struct vgi_claim *claim, CUcontext *context) {
    CUdevice device = 0;
    CUresult result = find_current(&device, context);
    return result == CUDA_SUCCESS ? vgi_claim(device, bytes, claim) : result;
}

#define USUAL_PITCH 512

CUresult vgi_claim_rows(uint64_t width, uint64_t height, struct vgi_claim *claim, CUcontext *context) {
    uint64_t least = 0, usual = 0;
    if (__builtin_mul_overflow(width, height, &least) || __builtin_add_overflow(width, USUAL_PITCH - 1, &usual) ||
        __builtin_mul_overflow(usual / USUAL_PITCH * USUAL_PITCH, height, &usual))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUdevice device = 0;
    CUresult result = find_current(&device, context);
    if (result == CUDA_SUCCESS)
        result = vgi_claim_provisionally(device, usual, claim);
    return result == CUDA_ERROR_OUT_OF_MEMORY && least < usual ? vgi_claim(device, least, claim) : result;
}

CUresult vgi_settle(CUresult result, struct vgi_claim *claim, uint64_t key, uint64_t owner,
                    CUresult (*undo)(CUdeviceptr)) {
    if (result != CUDA_SUCCESS) {
        vgi_give_back(claim->card, claim->kind, claim->bytes);
        vgi_claim_settled(claim);
        return result;
    }
    if (claim->card < 0)
        return result;
    struct vgi_entry entry = {
        .key = key, .bytes = claim->bytes, .owner = owner, .card = (uint32_t)claim->card, .kind = claim->kind};
    struct vgi_entry replaced;
    bool entered = vgi_map_put_over(&vgi_allocations, &entry, &replaced);
    /* The driver gave this address out again: what was there went with its context a moment ago. */
    if (replaced.key != 0)
        vgi_give_back((int)replaced.card, (enum vgi_kind)replaced.kind, replaced.bytes);
    if (entered)
        return result;
    vgi_say(VGI_ERROR, "the host has no memory to keep account of an allocation; it is refused");
    (void)undo(key);
    vgi_give_back(claim->card, claim->kind, claim->bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

void vgi_drop_stale(CUdeviceptr pointer) {
    struct vgi_entry stale;
    if (vgi_map_take(&vgi_allocations, pointer, &stale))
        vgi_give_back((int)stale.card, (enum vgi_kind)stale.kind, stale.bytes);
}

struct vgi_freeing vgi_begin_free(CUdeviceptr pointer) {
    struct vgi_freeing freeing = {.known = false, .pooled = false};
    /* A fork's child inherits its parent's table until it attaches; nothing in it is the child's to give back. */
    if (vgi_state() == VGI_ATTACHED)
        freeing.known = vgi_map_take(&vgi_allocations, pointer, &freeing.entry) ||
                        (freeing.pooled = vgi_pooled_take(pointer, &freeing.entry));
    return freeing;
}

CUresult vgi_end_free(CUresult result, const struct vgi_freeing *freeing) {
    if (freeing->pooled)
        vgi_pooled_freed(result, &freeing->entry);
    else if (freeing->known && result == CUDA_SUCCESS)
        vgi_give_back((int)freeing->entry.card, (enum vgi_kind)freeing->entry.kind, freeing->entry.bytes);
    else if (freeing->known)
        (void)vgi_map_put(&vgi_allocations, &freeing->entry); /* its place in the table was free a moment ago */
    /* A driver that frees at once waits for the device, and may then trim pools. */
    if (result == CUDA_SUCCESS)
        vgi_pools_synchronised(NULL, true);
    return result;
}
