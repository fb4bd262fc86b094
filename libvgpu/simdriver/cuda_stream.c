/* Streams and events. A stream knows where its last kernel lies in the process's work on the card, see timeline.h. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "graph.h"
#include "handles.h"
#include "pool.h"
#include "sim_clock.h"
#include "timeline.h"

struct CUstream_st {
    CUcontext context;
    struct sim_stream_work work;
};

struct CUevent_st {
    bool recorded;
    struct sim_stream_work work; /* what must be done before; nothing once `at_ns` is known */
    int device;
    uint64_t at_ns;
    struct CUevent_st *next; /* of those whose moment is not known yet */
};

static struct sim_handle_store streams, events;

static CUevent open_events; /* guarded by sim.lock */

static _Thread_local struct sim_stream_work own_stream[SIM_MAX_CARDS]; /* of the per-thread default stream, by device */

static struct sim_stream_work *work_of(CUstream stream, bool per_thread) {
    CUcontext context = sim_current_context();
    if (stream == CU_STREAM_PER_THREAD || (stream == NULL && per_thread))
        return &own_stream[context == NULL ? 0 : context->device];
    if (stream == NULL || stream == CU_STREAM_LEGACY)
        return context == NULL ? &own_stream[0] : &context->default_stream;
    return &stream->work;
}

static int device_of(CUstream stream) {
    CUcontext context = sim_current_context();
    bool named = stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
    return named ? stream->context->device : context == NULL ? 0 : context->device;
}

/* When that work of the device is over, as far as can be told now. */
static uint64_t end_of(const struct sim_stream_work *work, int device) {
    uint64_t now = sim_now_ns();
    unsigned card = sim.cards[device];
    if (work->position == 0)
        return work->not_before_ns;
    sim_books_lock(sim.books);
    sim_timeline_advance(sim.books, card, now);
    uint64_t end = sim_timeline_when(sim.books, (unsigned)(sim.process - sim.books->processes), card, work->position);
    sim_books_unlock(sim.books);
    return end > work->not_before_ns ? end : work->not_before_ns;
}

/* The event's moment; it stays once it is past. */
static uint64_t settle(CUevent event) {
    uint64_t at = event->at_ns != 0 ? event->at_ns : end_of(&event->work, event->device);
    if (at <= sim_now_ns())
        event->at_ns = at;
    return at;
}

/* Before the card's work changes its course: what is past is remembered only for a while. */
static void settle_events(void) {
    if (__atomic_load_n(&open_events, __ATOMIC_RELAXED) == NULL)
        return;
    pthread_mutex_lock(&sim.lock);
    for (CUevent *link = &open_events; *link != NULL;) {
        if (settle(*link) <= sim_now_ns())
            *link = (*link)->next;
        else
            link = &(*link)->next;
    }
    pthread_mutex_unlock(&sim.lock);
}

static void close_event(CUevent event) {
    pthread_mutex_lock(&sim.lock);
    for (CUevent *link = &open_events; *link != NULL; link = &(*link)->next)
        if (*link == event) {
            *link = event->next;
            break;
        }
    pthread_mutex_unlock(&sim.lock);
}

static void open_event(CUevent event) {
    pthread_mutex_lock(&sim.lock);
    event->next = open_events;
    open_events = event;
    pthread_mutex_unlock(&sim.lock);
}

/* Others may join meanwhile, so it looks again when it wakes. */
static void wait_for(const struct sim_stream_work *work, int device) {
    uint64_t end;
    while ((end = end_of(work, device)) > sim_now_ns())
        sim_sleep_until(end);
}

int sim_stream_device(CUstream stream) {
    bool named = stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
    CUcontext context = named ? stream->context : sim_current_context();
    return context == NULL ? -1 : context->device;
}

uint64_t sim_stream_end(CUstream stream, bool per_thread) {
    return end_of(work_of(stream, per_thread), device_of(stream));
}

void sim_sleep_until(uint64_t ns) {
    struct timespec until = {.tv_sec = (time_t)(ns / 1000000000ull), .tv_nsec = (long)(ns % 1000000000ull)};
    while (sim_now_ns() < ns)
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

void sim_host_spend(unsigned ns) {
    if (sim_clock_spend != NULL)
        sim_clock_spend(ns);
}

/* How much unfinished work a process may have queued on a card before a launch waits. */
#define QUEUE_NS 50000000ull

uint64_t sim_wave_ns(void) {
    static uint64_t cached;
    uint64_t value = __atomic_load_n(&cached, __ATOMIC_RELAXED);
    if (value == 0) {
        const char *setting = getenv("HAMI_SIM_KERNEL_MICROSECONDS");
        value = setting == NULL || *setting == '\0' ? 100000ull : strtoull(setting, NULL, 10) * 1000ull;
        value++; /* 0 stays "not read yet" */
        __atomic_store_n(&cached, value, __ATOMIC_RELAXED);
    }
    return value - 1;
}

CUresult sim_launch(uint64_t blocks, uint64_t threads_per_block, uint64_t wave_ns, CUstream stream, bool per_thread) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (blocks == 0 || threads_per_block == 0 || threads_per_block > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sim_card *card = sim_card_of(context->device);
    uint64_t resident = (uint64_t)card->sm_count * card->threads_per_sm;
    uint64_t waves = (blocks * threads_per_block + resident - 1) / resident;
    uint64_t duration = waves * wave_ns;
    struct sim_stream_work *work = work_of(stream, per_thread);
    settle_events();
    sim_books_lock(sim.books);
    sim_own_card(context->device)->launches++;
    work->position = sim_timeline_add(sim.books, (unsigned)(sim.process - sim.books->processes),
                                      sim.cards[context->device], sim_now_ns(), duration);
    sim_books_unlock(sim.books);
    if (work->position > QUEUE_NS + duration)
        wait_for(&(struct sim_stream_work){.position = work->position - QUEUE_NS - duration}, context->device);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream == NULL || flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    CUstream made = sim_handle_make(&streams, sizeof *made);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->context = context;
    *stream = made;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    (void)priority;
    return cuStreamCreate(stream, flags);
}

SIM_API CUresult cuStreamDestroy_v2(CUstream stream) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return CUDA_ERROR_INVALID_HANDLE;
    sim_capture_stream_ended(stream);
    sim_handle_drop(&streams, stream);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamDestroy(CUstream stream) {
    return cuStreamDestroy_v2(stream);
}

SIM_API CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
    CUcontext current = NULL;
    CUresult result = sim_require_context(&current);
    if (result != CUDA_SUCCESS)
        return result;
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    bool own = stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
    *context = own ? stream->context : current;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamGetDevice(CUstream stream, CUdevice *device) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    int found = sim_stream_device(stream);
    if (found < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = found;
    return CUDA_SUCCESS;
}

static CUresult synchronize(CUstream stream, bool per_thread) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result == CUDA_SUCCESS)
        result = sim_capture_forbids_wait(stream, per_thread);
    if (result != CUDA_SUCCESS)
        return result;
    wait_for(work_of(stream, per_thread), device_of(stream));
    sim_pools_synchronised();
    return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamSynchronize(CUstream stream) {
    return synchronize(stream, false);
}

SIM_API CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    return synchronize(stream, true);
}

SIM_API CUresult cuCtxSynchronize(void) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result == CUDA_SUCCESS)
        result = sim_unsafe_call();
    if (result != CUDA_SUCCESS)
        return result;
    wait_for(&(struct sim_stream_work){.position = sim_own_card(context->device)->enqueued_ns}, context->device);
    sim_pools_synchronised();
    return CUDA_SUCCESS;
}

/* NULL: the current context. */
SIM_API CUresult cuCtxSynchronize_v2(CUcontext context) {
    CUcontext former = sim_current_context();
    CUresult result = context == NULL || context == former ? CUDA_SUCCESS : cuCtxPushCurrent_v2(context);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuCtxSynchronize();
    if (context != NULL && context != former)
        (void)cuCtxPopCurrent_v2(NULL);
    return result;
}

static CUresult query(CUstream stream, bool per_thread) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result == CUDA_SUCCESS)
        result = sim_capture_forbids_wait(stream, per_thread);
    if (result == CUDA_SUCCESS)
        result = sim_unsafe_call();
    if (result != CUDA_SUCCESS)
        return result;
    sim_host_spend(SIM_QUERY_HOST_NS);
    return sim_stream_end(stream, per_thread) > sim_now_ns() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

SIM_API CUresult cuStreamQuery(CUstream stream) {
    return query(stream, false);
}

SIM_API CUresult cuStreamQuery_ptsz(CUstream stream) {
    return query(stream, true);
}

static CUresult wait_event(CUstream stream, CUevent event, bool per_thread) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (sim_capture_wait(stream, per_thread, event, &result))
        return result;
    struct sim_stream_work *work = work_of(stream, per_thread);
    if (event->recorded && event->device == device_of(stream) && event->work.position > work->position)
        work->position = event->work.position;
    else if (event->recorded && settle(event) > work->not_before_ns)
        work->not_before_ns = settle(event);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    (void)flags;
    return wait_event(stream, event, false);
}

SIM_API CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags) {
    (void)flags;
    return wait_event(stream, event, true);
}

SIM_API CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    (void)flags;
    if (result != CUDA_SUCCESS)
        return result;
    if (event == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *event = sim_handle_make(&events, sizeof **event);
    return *event == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult record(CUevent event, CUstream stream, bool per_thread) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (sim_capture_record(event, stream, per_thread))
        return CUDA_SUCCESS;
    sim_host_spend(SIM_RECORD_HOST_NS);
    uint64_t now = sim_now_ns();
    close_event(event);
    event->recorded = true;
    event->device = device_of(stream);
    event->work = *work_of(stream, per_thread);
    if (end_of(&event->work, event->device) <= now)
        event->work = (struct sim_stream_work){.not_before_ns = now};
    event->at_ns = 0;
    if (event->work.position != 0)
        open_event(event);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuEventRecord(CUevent event, CUstream stream) {
    return record(event, stream, false);
}

SIM_API CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) {
    return record(event, stream, true);
}

/* 1: an event of a node of its own in a captured stream, which graphs here do not have. */
SIM_API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
    return flags > 1 ? CUDA_ERROR_INVALID_VALUE : record(event, stream, false);
}

SIM_API CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned int flags) {
    return flags > 1 ? CUDA_ERROR_INVALID_VALUE : record(event, stream, true);
}

SIM_API CUresult cuEventQuery(CUevent event) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (sim_capture_has_event(event))
        return CUDA_ERROR_CAPTURED_EVENT;
    result = sim_unsafe_call();
    if (result != CUDA_SUCCESS)
        return result;
    sim_host_spend(SIM_QUERY_HOST_NS);
    return event->recorded && settle(event) > sim_now_ns() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

SIM_API CUresult cuEventSynchronize(CUevent event) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (sim_capture_has_event(event))
        return CUDA_ERROR_CAPTURED_EVENT;
    if (event->recorded)
        wait_for(&event->work, event->device);
    sim_pools_synchronised();
    return CUDA_SUCCESS;
}

SIM_API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (milliseconds == NULL || start == NULL || end == NULL || !start->recorded || !end->recorded)
        return CUDA_ERROR_INVALID_HANDLE;
    uint64_t now = sim_now_ns(), from = settle(start), to = settle(end);
    if (from > now || to > now)
        return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)(int64_t)(to - from) / 1e6);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuEventDestroy_v2(CUevent event) {
    CUresult result = sim_ready();
    if (result == CUDA_SUCCESS && event == NULL)
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS) {
        close_event(event);
        sim_capture_event_ended(event);
        sim_handle_drop(&events, event);
    }
    return result;
}
