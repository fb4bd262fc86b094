/* Captures that began through us, and have not ended; the streams that take part in them: the one that began, and those
 * that waited for an event recorded in one that does.
 *
 * What a captured stream allocates is not charged, so nobody may be taken for one that is not: its handle given out
 * anew, an event that was recorded again in a way that we do not see. The driver is asked where that can be: when a
 * stream joins, and after a context ended, whose streams went with it. */
#include "capture.h"

#include "allocation.h"

_Atomic unsigned vgi_captures;
static struct vgi_map
    streams;                  /* that take part; `owner` is the key of the stream that began, `bytes` the doubts then */
static struct vgi_map events; /* recorded in one that takes part; the same */
static _Atomic uint64_t doubts; /* how often contexts ended */

/* What stands for the thread's default stream: odd, as no handle is, and never another thread's. */
static uint64_t own_stream(void) {
    static _Atomic uint64_t threads;
    static _Thread_local uint64_t key;
    if (key == 0)
        key = (atomic_fetch_add(&threads, 1) + 1) << 1 | 1;
    return key;
}

/* 0: the legacy stream, which cannot be captured. */
static uint64_t key_of(CUstream stream, bool per_thread) {
    if (stream == CU_STREAM_PER_THREAD || (stream == NULL && per_thread))
        return own_stream();
    return stream == CU_STREAM_LEGACY ? 0 : (uint64_t)(uintptr_t)stream;
}

void vgi_forget_captures(void) {
    vgi_map_reset(&streams);
    vgi_map_reset(&events);
    atomic_store(&vgi_captures, 0);
}

static bool driver_says_so(CUstream stream, bool per_thread) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = per_thread ? VGI_CUDA(cuStreamIsCapturing_ptsz, stream, &status)
                                 : VGI_CUDA(cuStreamIsCapturing, stream, &status);
    return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static void forget_all_of(struct vgi_map *map, uint64_t origin) {
    struct vgi_entry entry;
    size_t cursor = 0;
    while (vgi_map_take_owned(map, origin, &cursor, &entry))
        ;
}

/* The stream takes no part any more; if it began the capture, that is over. */
static void leave(const struct vgi_entry *stream) {
    struct vgi_entry taken;
    if (!vgi_map_take(&streams, stream->key, &taken) || taken.owner != taken.key)
        return;
    forget_all_of(&streams, taken.key);
    forget_all_of(&events, taken.key);
    atomic_fetch_sub(&vgi_captures, 1);
}

static bool find(CUstream stream, bool per_thread, struct vgi_entry *entry) {
    uint64_t key = key_of(stream, per_thread);
    if (!vgi_any_capture() || key == 0 || !vgi_map_find(&streams, key, entry))
        return false;
    if (entry->bytes == atomic_load(&doubts) || driver_says_so(stream, per_thread))
        return true;
    leave(entry);
    return false;
}

bool vgi_capturing(CUstream stream, bool per_thread) {
    struct vgi_entry entry;
    return find(stream, per_thread, &entry);
}

void vgi_doubt_captures(void) {
    atomic_fetch_add(&doubts, 1);
}

/* Counted before the driver is asked: what other threads do from now on may be too late for the capture's beginning. */
static void before_begin(void) {
    atomic_fetch_add(&vgi_captures, 1);
}

static CUresult after_begin(CUresult result, CUstream stream, bool per_thread) {
    uint64_t key = key_of(stream, per_thread);
    struct vgi_entry entry = {.key = key, .owner = key, .bytes = atomic_load(&doubts)};
    if (result != CUDA_SUCCESS || key == 0 || !vgi_map_put(&streams, &entry))
        atomic_fetch_sub(&vgi_captures, 1);
    return result;
}

/* The capture is over unless the driver says that it was not this thread's or stream's to end. */
static CUresult after_end(CUresult result, CUstream stream, bool per_thread) {
    struct vgi_entry entry;
    uint64_t key = key_of(stream, per_thread);
    bool over = result != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED && result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    if (over && key != 0 && vgi_map_find(&streams, key, &entry) && entry.owner == key)
        leave(&entry);
    return result;
}

void vgi_capture_lost(CUstream stream) {
    struct vgi_entry entry = {.key = (uintptr_t)stream};
    if (stream != NULL && vgi_any_capture())
        leave(&entry);
}

/* ---- calls of our own meanwhile ---- */

bool vgi_begin_aside(struct vgi_aside *aside) {
    aside->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    aside->changed = VGI_CUDA(cuThreadExchangeStreamCaptureMode, &aside->mode) == CUDA_SUCCESS;
    return aside->changed || !vgi_any_capture();
}

void vgi_end_aside(struct vgi_aside *aside) {
    if (aside->changed)
        (void)VGI_CUDA(cuThreadExchangeStreamCaptureMode, &aside->mode);
}

/* ---- joining ---- */

static CUresult recorded(CUresult result, CUevent event, CUstream stream, bool per_thread) {
    struct vgi_entry entry;
    if (result != CUDA_SUCCESS || !vgi_any_capture())
        return result;
    if (find(stream, per_thread, &entry)) {
        entry.key = (uintptr_t)event;
        (void)vgi_map_put(&events, &entry);
    } else {
        (void)vgi_map_take(&events, (uintptr_t)event, &entry);
    }
    return result;
}

static CUresult waited(CUresult result, CUstream stream, CUevent event, bool per_thread) {
    struct vgi_entry entry;
    uint64_t key = key_of(stream, per_thread);
    if (result == CUDA_SUCCESS && vgi_any_capture() && key != 0 && !find(stream, per_thread, &entry) &&
        vgi_map_find(&events, (uintptr_t)event, &entry)) {
        entry.key = key;
        entry.bytes = atomic_load(&doubts);
        if (driver_says_so(stream, per_thread))
            (void)vgi_map_put(&streams, &entry);
    }
    return result;
}

#define EVENT_CALL(symbol, parameters, after, ...)                                                                     \
    VGI_HOOK CUresult symbol parameters {                                                                              \
        return vgi_bind_cuda() ? after(VGI_CUDA(symbol, __VA_ARGS__)) : VGI_NO_DRIVER;                                 \
    }

#define RECORDED(result) recorded(result, event, stream, false)
#define RECORDED_PTSZ(result) recorded(result, event, stream, true)
#define WAITED(result) waited(result, stream, event, false)
#define WAITED_PTSZ(result) waited(result, stream, event, true)
EVENT_CALL(cuEventRecord, (CUevent event, CUstream stream), RECORDED, event, stream)
EVENT_CALL(cuEventRecord_ptsz, (CUevent event, CUstream stream), RECORDED_PTSZ, event, stream)
EVENT_CALL(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned int flags), RECORDED, event, stream, flags)
EVENT_CALL(cuEventRecordWithFlags_ptsz, (CUevent event, CUstream stream, unsigned int flags), RECORDED_PTSZ, event,
           stream, flags)
EVENT_CALL(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags), WAITED, stream, event, flags)
EVENT_CALL(cuStreamWaitEvent_ptsz, (CUstream stream, CUevent event, unsigned int flags), WAITED_PTSZ, stream, event,
           flags)

/* ---- beginning and ending ---- */

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
