/* What a card is doing: memory, processes, utilisation, sensors. */
#include <string.h>
#include <time.h>

#include "nvml.h"
#include "timeline.h"

static nvmlReturn_t read_used(nvmlDevice_t device, uint64_t *used) {
    nvmlReturn_t result = sim_nvml_device(device);
    if (result != NVML_SUCCESS)
        return result;
    sim_books_lock(sim_nvml.books);
    sim_books_reclaim(sim_nvml.books);
    *used = sim_nvml_state(device)->used_bytes;
    sim_books_unlock(sim_nvml.books);
    return NVML_SUCCESS;
}

SIM_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    uint64_t used = 0;
    if (sim_nvml_is_mig(device))
        return sim_nvml_mig_memory(device, memory);
    nvmlReturn_t result = read_used(device, &used);
    if (result == NVML_SUCCESS && memory == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    const struct sim_card *card = sim_nvml_card(device);
    memory->total = card->memory_bytes;
    memory->used = used + card->reserved_bytes; /* v1 has no field of its own for it */
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

SIM_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    uint64_t used = 0;
    nvmlReturn_t result = read_used(device, &used);
    if (result == NVML_SUCCESS && memory == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && memory->version != VG_NVML_MEMORY_V2)
        result = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (result != NVML_SUCCESS)
        return result;
    const struct sim_card *card = sim_nvml_card(device);
    memory->total = card->memory_bytes;
    memory->reserved = card->reserved_bytes;
    memory->used = used;
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
}

SIM_API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    nvmlReturn_t result = sim_nvml_device(device);
    if (result == NVML_SUCCESS && memory == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *memory = (nvmlBAR1Memory_t){.bar1Total = 256ull << 20, .bar1Free = 255ull << 20, .bar1Used = 1ull << 20};
    return result;
}

/* Percent of the last whole second in which the process kept the card busy. */
static unsigned percent_busy(const struct sim_process_card *card, uint64_t now_ns) {
    uint32_t current = (uint32_t)(now_ns / SIM_TICK_NS);
    uint64_t busy_ns = 0;
    for (unsigned i = 0; i < SIM_TICKS; i++) {
        uint32_t age = current - card->ticks[i].number;
        if (age >= 1 && age <= SIM_UTILISATION_TICKS)
            busy_ns += card->ticks[i].busy_ns;
    }
    uint64_t percent =
        (busy_ns * 100 + SIM_UTILISATION_TICKS * SIM_TICK_NS / 2) / (SIM_UTILISATION_TICKS * SIM_TICK_NS);
    return percent > 100 ? 100 : (unsigned)percent;
}

SIM_API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    nvmlReturn_t result = sim_nvml_device(device);
    if (result == NVML_SUCCESS && utilization == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && sim_nvml_has_mig_on(device))
        result = NVML_ERROR_NOT_SUPPORTED; /* a driver does not tell it of a card in MIG mode */
    if (result != NVML_SUCCESS)
        return result;
    uint64_t now = sim_now_ns();
    unsigned sum = 0;
    sim_books_lock(sim_nvml.books);
    sim_timeline_advance(sim_nvml.books, device->card, now);
    /* A process that ended kept the card busy all the same, but its slot goes with it: what is left is what is seen. */
    for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++)
        if (sim_nvml.books->processes[i].in_use)
            sum += percent_busy(&sim_nvml.books->processes[i].cards[device->card], now);
    sim_books_unlock(sim_nvml.books);
    *utilization = (nvmlUtilization_t){.gpu = sum > 100 ? 100 : sum, .memory = 0};
    return NVML_SUCCESS;
}

/* Runs over the living processes that hold a context on the card and can be told by a pid. */
static unsigned collect(nvmlDevice_t device, struct sim_process *found[SIM_MAX_PROCESSES]) {
    unsigned count = 0;
    sim_books_reclaim(sim_nvml.books);
    for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++) {
        struct sim_process *process = &sim_nvml.books->processes[i];
        if (process->in_use && process->cards[device->card].contexts > 0 && sim_books_pid(sim_nvml.books, process) != 0)
            found[count++] = process;
    }
    return count;
}

static uint64_t now_realtime_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000ull + (uint64_t)now.tv_nsec / 1000ull;
}

SIM_API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                                     unsigned int *count, unsigned long long lastSeen) {
    struct sim_process *found[SIM_MAX_PROCESSES];
    nvmlReturn_t result = sim_nvml_device(device);
    if (result == NVML_SUCCESS && count == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    uint64_t stamp = now_realtime_us(), now = sim_now_ns();
    if (lastSeen >= stamp)
        return NVML_ERROR_NOT_FOUND;
    sim_books_lock(sim_nvml.books);
    sim_timeline_advance(sim_nvml.books, device->card, now);
    unsigned needed = collect(device, found);
    if (needed == 0)
        result = NVML_ERROR_NOT_FOUND;
    else if (samples == NULL || *count < needed)
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; result == NVML_SUCCESS && i < needed; i++)
        samples[i] = (nvmlProcessUtilizationSample_t){.pid = (unsigned)sim_books_pid(sim_nvml.books, found[i]),
                                                      .timeStamp = stamp,
                                                      .smUtil = percent_busy(&found[i]->cards[device->card], now)};
    sim_books_unlock(sim_nvml.books);
    *count = needed;
    return result;
}

static nvmlReturn_t list_processes(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *v1,
                                   nvmlProcessInfo_v2_t *v2) {
    struct sim_process *found[SIM_MAX_PROCESSES];
    nvmlReturn_t result = sim_nvml_device(device);
    if (result == NVML_SUCCESS && count == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    sim_books_lock(sim_nvml.books);
    unsigned needed = collect(device, found);
    if (*count < needed || (v1 == NULL && v2 == NULL && needed > 0))
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; result == NVML_SUCCESS && i < needed; i++) {
        unsigned pid = (unsigned)sim_books_pid(sim_nvml.books, found[i]);
        uint64_t used = found[i]->cards[device->card].used_bytes;
        if (v1 != NULL)
            v1[i] = (nvmlProcessInfo_v1_t){.pid = pid, .usedGpuMemory = used};
        else
            v2[i] = (nvmlProcessInfo_v2_t){.pid = pid,
                                           .usedGpuMemory = used,
                                           .gpuInstanceId = VG_NVML_INSTANCE_NONE,
                                           .computeInstanceId = VG_NVML_INSTANCE_NONE};
    }
    sim_books_unlock(sim_nvml.books);
    *count = needed;
    return result;
}

SIM_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                          nvmlProcessInfo_v1_t *infos) {
    return list_processes(device, count, infos, NULL);
}

SIM_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                             nvmlProcessInfo_v2_t *infos) {
    return list_processes(device, count, NULL, infos);
}

SIM_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                             nvmlProcessInfo_t *infos) {
    return list_processes(device, count, NULL, infos);
}

/* The simulated machine draws nothing and runs no MPS. */
static nvmlReturn_t list_none(nvmlDevice_t device, unsigned *count) {
    nvmlReturn_t result = sim_nvml_device(device);
    if (result == NVML_SUCCESS && count == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *count = 0;
    return result;
}

#define NO_PROCESSES(symbol, type)                                                                                     \
    SIM_API nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *count, type *infos) {                               \
        (void)infos;                                                                                                   \
        return list_none(device, count);                                                                               \
    }
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

static nvmlReturn_t put(nvmlDevice_t device, unsigned *out, unsigned value) {
    nvmlReturn_t result = sim_nvml_device(device);
    if (result == NVML_SUCCESS && out == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *out = value;
    return result;
}

static unsigned busy_percent(nvmlDevice_t device) {
    nvmlUtilization_t utilization = {0};
    return nvmlDeviceGetUtilizationRates(device, &utilization) == NVML_SUCCESS ? utilization.gpu : 0;
}

SIM_API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius) {
    nvmlReturn_t result = sim_nvml_device(device);
    if (result != NVML_SUCCESS)
        return result;
    if (sensor != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    int injected = sim_nvml_state(device)->temperature_celsius;
    return put(device, celsius, injected >= 0 ? (unsigned)injected : sim_nvml_card(device)->temperature_celsius);
}

SIM_API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned int threshold,
                                                       unsigned int *celsius) {
    return put(device, celsius, threshold == 0 ? 92 : 89); /* shutdown, slowdown */
}

/* Between idle and the limit, in proportion to the load. */
SIM_API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts) {
    nvmlReturn_t result = sim_nvml_device(device);
    if (result != NVML_SUCCESS)
        return result;
    const struct sim_card *card = sim_nvml_card(device);
    unsigned span = card->limit_milliwatts > card->idle_milliwatts ? card->limit_milliwatts - card->idle_milliwatts : 0;
    return put(device, milliwatts, card->idle_milliwatts + span / 100 * busy_percent(device));
}

SIM_API nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *milliwatts) {
    nvmlReturn_t result = sim_nvml_device(device);
    return result != NVML_SUCCESS ? result : put(device, milliwatts, sim_nvml_card(device)->limit_milliwatts);
}

SIM_API nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatts) {
    return nvmlDeviceGetPowerManagementLimit(device, milliwatts);
}

SIM_API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *megahertz) {
    nvmlReturn_t result = sim_nvml_device(device);
    if (result != NVML_SUCCESS)
        return result;
    if (type > 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    const struct sim_card *card = sim_nvml_card(device);
    return put(device, megahertz, type == 2 ? card->memory_megahertz : card->sm_megahertz);
}

SIM_API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *megahertz) {
    return nvmlDeviceGetClockInfo(device, type, megahertz);
}

SIM_API nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned int *state) {
    return put(device, state, 0);
}
