#include "compute/gate.h"

#include <string.h>

#include "account/account.h"
#include "compute/sampler.h"
#include "core/throttle.h"
#include "hooks/capture.h"
#include "vgpu/prim.h"

/* A thread takes at least this much from the bucket at once, and spends it without touching what others write. */
#define BATCH_NS 200000ull

/* A waiting thread looks up this often: the limit or the policy may have changed. */
#define LONGEST_SLEEP_NS 100000000ull

/* The first launch of a kernel runs alone in the container and is waited for, so that from the second on its cost is
 * known. (Lazy loading makes drivers wait at a first launch too.) One that runs longer, or never ends, is let be. */
#define FIRST_WAIT_NS 250000000ull

/* So long after other streams or processes had work it may be that some is left, however short it seemed. */
#define SHARED_FOR_NS 1000000000ull

#define LOAD(word) atomic_load_explicit(&(word), memory_order_relaxed)
#define STORE(word, value) atomic_store_explicit(&(word), (value), memory_order_relaxed)

static struct vgi_durations durations;
static _Atomic uint64_t resident_threads[VG_MAX_CARDS]; /* 0 = not asked yet */

/* What this thread has taken and not spent. */
static _Thread_local struct {
    uint64_t ns; /* of estimated work */
    unsigned card;
} credit __attribute__((tls_model("initial-exec")));

/* Which other work of the container may still run on the card, as far as this process can tell: until when others'
 * grants reach, and what was granted to itself on the stream it used last. */
static struct {
    _Atomic uint64_t others_until_ns;
    _Atomic uint64_t own_until_ns;
    _Atomic uint64_t stream;
    _Atomic uint64_t own_work_ns;
} view[VG_MAX_CARDS];

void vgi_forget_launches(void) {
    vgi_samples_forget_all();
    atomic_store(&vgi_noted_second, 0);
    memset(&durations, 0, sizeof durations);
    for (unsigned card = 0; card < VG_MAX_CARDS; card++) {
        atomic_store(&resident_threads[card], 0);
        atomic_store(&view[card].others_until_ns, 0);
        atomic_store(&view[card].own_until_ns, 0);
        atomic_store(&view[card].stream, 0);
        atomic_store(&view[card].own_work_ns, 0);
    }
}

static struct vg_card_compute *compute_of(unsigned card) {
    return &vg_extension_of(vgi_region)->compute[card];
}

int vgi_throttled_of_several(void) {
    CUdevice device = 0;
    bool any = false;
    for (int i = 0; i < VGI_MAX_DEVICES && vgi_card_of_device[i] >= 0; i++)
        any = any || vgi_cores_limit((unsigned)vgi_card_of_device[i]) < 100;
    if (!any || VGI_CUDA(cuCtxGetDevice, &device) != CUDA_SUCCESS || device < 0 || device >= VGI_MAX_DEVICES)
        return -1;
    int card = vgi_card_of_device[device];
    return card >= 0 && vgi_is_throttled((unsigned)card) ? card : -1;
}

/* ---- one process at a time runs a kernel that is not known yet, as a word of the card says until a deadline ---- */

static bool is_measuring(const struct vg_card_compute *compute, uint64_t now) {
    uint64_t until = LOAD(compute->measuring_until_ns);
    return until > now && until - now <= LONGEST_SLEEP_NS + FIRST_WAIT_NS; /* further ahead is nonsense */
}

/* Until nobody measures; known work waits for that too, or it would be in the measure. */
static void await_measuring(unsigned card) {
    for (uint64_t pause = 50000; vgi_is_throttled(card) && is_measuring(compute_of(card), vgi_now_ns());
         pause += pause < 2000000 ? pause / 2 : 0) {
        vgi_samples_collect();
        vgi_sleep_ns(pause);
    }
}

/* The word, which end_measuring clears; 0 = compute is not limited any more. */
static uint64_t begin_measuring(unsigned card) {
    struct vg_card_compute *compute = compute_of(card);
    while (vgi_is_throttled(card)) {
        uint64_t until = LOAD(compute->measuring_until_ns), now = vgi_now_ns(), mine = now + FIRST_WAIT_NS;
        if (!is_measuring(compute, now) && atomic_compare_exchange_strong(&compute->measuring_until_ns, &until, mine))
            return mine;
        await_measuring(card);
    }
    return 0;
}

static void keep_measuring(unsigned card, uint64_t *mine, uint64_t now) {
    uint64_t later = now + LONGEST_SLEEP_NS + FIRST_WAIT_NS, expected = *mine;
    if (atomic_compare_exchange_strong(&compute_of(card)->measuring_until_ns, &expected, later))
        *mine = later;
}

static void end_measuring(struct vg_card_compute *compute, uint64_t mine) {
    (void)atomic_compare_exchange_strong(&compute->measuring_until_ns, &mine, 0);
}

/* ---- paying ---- */

static uint64_t stream_id(const struct vgi_work *work) {
    bool own = work->stream == CU_STREAM_PER_THREAD || (work->per_thread && work->stream == NULL);
    if (own)
        return (uint64_t)(uintptr_t)&credit; /* each thread's own */
    return work->stream == CU_STREAM_LEGACY ? 0 : (uint64_t)(uintptr_t)work->stream;
}

/* Other streams were granted something lately: from here on the stream is this one, and all before is others'. */
static void change_stream(unsigned card, uint64_t stream) {
    uint64_t until = LOAD(compute_of(card)->granted_until_ns);
    if (LOAD(view[card].others_until_ns) >= until)
        return; /* known already: threads with a stream each need not write */
    STORE(view[card].others_until_ns, until);
    STORE(view[card].stream, stream);
}

/* What other streams and processes of the container may have under way; 0 = nothing. */
static uint64_t backlog(unsigned card, uint64_t now) {
    uint64_t until = LOAD(compute_of(card)->granted_until_ns);
    if (until != LOAD(view[card].own_until_ns)) {
        STORE(view[card].others_until_ns, until);
        STORE(view[card].own_until_ns, until);
    }
    uint64_t others = LOAD(view[card].others_until_ns);
    return others > now ? others - now : 0;
}

static void note_taking(unsigned card, struct vgi_taking taking) {
    if (taking.granted_before != LOAD(view[card].own_until_ns))
        STORE(view[card].others_until_ns, taking.granted_before);
    STORE(view[card].own_until_ns, taking.granted_after);
}

static void take_back_credit(void) {
    if (credit.ns > 0)
        vgi_bucket_correct(compute_of(credit.card), -(int64_t)credit.ns);
    credit.ns = 0;
}

/* Waits until the container's share of the card allows the launch, and takes what it costs. Holds no lock: whoever is
 * killed here leaves nothing behind. `measuring`, where it is given, is this card's word, kept up meanwhile. */
static void pay(unsigned card, uint64_t work_ns, uint64_t *measuring) {
    struct vg_card_compute *compute = compute_of(card);
    uint64_t wanted = work_ns < BATCH_NS ? BATCH_NS : work_ns;
    if (credit.card != card)
        take_back_credit();
    credit.card = card;
    while (vgi_is_throttled(card)) {
        uint64_t now = vgi_now_ns();
        if (measuring == NULL && is_measuring(compute, now)) {
            await_measuring(card);
            continue;
        }
        struct vgi_taking taking = vgi_bucket_take(compute, now, vgi_cores_limit(card), wanted);
        if (taking.wait_ns == 0) {
            note_taking(card, taking);
            atomic_fetch_add_explicit(&view[card].own_work_ns, wanted, memory_order_relaxed);
            credit.ns += wanted - work_ns;
            return;
        }
        vgi_samples_collect();
        vgi_sampler_tick(now);
        if (measuring != NULL)
            keep_measuring(card, measuring, now);
        vgi_sleep_ns(taking.wait_ns < LONGEST_SLEEP_NS ? taking.wait_ns : LONGEST_SLEEP_NS);
        vgi_note_launch();
    }
}

static uint64_t guess(unsigned card, uint64_t threads) {
    uint64_t resident = LOAD(resident_threads[card]);
    if (resident == 0) {
        CUdevice device = 0;
        int processors = 0, each = 0;
        (void)VGI_CUDA(cuCtxGetDevice, &device);
        (void)VGI_CUDA(cuDeviceGetAttribute, &processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
        (void)VGI_CUDA(cuDeviceGetAttribute, &each, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device);
        resident = processors > 0 && each > 0 ? (uint64_t)processors * (uint64_t)each : 1;
        atomic_store_explicit(&resident_threads[card], resident, memory_order_relaxed);
    }
    return vgi_duration_guess(threads, resident);
}

/* ---- launching ---- */

static struct vgi_sample *begin_sample(unsigned card, struct vgi_duration *entry, const struct vgi_work *work,
                                       uint64_t charged_ns, uint64_t measuring) {
    vgi_samples_collect();
    uint64_t now = vgi_now_ns();
    struct vgi_sample_of what = {.entry = entry,
                                 .card = compute_of(card),
                                 .charged_ns = charged_ns,
                                 .guess_ns = guess(card, work->threads),
                                 .backlog_ns = backlog(card, now),
                                 .own_work_ns = &view[card].own_work_ns,
                                 .shared = now - LOAD(view[card].others_until_ns) < SHARED_FOR_NS,
                                 .stream = work->stream,
                                 .per_thread = work->per_thread,
                                 .measuring = measuring};
    what.granted_ns = vgi_granted_to_others(&what);
    struct vgi_sample *sample = vgi_sample_begin(&what);
    if (sample == NULL)
        vgi_duration_put_off(entry);
    return sample;
}

/* Work of others that was launched before should be over first. */
static void await_others(unsigned card, uint64_t *measuring) {
    uint64_t now = vgi_now_ns(), rest = backlog(card, now);
    if (rest == 0)
        return;
    vgi_sleep_ns(rest < FIRST_WAIT_NS ? rest : FIRST_WAIT_NS);
    keep_measuring(card, measuring, vgi_now_ns());
}

static struct vgi_sample *launch_unknown(unsigned card, struct vgi_duration *entry, const struct vgi_work *work) {
    uint64_t measuring = begin_measuring(card);
    if (measuring == 0)
        return NULL;
    uint64_t known = LOAD(entry->estimate_ns); /* another thread may have been faster */
    uint64_t charged = known != 0 ? known : guess(card, work->threads);
    pay(card, charged, &measuring);
    await_others(card, &measuring);
    struct vgi_sample *sample = known == 0 ? begin_sample(card, entry, work, charged, measuring) : NULL;
    if (sample == NULL)
        end_measuring(compute_of(card), measuring);
    return sample;
}

static void await_first(const struct vgi_sample_of *first) {
    uint64_t begun = vgi_now_ns(), passed = 0;
    for (vgi_samples_collect(); LOAD(first->entry->estimate_ns) == 0; vgi_samples_collect()) {
        if (passed >= FIRST_WAIT_NS) {
            vgi_duration_suppose(first->entry, passed);
            return;
        }
        uint64_t pause = passed / 8;
        vgi_sleep_ns(pause < 20000 ? 20000 : pause > 1000000 ? 1000000 : pause);
        passed = vgi_now_ns() - begun;
    }
}

void vgi_after_launch(struct vgi_sample *sample, CUresult result) {
    struct vgi_sample_of what = vgi_sample_what(sample);
    vgi_sample_end(sample, result == CUDA_SUCCESS);
    if (what.measuring == 0)
        return;
    if (result == CUDA_SUCCESS)
        await_first(&what);
    end_measuring(what.card, what.measuring);
}

static struct vgi_sample *pass(unsigned card, const struct vgi_work *work) {
    struct vgi_duration *entry = vgi_duration_find(&durations, vgi_duration_key(work->what, card, work->threads));
    uint64_t estimate = LOAD(entry->estimate_ns), stream = stream_id(work);
    if (__builtin_expect(stream != LOAD(view[card].stream), 0))
        change_stream(card, stream);
    if (__builtin_expect(estimate == 0, 0))
        return launch_unknown(card, entry, work);
    if (__builtin_expect(credit.card == card && credit.ns >= estimate, 1))
        credit.ns -= estimate;
    else
        pay(card, estimate, NULL);
    return __builtin_expect(vgi_duration_is_due(entry), 0) ? begin_sample(card, entry, work, estimate, 0) : NULL;
}

struct vgi_sample *vgi_pay_for(unsigned card, const struct vgi_work *work) {
    /* What a capture records does not run now: it is paid for when its graph is launched. */
    return vgi_any_capture() && vgi_capturing(work->stream, work->per_thread) ? NULL : pass(card, work);
}

/* ---- for graphs ---- */

bool vgi_compute_is_limited(void) {
    return vgi_is_limited() && vgi_throttled_card() >= 0;
}

uint64_t vgi_known_cost(uintptr_t what, const unsigned grid[3], const unsigned block[3]) {
    int card = vgi_throttled_card();
    if (card < 0)
        return 0;
    uint64_t key = vgi_duration_key(what, (unsigned)card, vgi_threads(grid, block));
    return LOAD(vgi_duration_find(&durations, key)->estimate_ns);
}

void vgi_suppose_cost(uintptr_t what, uint64_t ns) {
    int card = vgi_throttled_card();
    if (card >= 0 && ns != 0)
        vgi_duration_suppose(vgi_duration_find(&durations, vgi_duration_key(what, (unsigned)card, 0)), ns);
}

void vgi_forget_cost(uintptr_t what) {
    for (unsigned card = 0; card < VG_MAX_CARDS; card++)
        vgi_duration_forget(&durations, vgi_duration_key(what, card, 0));
}
