/* What a card counts and signals beside its load: ECC errors, and why its clocks are held down.
 *
 * ECC errors are those of the description and those since: `sim-driver ecc` adds some, and each XID that stands for an
 * uncorrectable error (48, 94, 95) one. Both of NVML's counters tell the same, since the machine never reloads its
 * driver. Clocks are held down by heat from the slowdown threshold on, and by the power limit while the card is busy
 * all the time. */
#include "nvml.h"

enum { ECC_TYPES = 2, ECC_COUNTERS = 2, BUSY_ALL_THE_TIME = 100, SLOWDOWN_THRESHOLD = 1 };

/* NVML's bits. */
#define REASON_IDLE 0x1ull
#define REASON_POWER_CAP 0x4ull
#define REASON_HARDWARE_SLOWDOWN 0x8ull
#define REASON_HARDWARE_THERMAL 0x40ull

SIM_API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int type, unsigned int counter,
                                                 unsigned long long *count) {
    nvmlReturn_t result = sim_nvml_device(device);
    if (result == NVML_SUCCESS && (count == NULL || type >= ECC_TYPES || counter >= ECC_COUNTERS))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && sim_nvml_card(device)->no_ecc)
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_SUCCESS)
        *count = sim_nvml_card(device)->ecc_errors[type] + sim_nvml_state(device)->ecc_errors[type];
    return result;
}

SIM_API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) {
    nvmlUtilization_t utilisation = {0};
    unsigned celsius = 0, threshold = 0;
    nvmlReturn_t result = sim_nvml_device(device);
    if (result == NVML_SUCCESS && reasons == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        result = nvmlDeviceGetTemperature(device, 0, &celsius);
    if (result == NVML_SUCCESS)
        result = nvmlDeviceGetTemperatureThreshold(device, SLOWDOWN_THRESHOLD, &threshold);
    if (result != NVML_SUCCESS)
        return result;
    *reasons = celsius >= threshold ? REASON_HARDWARE_SLOWDOWN | REASON_HARDWARE_THERMAL : 0;
    if (nvmlDeviceGetUtilizationRates(device, &utilisation) != NVML_SUCCESS)
        return NVML_SUCCESS; /* of a card in MIG mode the load is not told */
    if (utilisation.gpu == 0)
        *reasons |= REASON_IDLE;
    else if (utilisation.gpu == BUSY_ALL_THE_TIME)
        *reasons |= REASON_POWER_CAP;
    return NVML_SUCCESS;
}

SIM_API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksThrottleReasons(device, reasons);
}
