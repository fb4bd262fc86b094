/* Streams and events. A stream knows when its last kernel ends on the card's timeline. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "graph.h"

struct CUstream_st {
    CUcontext context;
    uint64_t end_ns;
};

struct CUevent_st {
    bool recorded;
    uint64_t at_ns;
};

static _Thread_local uint64_t own_stream_end_ns; /* of the per-thread default stream */

static uint64_t *end_of(CUstream stream, bool per_thread) {
    if (stream == CU_STREAM_PER_THREAD || (stream == NULL && per_thread))
        return &own_stream_end_ns;
    if (stream == NULL || stream == CU_STREAM_LEGACY) {
        CUcontext context = sim_current_context();
        return context == NULL ? &own_stream_end_ns : &context->default_stream_end_ns;
    }
    return &stream->end_ns;
}

uint64_t sim_stream_end(CUstream stream, bool per_thread) {
    return __atomic_load_n(end_of(stream, per_thread), __ATOMIC_RELAXED);
}

void sim_sleep_until(uint64_t ns) {
    struct timespec until = {.tv_sec = (time_t)(ns / 1000000000ull), .tv_nsec = (long)(ns % 1000000000ull)};
    while (sim_now_ns() < ns)
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

/* How much unfinished work a process may have queued on a card before a launch waits. */
#define QUEUE_NS 50000000ull

static uint64_t wave_ns(void) {
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

/* Notes the busy span in the process's ticks. */
static void note_busy(struct sim_process_card *card, uint64_t start_ns, uint64_t end_ns) {
    while (start_ns < end_ns) {
        uint64_t tick = start_ns / SIM_TICK_NS;
        uint64_t tick_end = (tick + 1) * SIM_TICK_NS;
        uint64_t until = end_ns < tick_end ? end_ns : tick_end;
        struct sim_tick *slot = &card->ticks[tick % SIM_TICKS];
        if (slot->number != (uint32_t)tick)
            *slot = (struct sim_tick){.number = (uint32_t)tick};
        slot->busy_us += (uint32_t)((until - start_ns) / 1000);
        start_ns = until;
    }
}

CUresult sim_launch(uint64_t blocks, uint64_t threads_per_block, CUstream stream, bool per_thread) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (blocks == 0 || threads_per_block == 0 || threads_per_block > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sim_card *card = sim_card_of(context->device);
    uint64_t resident = (uint64_t)card->sm_count * card->threads_per_sm;
    uint64_t waves = (blocks * threads_per_block + resident - 1) / resident;
    uint64_t duration = waves * wave_ns();
    uint64_t now = sim_now_ns();
    sim_books_lock(sim.books);
    struct sim_card_state *state = sim_state_of(context->device);
    uint64_t start = state->busy_until_ns > now ? state->busy_until_ns : now;
    uint64_t end = start + duration;
    state->busy_until_ns = end;
    sim_own_card(context->device)->launches++;
    note_busy(sim_own_card(context->device), start, end);
    sim_books_unlock(sim.books);
    __atomic_store_n(end_of(stream, per_thread), end, __ATOMIC_RELAXED);
    if (end > now + QUEUE_NS + duration)
        sim_sleep_until(end - QUEUE_NS - duration);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream == NULL || flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    CUstream made = calloc(1, sizeof *made);
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
    free(stream);
    return CUDA_SUCCESS;
}

static CUresult synchronize(CUstream stream, bool per_thread) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result == CUDA_SUCCESS)
        result = sim_capture_forbids_wait(stream, per_thread);
    if (result == CUDA_SUCCESS)
        sim_sleep_until(sim_stream_end(stream, per_thread));
    return result;
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
    sim_books_lock(sim.books);
    uint64_t end = sim_state_of(context->device)->busy_until_ns;
    sim_books_unlock(sim.books);
    sim_sleep_until(end);
    return CUDA_SUCCESS;
}

static CUresult query(CUstream stream, bool per_thread) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result == CUDA_SUCCESS)
        result = sim_capture_forbids_wait(stream, per_thread);
    if (result != CUDA_SUCCESS)
        return result;
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
    uint64_t *end = end_of(stream, per_thread);
    if (event->recorded && event->at_ns > *end)
        *end = event->at_ns;
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
    *event = calloc(1, sizeof **event);
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
    uint64_t now = sim_now_ns(), end = sim_stream_end(stream, per_thread);
    event->recorded = true;
    event->at_ns = end > now ? end : now;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuEventRecord(CUevent event, CUstream stream) {
    return record(event, stream, false);
}

SIM_API CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) {
    return record(event, stream, true);
}

SIM_API CUresult cuEventQuery(CUevent event) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (sim_capture_has_event(event))
        return CUDA_ERROR_CAPTURED_EVENT;
    return event->recorded && event->at_ns > sim_now_ns() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
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
        sim_sleep_until(event->at_ns);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (milliseconds == NULL || start == NULL || end == NULL || !start->recorded || !end->recorded)
        return CUDA_ERROR_INVALID_HANDLE;
    uint64_t now = sim_now_ns();
    if (start->at_ns > now || end->at_ns > now)
        return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)(int64_t)(end->at_ns - start->at_ns) / 1e6);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuEventDestroy_v2(CUevent event) {
    CUresult result = sim_ready();
    if (result == CUDA_SUCCESS && event == NULL)
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS)
        free(event);
    return result;
}
