/* Steps that every hook that allocates or frees has in common. */
#ifndef VGPU_HOOKS_ALLOCATION_H
#define VGPU_HOOKS_ALLOCATION_H

#include "account/account.h"

/* What a hook answers where no driver is to be found. */
#define VGI_NO_DRIVER CUDA_ERROR_NO_DEVICE

/* Claims memory on the current context's device; `context` is then its handle. */
CUresult vgi_claim_current(uint64_t bytes, struct vgi_claim *claim, CUcontext *context);

/* For rows whose pitch the driver chooses: with the usual pitch if the slice has that much, else without any. What the
 * driver really takes is settled by vgi_resize. */
CUresult vgi_claim_rows(uint64_t width, uint64_t height, struct vgi_claim *claim, CUcontext *context);

/* After the driver's call: enters what it gave under its key, or gives the claim back. `owner` 0: the memory outlives
 * contexts. `undo` frees what cannot be entered. Returns what the program is told. */
CUresult vgi_settle(CUresult result, struct vgi_claim *claim, uint64_t key, uint64_t owner,
                    CUresult (*undo)(CUdeviceptr));

/* The driver gave this address out for memory that is entered elsewhere: what was there went with its context a moment
 * ago, and would be taken for it at its free. */
void vgi_drop_stale(CUdeviceptr pointer);

/* Around a driver's free: takes the entry out before, and afterwards gives its bytes back or puts it in again. */
struct vgi_freeing {
    bool known;
    bool pooled; /* a pool's, then: it says what becomes free */
    struct vgi_entry entry;
};
struct vgi_freeing vgi_begin_free(CUdeviceptr pointer);
CUresult vgi_end_free(CUresult result, const struct vgi_freeing *freeing);

#endif
