/* State of the simulated libnvidia-ml in one process. */
#ifndef SIM_NVML_H
#define SIM_NVML_H

#include <stdbool.h>

#include "books.h"
#include "description.h"
#include "vgpu/abi/nvml_fn.h"

#define SIM_API __attribute__((visibility("default")))

/* Every exported function must have the type its row in hooks/nvml.def names. */
#define NVML_HOOK(symbol, type, area) extern __typeof__(*(type)0) symbol;
#define NVML_CALL NVML_HOOK
#define NVML_NAME(symbol) extern nvmlReturn_t symbol(void);
#include "nvml.def"
#undef NVML_HOOK
#undef NVML_CALL
#undef NVML_NAME

struct nvmlDevice_st {
    unsigned card; /* of the description */
};

struct sim_nvml {
    unsigned references; /* nvmlInit calls not yet shut down */
    struct sim_description description;
    struct sim_books *books;
    unsigned device_count;
    struct nvmlDevice_st devices[SIM_MAX_CARDS];
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

nvmlReturn_t sim_nvml_copy_text(char *out, unsigned length, const char *text);

#endif
