/* Capture of streams into graphs: forks and joins by events, what may not be called meanwhile, and what spoils it. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

struct position {
    const void *key; /* a stream or an event */
    CUgraphNode *after;
    size_t count;
    struct position *next;
};

struct sim_capture {
    const void *origin;
    CUgraph graph;
    bool into_given_graph;
    bool invalidated;
    CUstreamCaptureMode mode;
    pthread_t thread;
    struct position *streams, *events;
    struct sim_capture *next;
};

_Atomic unsigned sim_captures;
static struct sim_capture *captures; /* guarded by `lock` */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local CUstreamCaptureMode thread_mode;

/* What stands for the thread's default stream: odd, as no handle is, and never another thread's. */
static const void *own_stream(void) {
    static _Atomic uintptr_t threads;
    static _Thread_local uintptr_t key;
    if (key == 0)
        key = (atomic_fetch_add(&threads, 1) + 1) << 1 | 1;
    return (const void *)key;
}

/* NULL: the legacy stream, which cannot be captured. */
static const void *key_of(CUstream stream, bool per_thread) {
    if (stream == CU_STREAM_PER_THREAD || (stream == NULL && per_thread))
        return own_stream();
    return stream == CU_STREAM_LEGACY ? NULL : stream;
}

static struct position *find(struct position *list, const void *key) {
    while (list != NULL && list->key != key)
        list = list->next;
    return list;
}

static struct sim_capture *capture_with(const void *key) {
    struct sim_capture *capture = captures;
    while (capture != NULL && find(capture->streams, key) == NULL)
        capture = capture->next;
    return capture;
}

struct sim_capture *sim_capture_of(CUstream stream, bool per_thread) {
    if (atomic_load(&sim_captures) == 0)
        return NULL;
    pthread_mutex_lock(&lock);
    struct sim_capture *found = capture_with(key_of(stream, per_thread));
    pthread_mutex_unlock(&lock);
    return found;
}

/* Replaces what comes before, or adds to it. */
static bool set_after(struct position *position, const CUgraphNode *nodes, size_t count, bool keep) {
    size_t kept = keep ? position->count : 0;
    CUgraphNode *after = realloc(position->after, (kept + count + 1) * sizeof *after);
    if (after == NULL)
        return false;
    position->after = after;
    for (size_t i = 0; i < count; i++) {
        bool known = false;
        for (size_t j = 0; j < kept; j++)
            known = known || after[j] == nodes[i];
        if (!known)
            after[kept++] = nodes[i];
    }
    position->count = kept;
    return true;
}

static struct position *enter(struct position **list, const void *key) {
    struct position *position = find(*list, key);
    if (position == NULL && (position = calloc(1, sizeof *position)) != NULL) {
        position->key = key;
        position->next = *list;
        *list = position;
    }
    return position;
}

CUresult sim_capture_add(struct sim_capture *capture, CUstream stream, bool per_thread,
                         const struct CUgraphNode_st *content, CUgraphNode *made) {
    pthread_mutex_lock(&lock);
    struct position *position = find(capture->streams, key_of(stream, per_thread));
    CUresult result = capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS)
        result = sim_graph_add(capture->graph, position->after, position->count, content, made);
    if (result == CUDA_SUCCESS && !set_after(position, made, 1, false))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_unlock(&lock);
    return result;
}

bool sim_capture_record(CUevent event, CUstream stream, bool per_thread) {
    if (atomic_load(&sim_captures) == 0)
        return false;
    pthread_mutex_lock(&lock);
    struct sim_capture *capture = capture_with(key_of(stream, per_thread));
    struct position *from = capture == NULL ? NULL : find(capture->streams, key_of(stream, per_thread));
    struct position *mark = from == NULL ? NULL : enter(&capture->events, event);
    if (mark != NULL)
        (void)set_after(mark, from->after, from->count, false);
    pthread_mutex_unlock(&lock);
    return mark != NULL;
}

static struct sim_capture *capture_with_event(CUevent event) {
    struct sim_capture *capture = captures;
    while (capture != NULL && find(capture->events, event) == NULL)
        capture = capture->next;
    return capture;
}

bool sim_capture_has_event(CUevent event) {
    if (atomic_load(&sim_captures) == 0)
        return false;
    pthread_mutex_lock(&lock);
    bool found = capture_with_event(event) != NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

/* With the lock held. A stream that waits for a captured event joins the capture; a captured one may wait for nothing
 * else. */
static CUresult join(const void *key, CUevent event) {
    struct sim_capture *own = capture_with(key), *other = capture_with_event(event);
    if (own != NULL && other != own) {
        own->invalidated = true;
        return other == NULL ? CUDA_ERROR_STREAM_CAPTURE_ISOLATION : CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (key == NULL)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    struct position *mark = find(other->events, event), *stream = enter(&other->streams, key);
    return stream != NULL && set_after(stream, mark->after, mark->count, true) ? CUDA_SUCCESS
                                                                               : CUDA_ERROR_OUT_OF_MEMORY;
}

bool sim_capture_wait(CUstream stream, bool per_thread, CUevent event, CUresult *result) {
    const void *key = key_of(stream, per_thread);
    if (atomic_load(&sim_captures) == 0)
        return false;
    pthread_mutex_lock(&lock);
    bool ours = capture_with(key) != NULL || capture_with_event(event) != NULL;
    if (ours)
        *result = join(key, event);
    pthread_mutex_unlock(&lock);
    return ours;
}

CUresult sim_capture_forbids_wait(CUstream stream, bool per_thread) {
    struct sim_capture *capture = sim_capture_of(stream, per_thread);
    if (capture == NULL)
        return CUDA_SUCCESS;
    capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* As cuThreadExchangeStreamCaptureMode is documented: whom a call that may be unsafe would hurt. */
static bool is_hurt(const struct sim_capture *capture) {
    bool own = pthread_equal(capture->thread, pthread_self()) != 0;
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED || capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    return own || (thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult sim_unsafe_call(void) {
    CUresult result = CUDA_SUCCESS;
    if (atomic_load(&sim_captures) == 0)
        return result;
    pthread_mutex_lock(&lock);
    for (struct sim_capture *capture = captures; capture != NULL; capture = capture->next)
        if (is_hurt(capture)) {
            capture->invalidated = true;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult begin(CUstream stream, bool per_thread, CUstreamCaptureMode mode, CUgraph into,
                      const CUgraphNode *dependencies, size_t count) {
    const void *key = key_of(stream, per_thread);
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED || (count > 0 && dependencies == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    if (key == NULL)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct sim_capture *made = calloc(1, sizeof *made);
    struct position *position = made == NULL ? NULL : enter(&made->streams, key);
    CUgraph graph = into != NULL ? into : sim_graph_make();
    if (position == NULL || graph == NULL || !set_after(position, dependencies, count, false)) {
        free(position);
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->origin = key;
    made->graph = graph;
    made->into_given_graph = into != NULL;
    made->mode = mode;
    made->thread = pthread_self();
    pthread_mutex_lock(&lock);
    bool already = capture_with(key) != NULL;
    if (!already) {
        made->next = captures;
        captures = made;
        atomic_fetch_add(&sim_captures, 1);
    }
    pthread_mutex_unlock(&lock);
    if (!already)
        return CUDA_SUCCESS;
    if (into == NULL)
        sim_graph_free(graph);
    free(position->after);
    free(position);
    free(made);
    return CUDA_ERROR_ILLEGAL_STATE;
}

SIM_API CUresult cuStreamBeginCapture(CUstream stream) {
    return begin(stream, false, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL, NULL, 0);
}

SIM_API CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
    return begin(stream, true, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL, NULL, 0);
}

SIM_API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    return begin(stream, false, mode, NULL, NULL, 0);
}

SIM_API CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
    return begin(stream, true, mode, NULL, NULL, 0);
}

SIM_API CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                             const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                             CUstreamCaptureMode mode) {
    (void)dependencyData;
    return sim_is_graph(graph) ? begin(stream, false, mode, graph, dependencies, numDependencies)
                               : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                                  const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                                  CUstreamCaptureMode mode) {
    (void)dependencyData;
    return sim_is_graph(graph) ? begin(stream, true, mode, graph, dependencies, numDependencies)
                               : CUDA_ERROR_INVALID_VALUE;
}

/* Whether the node, or something that comes after it, is among the last of the origin. */
static bool is_joined(CUgraphNode node, const struct position *origin) {
    for (size_t i = 0; i < origin->count; i++)
        if (origin->after[i] == node)
            return true;
    for (CUgraphNode later = node->next; later != NULL; later = later->next)
        for (size_t i = 0; i < later->dependency_count; i++)
            if (later->dependencies[i] == node && is_joined(later, origin))
                return true;
    return false;
}

static bool all_joined(const struct sim_capture *capture) {
    const struct position *origin = find(capture->streams, capture->origin);
    for (const struct position *other = capture->streams; other != NULL; other = other->next)
        for (size_t i = 0; i < other->count; i++)
            if (!is_joined(other->after[i], origin))
                return false;
    return true;
}

static void drop(struct position **list, const void *key) {
    for (struct position **link = list; *link != NULL; link = &(*link)->next)
        if ((*link)->key == key) {
            struct position *dropped = *link;
            *link = dropped->next;
            free(dropped->after);
            free(dropped);
            return;
        }
}

static void free_positions(struct position *list) {
    while (list != NULL) {
        struct position *next = list->next;
        free(list->after);
        free(list);
        list = next;
    }
}

/* With the lock held: the capture is no more. */
static void unlink_capture(struct sim_capture *capture) {
    for (struct sim_capture **link = &captures; *link != NULL; link = &(*link)->next)
        if (*link == capture) {
            *link = capture->next;
            break;
        }
    atomic_fetch_sub(&sim_captures, 1);
}

static void free_capture(struct sim_capture *capture, bool with_graph) {
    if (with_graph && !capture->into_given_graph)
        sim_graph_free(capture->graph);
    free_positions(capture->streams);
    free_positions(capture->events);
    free(capture);
}

void sim_capture_stream_ended(CUstream stream) {
    if (atomic_load(&sim_captures) == 0)
        return;
    pthread_mutex_lock(&lock);
    struct sim_capture *capture = capture_with(stream);
    bool over = capture != NULL && capture->origin == stream;
    if (over)
        unlink_capture(capture);
    else if (capture != NULL)
        drop(&capture->streams, stream);
    if (capture != NULL)
        capture->invalidated = true;
    pthread_mutex_unlock(&lock);
    if (over)
        free_capture(capture, true);
}

void sim_capture_event_ended(CUevent event) {
    if (atomic_load(&sim_captures) == 0)
        return;
    pthread_mutex_lock(&lock);
    for (struct sim_capture *capture = captures; capture != NULL; capture = capture->next)
        drop(&capture->events, event);
    pthread_mutex_unlock(&lock);
}

static CUresult end(CUstream stream, bool per_thread, CUgraph *graph) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const void *key = key_of(stream, per_thread);
    pthread_mutex_lock(&lock);
    struct sim_capture *capture = capture_with(key);
    if (capture == NULL)
        result = CUDA_ERROR_ILLEGAL_STATE;
    else if (capture->origin != key)
        result = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    else if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self()))
        result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    if (result != CUDA_SUCCESS) {
        pthread_mutex_unlock(&lock);
        return result;
    }
    if (capture->invalidated)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!all_joined(capture))
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    unlink_capture(capture);
    pthread_mutex_unlock(&lock);
    *graph = result == CUDA_SUCCESS ? capture->graph : NULL;
    free_capture(capture, result != CUDA_SUCCESS);
    return result;
}

SIM_API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    return end(stream, false, graph);
}

SIM_API CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    return end(stream, true, graph);
}

static CUresult is_capturing(CUstream stream, bool per_thread, CUstreamCaptureStatus *status) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (status == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sim_capture *capture = sim_capture_of(stream, per_thread);
    *status = capture == NULL        ? CU_STREAM_CAPTURE_STATUS_NONE
              : capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                     : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *captureStatus) {
    return is_capturing(stream, false, captureStatus);
}

SIM_API CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *captureStatus) {
    return is_capturing(stream, true, captureStatus);
}

SIM_API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    if (mode == NULL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode former = thread_mode;
    thread_mode = *mode;
    *mode = former;
    return CUDA_SUCCESS;
}
