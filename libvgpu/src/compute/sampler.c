#include "compute/sampler.h"

#include <stdatomic.h>

#include "account/account.h"
#include "core/load.h"
#include "core/region.h"
#include "core/throttle.h"
#include "vgpu/prim.h"

#define TICK_NS 100000000ull
#define WINDOW_NS 1000000000ull /* of a sample */
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

static void correct(unsigned card, unsigned busy_percent, uint64_t now_ns) {
    struct vg_card_compute *compute = &vg_extension_of(vgi_region)->compute[card];
    unsigned percent = vgi_cores_limit(card);
    if (percent >= 100)
        return;
    bool short_of = vgi_bucket_was_short(compute, now_ns, WINDOW_NS);
    uint64_t scale = vgi_scale_step(vgi_scale(compute), percent, busy_percent, short_of);
    atomic_store_explicit(&compute->scale, scale, memory_order_relaxed);
}

static void sample_card(unsigned card, uint64_t now_ns) {
    unsigned count = read_samples(card);
    struct vgi_load load = vgi_load_of(vgi_region, card, samples, count);
    if (!load.known)
        return; /* what was known stays: no sample is not "idle" */
    atomic_store_explicit(&vg_extension_of(vgi_region)->compute[card].busy_percent, load.busy_percent,
                          memory_order_relaxed);
    if (load.complete)
        correct(card, load.busy_percent, now_ns);
}

static bool is_used(unsigned card) {
    for (int device = 0; device < VGI_MAX_DEVICES && vgi_card_of_device[device] >= 0; device++)
        if (vgi_card_of_device[device] == (int)card)
            return true;
    return false;
}

void vgi_sampler_tick(uint64_t now_ns) {
    _Atomic uint64_t *next = &vg_extension_of(vgi_region)->sampler_until_ns;
    uint64_t due = atomic_load_explicit(next, memory_order_relaxed);
    /* A moment further ahead than one tick is none that we wrote. Who dies over it is followed by another at the next
     * tick. */
    if ((now_ns < due && due - now_ns <= TICK_NS) || !atomic_compare_exchange_strong(next, &due, now_ns + TICK_NS))
        return;
    if (!vgi_any_host_pid(vgi_region) || atomic_flag_test_and_set(&samples_taken))
        return;
    if (nvml_is_ready())
        for (unsigned card = 0; card < VG_MAX_CARDS; card++)
            if (is_used(card))
                sample_card(card, now_ns);
    atomic_flag_clear(&samples_taken);
}
