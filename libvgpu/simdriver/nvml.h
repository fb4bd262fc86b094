/* State of the simulated libnvidia-ml in one process. */
#ifndef SIM_NVML_H
#define SIM_NVML_H

#include <stdbool.h>

#include "books.h"
#include "description.h"
#include "vgpu/abi/nvml_fn.h"

/* Marks the function behind an exported name, which is entry.h's. */
#define SIM_API
#define SIM_BODY(symbol) __asm__("sim_body_" #symbol)

/* Every exported function must have the type its row in hooks/nvml.def names. */
#define NVML_HOOK(symbol, type, area) extern __typeof__(*(type)0) symbol SIM_BODY(symbol);
#define NVML_CALL NVML_HOOK
#define NVML_NAME(symbol) extern nvmlReturn_t symbol(void) SIM_BODY(symbol);
#include "nvml.def"
#undef NVML_HOOK
#undef NVML_CALL
#undef NVML_NAME

struct nvmlDevice_st {
    unsigned card; /* of the description */
};

/* One slot of a card: its GPU instance, that one's compute instance, and the MIG device they make. */
struct sim_mig_slot {
    unsigned device; /* index into `devices` */
    unsigned slot;
};
struct nvmlGpuInstance_st {
    struct sim_mig_slot at;
};
struct nvmlComputeInstance_st {
    struct sim_mig_slot at;
};

struct sim_nvml {
    unsigned references; /* nvmlInit calls not yet shut down */
    struct sim_description description;
    struct sim_books *books;
    unsigned device_count;
    struct nvmlDevice_st devices[SIM_MAX_CARDS];
    struct nvmlDevice_st mig_devices[SIM_MAX_CARDS][SIM_MAX_INSTANCES]; /* by device and slot */
    struct nvmlGpuInstance_st gpu_instances[SIM_MAX_CARDS][SIM_MAX_INSTANCES];
    struct nvmlComputeInstance_st compute_instances[SIM_MAX_CARDS][SIM_MAX_INSTANCES];
};

extern struct sim_nvml sim_nvml;

/* NVML_SUCCESS, or why no call can be served. */
nvmlReturn_t sim_nvml_ready(void);

/* Also checks the handle, and that the card has not fallen off the bus. Waits the injected delay. */
nvmlReturn_t sim_nvml_device(nvmlDevice_t device);

static inline const struct sim_card *sim_nvml_card(nvmlDevice_t device) {
    return &sim_nvml.description.cards[device->card];
}

static inline struct sim_card_state *sim_nvml_state(nvmlDevice_t device) {
    return &sim_nvml.books->cards[device->card];
}

/* Whether a handle is a MIG device's, whether or not there is one at the moment. */
bool sim_nvml_is_mig(nvmlDevice_t device);

/* Whether a card's MIG mode is on, behind a checked handle. */
bool sim_nvml_has_mig_on(nvmlDevice_t device);

/* A MIG device's memory, none of it used: CUDA sees no MIG devices. And its name, the card's with the profile. */
nvmlReturn_t sim_nvml_mig_memory(nvmlDevice_t device, nvmlMemory_t *memory);
nvmlReturn_t sim_nvml_mig_name(nvmlDevice_t device, char out[SIM_TEXT]);

/* The UUID of the MIG device behind a handle; NVML_ERROR_NOT_FOUND where there is none any more. */
nvmlReturn_t sim_nvml_mig_uuid(nvmlDevice_t device, char out[SIM_TEXT]);

/* The MIG device of a UUID. */
nvmlReturn_t sim_nvml_find_mig(const char *uuid, nvmlDevice_t *device);

nvmlReturn_t sim_nvml_copy_text(char *out, unsigned length, const char *text);

#endif
