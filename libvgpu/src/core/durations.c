#include "durations.h"

#define PROBES 8
#define DEFAULT_WAVE_NS 50000ull
#define RAREST 256                    /* launches from one measure to the next */
#define MEASURE_EVERY_NS 100000000ull /* of device time, where that is sooner */
#define PUT_OFF 16

#define LOAD(word) atomic_load_explicit(&(word), memory_order_relaxed)
#define STORE(word, value) atomic_store_explicit(&(word), (value), memory_order_relaxed)

static bool claim(struct vgi_duration *entry, uint64_t old, uint64_t key) {
    if (!atomic_compare_exchange_strong_explicit(&entry->key, &old, key, memory_order_relaxed, memory_order_relaxed))
        return old == key;
    STORE(entry->estimate_ns, 0);
    STORE(entry->samples, 0);
    STORE(entry->measures, 0);
    STORE(entry->launches_left, 0);
    return true;
}

struct vgi_duration *vgi_duration_place(struct vgi_durations *table, uint64_t key) {
    uint64_t home = key >> 32;
    for (unsigned i = 0; i < PROBES; i++) {
        struct vgi_duration *entry = &table->entries[(home + i) % VGI_DURATION_ENTRIES];
        uint64_t found = LOAD(entry->key);
        if (found == key || (found == 0 && claim(entry, 0, key)))
            return entry;
    }
    struct vgi_duration *entry = &table->entries[home % VGI_DURATION_ENTRIES];
    (void)claim(entry, LOAD(entry->key), key);
    return entry;
}

void vgi_duration_forget(struct vgi_durations *table, uint64_t key) {
    for (unsigned i = 0; i < PROBES; i++) {
        struct vgi_duration *entry = &table->entries[((key >> 32) + i) % VGI_DURATION_ENTRIES];
        if (LOAD(entry->key) == key) {
            STORE(entry->samples, 0);
            STORE(entry->measures, 0);
            STORE(entry->launches_left, 0);
            STORE(entry->estimate_ns, 0);
        }
    }
}

uint64_t vgi_duration_guess(uint64_t threads, uint64_t resident_threads) {
    uint64_t resident = resident_threads == 0 ? 1 : resident_threads;
    uint64_t waves = threads / resident + (threads % resident != 0);
    return (waves == 0 ? 1 : waves > 10000 ? 10000 : waves) * DEFAULT_WAVE_NS;
}

/* The mean, first of all, later of the last few. Upwards only so far at once: a kernel that the card put aside for
 * another process looks like a very long one. */
static uint64_t approach(uint64_t estimate, uint64_t seen, uint32_t samples) {
    uint64_t weight = samples < 7 ? samples + 1u : 8u;
    if (seen < estimate)
        return estimate - (estimate - seen + weight / 2) / weight;
    uint64_t up = (seen - estimate + weight / 2) / weight;
    return estimate + (up > estimate / 4 + 1 ? estimate / 4 + 1 : up);
}

static uint32_t launches_until_next(uint32_t measures, uint64_t estimate) {
    uint64_t rare = measures >= 8 ? RAREST : 1ull << measures;
    uint64_t by_time = MEASURE_EVERY_NS / (estimate == 0 ? 1 : estimate);
    return (uint32_t)(rare < by_time ? rare : by_time);
}

/* The card was done with the kernel before the host had even asked for the time: all we know is that it was short. */
static bool is_hidden(struct vgi_measure measure) {
    return measure.elapsed_ns <= measure.calls_ns + measure.calls_ns / 4;
}

/* What the kernel took at least. */
static uint64_t without_backlog(struct vgi_measure measure) {
    return measure.elapsed_ns > measure.backlog_ns ? measure.elapsed_ns - measure.backlog_ns : 0;
}

static uint64_t first_estimate(struct vgi_measure measure, uint64_t guess_ns, bool hidden) {
    uint64_t least = without_backlog(measure), likely = guess_ns < measure.elapsed_ns ? guess_ns : measure.elapsed_ns;
    return hidden ? measure.elapsed_ns / 8 : least > likely ? least : likely;
}

/* The nearest duration that agrees with the measure. */
static uint64_t nearest(struct vgi_measure measure, uint64_t estimate) {
    uint64_t least = without_backlog(measure);
    return estimate > measure.elapsed_ns ? measure.elapsed_ns : estimate < least ? least : estimate;
}

void vgi_duration_learn(struct vgi_duration *entry, struct vgi_measure measure, uint64_t guess_ns) {
    uint64_t estimate = LOAD(entry->estimate_ns);
    uint32_t samples = LOAD(entry->samples), measures = LOAD(entry->measures);
    bool hidden = is_hidden(measure), alone = !hidden && measure.backlog_ns == 0;
    uint64_t seen = alone ? measure.elapsed_ns - measure.calls_ns / 2 : nearest(measure, estimate);
    if (samples == 0) {
        estimate = alone ? seen : first_estimate(measure, guess_ns, hidden);
        samples = alone;
    } else if (!hidden) {
        estimate = approach(estimate, seen, samples);
        samples += alone && samples < UINT32_MAX;
    }
    measures += measures < UINT32_MAX;
    STORE(entry->estimate_ns, estimate == 0 ? 1 : estimate);
    STORE(entry->samples, samples);
    STORE(entry->measures, measures);
    STORE(entry->launches_left, launches_until_next(measures, estimate));
}

void vgi_duration_suppose(struct vgi_duration *entry, uint64_t ns) {
    if (LOAD(entry->estimate_ns) == 0)
        STORE(entry->estimate_ns, ns == 0 ? 1 : ns);
}

void vgi_duration_put_off(struct vgi_duration *entry) {
    STORE(entry->launches_left, PUT_OFF);
}
