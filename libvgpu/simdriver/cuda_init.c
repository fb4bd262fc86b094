/* cuInit, versions, error texts, and the process's link to the books. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

struct sim_driver sim = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool forked_after_init;

static void after_fork_in_child(void) {
    /* As the real driver: a child of an initialised parent cannot use CUDA; its parent's slot stays the parent's. */
    forked_after_init = forked_after_init || sim.initialised;
    sim.initialised = false;
    sim.process = NULL;
    pthread_mutex_init(&sim.lock, NULL);
}

__attribute__((constructor)) static void register_fork_handler(void) {
    pthread_atfork(NULL, NULL, after_fork_in_child);
}

/* A card that has fallen off the bus is not there for who starts now. */
static void leave_out_lost_cards(void) {
    unsigned kept = 0;
    for (unsigned i = 0; i < sim.device_count; i++)
        if (!sim.books->cards[sim.cards[i]].lost)
            sim.cards[kept++] = sim.cards[i];
    sim.device_count = kept;
}

static CUresult start(void) {
    char reason[512];
    switch (sim_description_load(&sim.description, reason, sizeof reason)) {
    case SIM_LOAD_NO_DRIVER:
        return CUDA_ERROR_NO_DEVICE;
    case SIM_LOAD_INVALID:
        fprintf(stderr, "simulated driver: %s\n", reason);
        return CUDA_ERROR_UNKNOWN;
    case SIM_LOAD_OK:
        break;
    }
    sim.device_count = sim_visible_to_cuda(&sim.description, sim.cards);
    if (sim.device_count == 0)
        return CUDA_ERROR_NO_DEVICE;
    if (sim.books == NULL)
        sim.books = sim_books_open(sim.description.state_directory, reason, sizeof reason);
    if (sim.books == NULL) {
        fprintf(stderr, "simulated driver: %s\n", reason);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    leave_out_lost_cards();
    if (sim.device_count == 0)
        return CUDA_ERROR_NO_DEVICE;
    sim.process = sim_books_enter(sim.books);
    if (sim.process == NULL) {
        fprintf(stderr, "simulated driver: more than %d processes\n", SIM_MAX_PROCESSES);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    return CUDA_SUCCESS;
}

SIM_API CUresult cuInit(unsigned int flags) {
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = forked_after_init ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
    pthread_mutex_lock(&sim.lock);
    if (result == CUDA_SUCCESS && !sim.initialised) {
        result = start();
        __atomic_store_n(&sim.initialised, result == CUDA_SUCCESS, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

CUresult sim_ready(void) {
    return __atomic_load_n(&sim.initialised, __ATOMIC_ACQUIRE) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

SIM_API CUresult cuDriverGetVersion(int *driverVersion) {
    char reason[512];
    if (driverVersion == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_description *description = malloc(sizeof *description);
    if (description == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* Allowed before cuInit. */
    enum sim_load loaded = sim_description_load(description, reason, sizeof reason);
    *driverVersion = loaded == SIM_LOAD_OK ? description->cuda_version : 0;
    free(description);
    return CUDA_SUCCESS;
}

struct error_text {
    CUresult code;
    const char *name;
    const char *text;
};

static const struct error_text error_texts[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE", "device busy or unavailable"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {CUDA_ERROR_NVLINK_UNCORRECTABLE, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable NVLink error detected"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static const struct error_text *find_error(CUresult code) {
    for (size_t i = 0; i < sizeof error_texts / sizeof error_texts[0]; i++)
        if (error_texts[i].code == code)
            return &error_texts[i];
    return NULL;
}

SIM_API CUresult cuGetErrorString(CUresult error, const char **text) {
    const struct error_text *found = find_error(error);
    if (text == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *text = found == NULL ? NULL : found->text;
    return found == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SIM_API CUresult cuGetErrorName(CUresult error, const char **text) {
    const struct error_text *found = find_error(error);
    if (text == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *text = found == NULL ? NULL : found->name;
    return found == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
