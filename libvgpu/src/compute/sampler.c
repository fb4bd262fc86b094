#include "compute/sampler.h"

#include <stdatomic.h>

#include "account/account.h"
#include "core/load.h"
#include "core/region.h"
#include "core/throttle.h"
#include "vgpu/prim.h"

#define TICK_NS 50000000ull
#define WINDOW_NS 1000000000ull /* of a sample */
#define LOOKS 32
#define MOST_SAMPLES 1024

static nvmlProcessUtilizationSample_t samples[MOST_SAMPLES];
static atomic_flag samples_taken = ATOMIC_FLAG_INIT;

/* Stays initialised: NVML counts, and its start is slow. */
static bool nvml_is_ready(void) {
    static _Atomic int ready; /* 0 = untried, 1 = yes, -1 = no */
    int state = atomic_load(&ready);
    if (state == 0) {
        state = vgi_bind_nvml() && VGI_NVML(nvmlInit_v2) == NVML_SUCCESS ? 1 : -1;
        atomic_store(&ready, state);
    }
    return state > 0;
}

/* The card is named by its UUID: neither CUDA's ordinals nor what of the machine is visible here matter. */
static unsigned read_samples(unsigned card) {
    nvmlDevice_t device = NULL;
    unsigned count = MOST_SAMPLES;
    char uuid[VG_UUID_BYTES + 1] = {0};
    __builtin_memcpy(uuid, vgi_region->uuids[card], VG_UUID_BYTES);
    if (VGI_NVML(nvmlDeviceGetHandleByUUID, uuid, &device) != NVML_SUCCESS)
        return 0;
    uint64_t since = vgi_now_realtime_us() - WINDOW_NS / 1000;
    if (VGI_NVML(nvmlDeviceGetProcessUtilization, device, samples, &count, since) != NVML_SUCCESS)
        return 0;
    return count < MOST_SAMPLES ? count : MOST_SAMPLES;
}

/* What had been granted on a card when this process looked; those of about a second ago are of use. */
struct look {
    uint64_t at_ns, work_ns;
};
static struct {
    struct look looks[LOOKS];
    unsigned count;
} history[VG_MAX_CARDS];

static const struct look *a_window_ago(unsigned card, uint64_t now_ns) {
    for (unsigned back = 1; back <= LOOKS && back <= history[card].count; back++) {
        const struct look *look = &history[card].looks[(history[card].count - back) % LOOKS];
        if (now_ns - look->at_ns >= WINDOW_NS - TICK_NS / 2)
            return now_ns - look->at_ns < 2 * WINDOW_NS ? look : NULL;
    }
    return NULL;
}

/* What was granted, and when: looked at together, as the process may have been stopped since its tick. */
static void correct(unsigned card, unsigned busy_percent) {
    struct vg_card_compute *compute = &vg_extension_of(vgi_region)->compute[card];
    uint64_t work = atomic_load_explicit(&compute->work_ns, memory_order_relaxed), now_ns = vgi_now_ns();
    const struct look *before = a_window_ago(card, now_ns);
    if (before != NULL && work >= before->work_ns)
        vgi_scale_learn(compute, busy_percent, work - before->work_ns, now_ns - before->at_ns);
    history[card].looks[history[card].count++ % LOOKS] = (struct look){.at_ns = now_ns, .work_ns = work};
}

static void sample_card(unsigned card) {
    unsigned count = read_samples(card);
    struct vgi_load load = vgi_load_of(vgi_region, card, vgi_pid_namespace(), samples, count);
    /* What was known stays: no sample is not "idle". */
    if (load.known && load.complete)
        correct(card, load.busy_percent);
}

/* Bit by bit, the cards of this process whose compute is limited. */
static uint32_t limited_cards(void) {
    uint32_t cards = 0;
    for (int device = 0; device < VGI_MAX_DEVICES && vgi_card_of_device[device] >= 0; device++)
        if (vgi_cores_limit((unsigned)vgi_card_of_device[device]) < 100)
            cards |= 1u << vgi_card_of_device[device];
    return cards;
}

void vgi_sampler_tick(uint64_t now_ns) {
    _Atomic uint64_t *next = &vg_extension_of(vgi_region)->sampler_until_ns;
    uint32_t cards = limited_cards();
    uint64_t due = atomic_load_explicit(next, memory_order_relaxed);
    /* A moment further ahead than one tick is none that we wrote. Who dies over it is followed by another at the next
     * tick. */
    if (cards == 0 || (now_ns < due && due - now_ns <= TICK_NS) ||
        !atomic_compare_exchange_strong(next, &due, now_ns + TICK_NS))
        return;
    if (!vgi_any_host_pid(vgi_region) || atomic_flag_test_and_set(&samples_taken))
        return;
    int before = vgi_hold_off_cancel();
    if (nvml_is_ready())
        for (unsigned card = 0; card < VG_MAX_CARDS; card++)
            if ((cards >> card & 1) != 0)
                sample_card(card);
    atomic_flag_clear(&samples_taken);
    vgi_let_cancel(before);
}
