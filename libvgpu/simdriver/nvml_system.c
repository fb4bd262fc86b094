/* Start, end, versions, and the symbols that the simulation lacks. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nvml.h"

struct sim_nvml sim_nvml;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static nvmlReturn_t start(void) {
    char reason[512];
    unsigned cards[SIM_MAX_CARDS];
    switch (sim_description_load(&sim_nvml.description, reason, sizeof reason)) {
    case SIM_LOAD_NO_DRIVER:
        return NVML_ERROR_DRIVER_NOT_LOADED;
    case SIM_LOAD_INVALID:
        fprintf(stderr, "simulated driver: %s\n", reason);
        return NVML_ERROR_UNKNOWN;
    case SIM_LOAD_OK:
        break;
    }
    if (sim_nvml.books == NULL)
        sim_nvml.books = sim_books_open(sim_nvml.description.state_directory, reason, sizeof reason);
    if (sim_nvml.books == NULL) {
        fprintf(stderr, "simulated driver: %s\n", reason);
        return NVML_ERROR_UNKNOWN;
    }
    sim_nvml.device_count = sim_visible_to_nvml(&sim_nvml.description, cards);
    for (unsigned i = 0; i < sim_nvml.device_count; i++)
        sim_nvml.devices[i].card = cards[i];
    return NVML_SUCCESS;
}

SIM_API nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&lock);
    if (sim_nvml.references == 0)
        result = start();
    if (result == NVML_SUCCESS)
        __atomic_store_n(&sim_nvml.references, sim_nvml.references + 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return result;
}

SIM_API nvmlReturn_t nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

SIM_API nvmlReturn_t nvmlInit(void) {
    return nvmlInitWithFlags(0);
}

SIM_API nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    bool started = sim_nvml.references > 0;
    if (started)
        __atomic_store_n(&sim_nvml.references, sim_nvml.references - 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return started ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t sim_nvml_ready(void) {
    return __atomic_load_n(&sim_nvml.references, __ATOMIC_ACQUIRE) > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t sim_nvml_device(nvmlDevice_t device) {
    nvmlReturn_t result = sim_nvml_ready();
    if (result != NVML_SUCCESS)
        return result;
    if (device < sim_nvml.devices || device >= sim_nvml.devices + sim_nvml.device_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    uint64_t delay_us = sim_nvml.books->nvml_delay_us + sim_nvml_state(device)->nvml_delay_us;
    if (delay_us > 0)
        usleep((useconds_t)delay_us);
    return sim_nvml_state(device)->lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t sim_nvml_copy_text(char *out, unsigned length, const char *text) {
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, text, strlen(text) + 1);
    return NVML_SUCCESS;
}

SIM_API const char *nvmlErrorString(nvmlReturn_t result) {
    switch (result) {
    case NVML_SUCCESS:
        return "The operation was successful";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NO_PERMISSION:
        return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT:
        return "Timeout";
    case NVML_ERROR_LIBRARY_NOT_FOUND:
        return "NVML Shared Library Not Found";
    case NVML_ERROR_FUNCTION_NOT_FOUND:
        return "Function Not Found";
    case NVML_ERROR_GPU_IS_LOST:
        return "GPU is lost";
    case NVML_ERROR_IN_USE:
        return "In use by another client";
    case NVML_ERROR_MEMORY:
        return "Insufficient Memory";
    case NVML_ERROR_INSUFFICIENT_RESOURCES:
        return "Insufficient Resources";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
        return "Argument Version Mismatch";
    case NVML_ERROR_UNKNOWN:
        break;
    }
    return "Unknown Error";
}

SIM_API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    nvmlReturn_t result = sim_nvml_ready();
    return result != NVML_SUCCESS ? result : sim_nvml_copy_text(version, length, sim_nvml.description.driver_version);
}

SIM_API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    nvmlReturn_t result = sim_nvml_ready();
    return result != NVML_SUCCESS ? result : sim_nvml_copy_text(version, length, sim_nvml.description.nvml_version);
}

SIM_API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    nvmlReturn_t result = sim_nvml_ready();
    if (result == NVML_SUCCESS && version == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *version = sim_nvml.description.cuda_version;
    return result;
}

SIM_API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

SIM_API nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
    char path[64], target[1024];
    nvmlReturn_t result = sim_nvml_ready();
    if (result != NVML_SUCCESS)
        return result;
    snprintf(path, sizeof path, "/proc/%u/exe", pid);
    ssize_t size = readlink(path, target, sizeof target - 1);
    if (size <= 0)
        return NVML_ERROR_NOT_FOUND;
    target[size] = '\0';
    return sim_nvml_copy_text(name, length, target);
}

enum symbol_id {
#define NVML_HOOK(symbol, type, area)
#define NVML_CALL NVML_HOOK
#define NVML_NAME(symbol) id_##symbol,
#include "nvml.def"
#undef NVML_NAME
    symbol_count
};
_Static_assert(symbol_count <= SIM_MAX_SYMBOLS, "the books count that many symbols");

static nvmlReturn_t unsupported(unsigned symbol) {
    if (sim_nvml.books != NULL)
        atomic_fetch_add(&sim_nvml.books->unsupported_nvml[symbol], 1);
    nvmlReturn_t result = sim_nvml_ready();
    return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result;
}

#define NVML_NAME(symbol)                                                                                              \
    SIM_API nvmlReturn_t symbol(void) {                                                                                \
        return unsupported(id_##symbol);                                                                               \
    }
#include "nvml.def"
#undef NVML_HOOK
#undef NVML_CALL
#undef NVML_NAME
