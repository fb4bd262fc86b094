/* Captures that began through us, and have not ended. A stream that joined one by an event is asked of the driver,
 * which is allowed while a capture is under way. */
#include "capture.h"

#include "allocation.h"

_Atomic unsigned vgi_captures;
static struct vgi_map origins;        /* streams that began a capture */
static _Thread_local char own_stream; /* its address stands for the thread's default stream */

static uint64_t key_of(CUstream stream, bool per_thread) {
    if (stream == CU_STREAM_PER_THREAD || (stream == NULL && per_thread))
        return (uint64_t)(uintptr_t)&own_stream;
    return (uint64_t)(uintptr_t)stream;
}

void vgi_forget_captures(void) {
    vgi_map_reset(&origins);
    atomic_store(&vgi_captures, 0);
}

bool vgi_capturing(CUstream stream, bool per_thread) {
    struct vgi_entry entry;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!vgi_any_capture())
        return false;
    uint64_t key = key_of(stream, per_thread);
    if (key == 0 || stream == CU_STREAM_LEGACY)
        return false; /* the legacy stream cannot be captured */
    if (vgi_map_find(&origins, key, &entry))
        return true;
    CUresult result = per_thread ? VGI_CUDA(cuStreamIsCapturing_ptsz, stream, &status)
                                 : VGI_CUDA(cuStreamIsCapturing, stream, &status);
    return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Counted before the driver is asked: what other threads do from now on may be too late for the capture's beginning. */
static void before_begin(void) {
    atomic_fetch_add(&vgi_captures, 1);
}

static CUresult after_begin(CUresult result, CUstream stream, bool per_thread) {
    struct vgi_entry entry = {.key = key_of(stream, per_thread)};
    if (result != CUDA_SUCCESS || entry.key == 0 || !vgi_map_put(&origins, &entry))
        atomic_fetch_sub(&vgi_captures, 1);
    return result;
}

/* The capture is over unless the driver says that it was not this thread's or stream's to end. */
static CUresult after_end(CUresult result, CUstream stream, bool per_thread) {
    struct vgi_entry entry;
    bool over = result != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED && result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    if (over && vgi_map_take(&origins, key_of(stream, per_thread), &entry))
        atomic_fetch_sub(&vgi_captures, 1);
    return result;
}

#define BEGIN(symbol, per_thread, parameters, ...)                                                                     \
    VGI_HOOK CUresult symbol parameters {                                                                              \
        if (!vgi_bind_cuda())                                                                                          \
            return VGI_NO_DRIVER;                                                                                      \
        before_begin();                                                                                                \
        return after_begin(VGI_CUDA(symbol, __VA_ARGS__), stream, per_thread);                                         \
    }

BEGIN(cuStreamBeginCapture, false, (CUstream stream), stream)
BEGIN(cuStreamBeginCapture_ptsz, true, (CUstream stream), stream)
BEGIN(cuStreamBeginCapture_v2, false, (CUstream stream, CUstreamCaptureMode mode), stream, mode)
BEGIN(cuStreamBeginCapture_v2_ptsz, true, (CUstream stream, CUstreamCaptureMode mode), stream, mode)

#define INTO_GRAPH                                                                                                     \
    CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,            \
        size_t numDependencies, CUstreamCaptureMode mode
BEGIN(cuStreamBeginCaptureToGraph, false, (INTO_GRAPH), stream, graph, dependencies, dependencyData, numDependencies,
      mode)
BEGIN(cuStreamBeginCaptureToGraph_ptsz, true, (INTO_GRAPH), stream, graph, dependencies, dependencyData,
      numDependencies, mode)

VGI_HOOK CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    return vgi_bind_cuda() ? after_end(VGI_CUDA(cuStreamEndCapture, stream, graph), stream, false) : VGI_NO_DRIVER;
}

VGI_HOOK CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    return vgi_bind_cuda() ? after_end(VGI_CUDA(cuStreamEndCapture_ptsz, stream, graph), stream, true) : VGI_NO_DRIVER;
}
