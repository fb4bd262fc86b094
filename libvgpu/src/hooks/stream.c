/* Streams are remembered with their device. A synchronisation may return memory of pools to the card: the account
 * follows where a pool is watched. */
#include "stream.h"

#include "allocation.h"
#include "capture.h"
#include "pool_account.h"

static struct vgi_map streams; /* `card` is the CUDA ordinal */

void vgi_forget_streams(void) {
    vgi_map_reset(&streams);
}

static bool single_device(void) {
    return vgi_card_of_device[0] >= 0 && vgi_card_of_device[1] < 0;
}

CUresult vgi_device_of_stream(CUstream stream, CUdevice *device) {
    struct vgi_entry entry;
    bool named = stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
    if (named && vgi_map_find(&streams, (uintptr_t)stream, &entry)) {
        *device = (CUdevice)entry.card;
        return CUDA_SUCCESS;
    }
    return VGI_CUDA(cuCtxGetDevice, device);
}

/* With one device there is nothing to tell apart. A stream that cannot be remembered counts as the current context's.
 */
static CUresult remember(CUresult result, const CUstream *stream, bool of_green_context) {
    CUdevice device = 0;
    if (result != CUDA_SUCCESS || stream == NULL || vgi_state() != VGI_ATTACHED || single_device())
        return result;
    CUresult told = of_green_context ? VGI_CUDA(cuStreamGetDevice, *stream, &device) : CUDA_ERROR_NOT_SUPPORTED;
    if (told != CUDA_SUCCESS)
        told = VGI_CUDA(cuCtxGetDevice, &device);
    struct vgi_entry entry = {.key = (uintptr_t)*stream, .card = (uint32_t)device};
    if (told == CUDA_SUCCESS)
        (void)vgi_map_put(&streams, &entry);
    return result;
}

VGI_HOOK CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    return vgi_bind_cuda() ? remember(VGI_CUDA(cuStreamCreate, stream, flags), stream, false) : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    return vgi_bind_cuda() ? remember(VGI_CUDA(cuStreamCreateWithPriority, stream, flags, priority), stream, false)
                           : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx context, unsigned int flags, int priority) {
    return vgi_bind_cuda() ? remember(VGI_CUDA(cuGreenCtxStreamCreate, stream, context, flags, priority), stream, true)
                           : VGI_NO_DRIVER;
}

/* Forgotten before the driver is asked: afterwards the same handle may already be another stream's. */
static void forget(CUstream stream) {
    struct vgi_entry entry;
    vgi_capture_lost(stream);
    if (stream != NULL && vgi_state() == VGI_ATTACHED && !single_device())
        (void)vgi_map_take(&streams, (uintptr_t)stream, &entry);
}

VGI_HOOK CUresult cuStreamDestroy(CUstream stream) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    forget(stream);
    return VGI_CUDA(cuStreamDestroy, stream);
}

VGI_HOOK CUresult cuStreamDestroy_v2(CUstream stream) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    forget(stream);
    return VGI_CUDA(cuStreamDestroy_v2, stream);
}

static CUresult synchronised(CUresult result, CUstream stream, bool everything) {
    if (result == CUDA_SUCCESS)
        vgi_pools_synchronised(stream, everything);
    return result;
}

VGI_HOOK CUresult cuStreamSynchronize(CUstream stream) {
    return vgi_bind_cuda() ? synchronised(VGI_CUDA(cuStreamSynchronize, stream), stream, false) : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    return vgi_bind_cuda() ? synchronised(VGI_CUDA(cuStreamSynchronize_ptsz, stream),
                                          stream == NULL ? CU_STREAM_PER_THREAD : stream, false)
                           : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuEventSynchronize(CUevent event) {
    static const char no_stream;
    return vgi_bind_cuda() ? synchronised(VGI_CUDA(cuEventSynchronize, event), (CUstream)(uintptr_t)&no_stream, false)
                           : VGI_NO_DRIVER;
}

/* Of a context that may be another device's. */
VGI_HOOK CUresult cuCtxSynchronize_v2(CUcontext context) {
    return vgi_bind_cuda() ? synchronised(VGI_CUDA(cuCtxSynchronize_v2, context), NULL, true) : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuCtxSynchronize(void) {
    return vgi_bind_cuda() ? synchronised(VGI_CUDA(cuCtxSynchronize), NULL, true) : VGI_NO_DRIVER;
}
