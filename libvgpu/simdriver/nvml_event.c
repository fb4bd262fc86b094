/* Event sets over the ring of raised events in the books. */
#include <stdlib.h>

#include "nvml.h"

struct nvmlEventSet_st {
    uint32_t seen; /* events of the ring already looked at */
    uint64_t types[SIM_MAX_CARDS];
};

#define SUPPORTED_TYPES (0x1ull | VG_NVML_EVENT_DOUBLE_BIT_ECC | VG_NVML_EVENT_XID)

SIM_API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    nvmlReturn_t result = sim_nvml_ready();
    if (result != NVML_SUCCESS)
        return result;
    if (set == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlEventSet_t made = calloc(1, sizeof *made);
    if (made == NULL)
        return NVML_ERROR_UNKNOWN;
    made->seen = atomic_load(&sim_nvml.books->event_count);
    *set = made;
    return NVML_SUCCESS;
}

SIM_API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
    nvmlReturn_t result = sim_nvml_device(device);
    if (result == NVML_SUCCESS && types == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *types = SUPPORTED_TYPES;
    return result;
}

SIM_API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    nvmlReturn_t result = sim_nvml_device(device);
    if (result != NVML_SUCCESS)
        return result;
    if (set == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if ((types & ~SUPPORTED_TYPES) != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    set->types[device->card] |= types;
    return NVML_SUCCESS;
}

static nvmlDevice_t device_of_card(uint32_t card) {
    for (unsigned i = 0; i < sim_nvml.device_count; i++)
        if (sim_nvml.devices[i].card == card)
            return &sim_nvml.devices[i];
    return NULL;
}

/* The next unseen event that the set is registered for. */
static bool take_event(nvmlEventSet_t set, nvmlEventData_t *data, uint32_t *latest) {
    bool taken = false;
    sim_books_lock(sim_nvml.books);
    *latest = atomic_load(&sim_nvml.books->event_count);
    if (*latest - set->seen > SIM_EVENTS)
        set->seen = *latest - SIM_EVENTS; /* the older ones are overwritten */
    while (set->seen != *latest && !taken) {
        const struct sim_event *event = &sim_nvml.books->events[set->seen++ % SIM_EVENTS];
        nvmlDevice_t device = device_of_card(event->card);
        if (event->card != SIM_NO_CARD && (device == NULL || (set->types[event->card] & event->type) == 0))
            continue;
        *data =
            (nvmlEventData_t){.device = device,
                              .eventType = event->type,
                              .eventData = event->data,
                              .gpuInstanceId = event->gpu_instance > 0 ? event->gpu_instance : VG_NVML_INSTANCE_NONE,
                              .computeInstanceId = VG_NVML_INSTANCE_NONE};
        taken = true;
    }
    sim_books_unlock(sim_nvml.books);
    return taken;
}

SIM_API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutMilliseconds) {
    nvmlReturn_t result = sim_nvml_ready();
    if (result != NVML_SUCCESS)
        return result;
    if (set == NULL || data == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    uint64_t deadline = sim_now_ns() + (uint64_t)timeoutMilliseconds * 1000000ull;
    uint32_t latest = 0;
    while (!take_event(set, data, &latest)) {
        uint64_t now = sim_now_ns();
        if (now >= deadline)
            return NVML_ERROR_TIMEOUT;
        sim_books_wait_event(sim_nvml.books, latest, (unsigned)((deadline - now + 999999) / 1000000));
    }
    return NVML_SUCCESS;
}

SIM_API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutMilliseconds) {
    return nvmlEventSetWait_v2(set, data, timeoutMilliseconds);
}

SIM_API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    nvmlReturn_t result = sim_nvml_ready();
    if (result == NVML_SUCCESS)
        free(set);
    return result;
}
