#include "compute/samples.h"

#include <stdatomic.h>

#include "core/throttle.h"
#include "hooks/capture.h"
#include "vgpu/prim.h"

#define SAMPLES 32

enum { FREE, TAKEN, PENDING };

struct vgi_sample {
    _Atomic uint32_t state;
    CUcontext context; /* of the events; NULL = there are none */
    CUevent begin, end;
    uint64_t key;
    uint64_t begun_ns; /* by the host's clock, where the stream was idle; else 0 */
    uint64_t calls_ns;
    struct vgi_sample_of what;
};

static struct vgi_sample samples[SAMPLES];
static _Atomic uint32_t pending; /* how many */

static bool take(struct vgi_sample *sample, uint32_t from) {
    return atomic_compare_exchange_strong_explicit(&sample->state, &from, TAKEN, memory_order_acquire,
                                                   memory_order_relaxed);
}

static void put(struct vgi_sample *sample, uint32_t state) {
    atomic_store_explicit(&sample->state, state, memory_order_release);
}

static bool make_events(struct vgi_sample *sample, CUcontext context) {
    if (VGI_CUDA(cuEventCreate, &sample->begin, 0) != CUDA_SUCCESS)
        return false;
    if (VGI_CUDA(cuEventCreate, &sample->end, 0) != CUDA_SUCCESS) {
        (void)VGI_CUDA(cuEventDestroy_v2, sample->begin);
        return false;
    }
    sample->context = context;
    return true;
}

/* One with events of that context, else one without events yet. */
static struct vgi_sample *find_free(CUcontext context) {
    for (unsigned i = 0; i < SAMPLES; i++) {
        struct vgi_sample *sample = &samples[i];
        if (!take(sample, FREE))
            continue;
        if (sample->context == context || (sample->context == NULL && make_events(sample, context)))
            return sample;
        put(sample, FREE);
    }
    return NULL;
}

static CUresult record(CUevent event, const struct vgi_sample_of *what) {
    return what->per_thread ? VGI_CUDA(cuEventRecord_ptsz, event, what->stream)
                            : VGI_CUDA(cuEventRecord, event, what->stream);
}

static bool is_idle(const struct vgi_sample_of *what) {
    return (what->per_thread ? VGI_CUDA(cuStreamQuery_ptsz, what->stream) : VGI_CUDA(cuStreamQuery, what->stream)) ==
           CUDA_SUCCESS;
}

static struct vgi_sample *begin(const struct vgi_sample_of *what) {
    CUcontext context = NULL;
    if (VGI_CUDA(cuCtxGetCurrent, &context) != CUDA_SUCCESS || context == NULL)
        return NULL;
    struct vgi_sample *sample = find_free(context);
    if (sample == NULL)
        return NULL;
    uint64_t begun = is_idle(what) ? vgi_now_ns() : 0;
    if (record(sample->begin, what) != CUDA_SUCCESS) {
        put(sample, FREE);
        return NULL;
    }
    sample->key = atomic_load_explicit(&what->entry->key, memory_order_relaxed);
    sample->what = *what;
    if (what->shared && begun == 0 && what->backlog_ns == 0)
        sample->what.backlog_ns = VGI_UNKNOWN_BACKLOG;
    sample->calls_ns = 0;
    sample->begun_ns = begun;
    return sample;
}

struct vgi_sample *vgi_sample_begin(const struct vgi_sample_of *what) {
    struct vgi_aside aside;
    struct vgi_sample *sample = vgi_begin_aside(&aside) ? begin(what) : NULL;
    vgi_end_aside(&aside);
    return sample;
}

struct vgi_sample_of vgi_sample_what(const struct vgi_sample *sample) {
    return sample->what;
}

void vgi_sample_end(struct vgi_sample *sample, bool launched) {
    if (!launched || record(sample->end, &sample->what) != CUDA_SUCCESS) {
        put(sample, FREE);
        return;
    }
    if (sample->begun_ns != 0)
        sample->calls_ns = vgi_now_ns() - sample->begun_ns;
    atomic_fetch_add_explicit(&pending, 1, memory_order_relaxed);
    put(sample, PENDING);
}

uint64_t vgi_granted_to_others(const struct vgi_sample_of *what) {
    uint64_t all = atomic_load_explicit(&what->card->work_ns, memory_order_relaxed);
    return what->shared ? all : all - atomic_load_explicit(what->own_work_ns, memory_order_relaxed);
}

static void learn(const struct vgi_sample *sample, float milliseconds) {
    const struct vgi_sample_of *what = &sample->what;
    uint64_t elapsed = milliseconds > 0 ? (uint64_t)((double)milliseconds * 1e6) : 0;
    uint64_t meanwhile = vgi_granted_to_others(what) - what->granted_ns, backlog = what->backlog_ns + meanwhile;
    struct vgi_measure measure = {.elapsed_ns = elapsed,
                                  .backlog_ns = backlog < meanwhile ? VGI_UNKNOWN_BACKLOG : backlog,
                                  .calls_ns = sample->calls_ns};
    if (atomic_load_explicit(&what->entry->key, memory_order_relaxed) != sample->key)
        return; /* the place was given to another function */
    vgi_duration_learn(what->entry, measure, what->guess_ns);
    if (what->measuring != 0) {
        uint64_t now_known = atomic_load_explicit(&what->entry->estimate_ns, memory_order_relaxed);
        uint64_t true_ns = elapsed < now_known ? elapsed : now_known;
        vgi_bucket_correct(what->card, (int64_t)true_ns - (int64_t)what->charged_ns);
    }
}

static void collect(void) {
    CUcontext context = NULL;
    if (VGI_CUDA(cuCtxGetCurrent, &context) != CUDA_SUCCESS || context == NULL)
        return;
    for (unsigned i = 0; i < SAMPLES; i++) {
        struct vgi_sample *sample = &samples[i];
        float milliseconds = 0;
        if (!take(sample, PENDING))
            continue;
        CUresult result = sample->context == context ? VGI_CUDA(cuEventQuery, sample->end) : CUDA_ERROR_NOT_READY;
        if (result == CUDA_ERROR_NOT_READY) {
            put(sample, PENDING);
            continue;
        }
        if (result == CUDA_SUCCESS &&
            VGI_CUDA(cuEventElapsedTime, &milliseconds, sample->begin, sample->end) == CUDA_SUCCESS)
            learn(sample, milliseconds);
        atomic_fetch_sub_explicit(&pending, 1, memory_order_relaxed);
        put(sample, FREE);
    }
}

void vgi_samples_collect(void) {
    struct vgi_aside aside;
    if (atomic_load_explicit(&pending, memory_order_relaxed) == 0)
        return;
    if (vgi_begin_aside(&aside))
        collect();
    vgi_end_aside(&aside);
}

void vgi_samples_forget(CUcontext context) {
    for (unsigned i = 0; i < SAMPLES; i++) {
        struct vgi_sample *sample = &samples[i];
        bool waiting = take(sample, PENDING);
        if (!waiting && !take(sample, FREE))
            continue; /* someone launches into a context that is being destroyed */
        if (sample->context == context)
            sample->context = NULL;
        if (waiting && sample->context == NULL)
            atomic_fetch_sub_explicit(&pending, 1, memory_order_relaxed);
        put(sample, waiting && sample->context != NULL ? PENDING : FREE);
    }
}

void vgi_samples_forget_all(void) {
    for (unsigned i = 0; i < SAMPLES; i++) {
        samples[i].context = NULL;
        put(&samples[i], FREE);
    }
    atomic_store(&pending, 0);
}
