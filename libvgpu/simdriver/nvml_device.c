/* What a card is. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "nvml.h"

/* NVML_* values of the brand and architecture enumerations. */
enum { BRAND_TESLA = 2, BRAND_NVIDIA = 14 };

static nvmlReturn_t put(nvmlDevice_t device, unsigned *out, unsigned value) {
    nvmlReturn_t result = sim_nvml_device(device);
    if (result == NVML_SUCCESS && out == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *out = value;
    return result;
}

/* `put` for values of the card, which may only be looked up behind a checked handle. */
#define PUT_CARD(device, out, field)                                                                                   \
    (sim_nvml_device(device) == NVML_SUCCESS ? put(device, out, (unsigned)sim_nvml_card(device)->field)                \
                                             : sim_nvml_device(device))

SIM_API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    nvmlReturn_t result = sim_nvml_ready();
    if (result == NVML_SUCCESS && count == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *count = sim_nvml.device_count;
    return result;
}

SIM_API nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) {
    return nvmlDeviceGetCount_v2(count);
}

SIM_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    nvmlReturn_t result = sim_nvml_ready();
    if (result != NVML_SUCCESS)
        return result;
    if (device == NULL || index >= sim_nvml.device_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = &sim_nvml.devices[index];
    return sim_nvml_device(*device);
}

SIM_API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static nvmlReturn_t find(nvmlDevice_t *device, const void *key,
                         bool (*matches)(const struct sim_card *, const void *)) {
    nvmlReturn_t result = sim_nvml_ready();
    if (result != NVML_SUCCESS)
        return result;
    if (device == NULL || key == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < sim_nvml.device_count; i++)
        if (matches(sim_nvml_card(&sim_nvml.devices[i]), key)) {
            *device = &sim_nvml.devices[i];
            return sim_nvml_device(*device);
        }
    return NVML_ERROR_NOT_FOUND;
}

static bool has_uuid(const struct sim_card *card, const void *uuid) {
    return strcmp(card->uuid, uuid) == 0;
}

static bool has_serial(const struct sim_card *card, const void *serial) {
    return strcmp(card->serial, serial) == 0;
}

static bool has_bus_id(const struct sim_card *card, const void *text) {
    unsigned domain = 0, bus = 0, slot = 0;
    return sscanf(text, "%x:%x:%x", &domain, &bus, &slot) == 3 && domain == card->pci_domain && bus == card->pci_bus &&
           slot == card->pci_device;
}

SIM_API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    if (uuid != NULL && device != NULL && strncmp(uuid, "MIG-", 4) == 0)
        return sim_nvml_find_mig(uuid, device);
    return find(device, uuid, has_uuid);
}

SIM_API nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device) {
    return find(device, serial, has_serial);
}

SIM_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *busId, nvmlDevice_t *device) {
    return find(device, busId, has_bus_id);
}

SIM_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *busId, nvmlDevice_t *device) {
    return find(device, busId, has_bus_id);
}

SIM_API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    if (sim_nvml_is_mig(device)) {
        char text[SIM_TEXT];
        nvmlReturn_t found = sim_nvml_mig_name(device, text);
        return found != NVML_SUCCESS ? found : sim_nvml_copy_text(name, length, text);
    }
    nvmlReturn_t result = sim_nvml_device(device);
    return result != NVML_SUCCESS ? result : sim_nvml_copy_text(name, length, sim_nvml_card(device)->name);
}

SIM_API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    if (sim_nvml_is_mig(device)) {
        char text[SIM_TEXT];
        nvmlReturn_t found = sim_nvml_mig_uuid(device, text);
        return found != NVML_SUCCESS ? found : sim_nvml_copy_text(uuid, length, text);
    }
    nvmlReturn_t result = sim_nvml_device(device);
    return result != NVML_SUCCESS ? result : sim_nvml_copy_text(uuid, length, sim_nvml_card(device)->uuid);
}

SIM_API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length) {
    nvmlReturn_t result = sim_nvml_device(device);
    return result != NVML_SUCCESS ? result : sim_nvml_copy_text(serial, length, sim_nvml_card(device)->serial);
}

SIM_API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    return put(device, index, (unsigned)(device - sim_nvml.devices));
}

SIM_API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor) {
    return PUT_CARD(device, minor, minor);
}

SIM_API nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node) {
    nvmlReturn_t result = sim_nvml_device(device);
    if (result == NVML_SUCCESS && sim_nvml_card(device)->numa_node < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    return PUT_CARD(device, node, numa_node);
}

SIM_API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int nodeSetSize, unsigned long *nodeSet,
                                                 unsigned int scope) {
    (void)scope;
    nvmlReturn_t result = sim_nvml_device(device);
    if (result != NVML_SUCCESS)
        return result;
    if (nodeSet == NULL || nodeSetSize == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    int node = sim_nvml_card(device)->numa_node;
    unsigned bits = 8 * sizeof *nodeSet;
    memset(nodeSet, 0, nodeSetSize * sizeof *nodeSet);
    if (node >= 0 && (unsigned)node / bits < nodeSetSize)
        nodeSet[(unsigned)node / bits] = 1ul << ((unsigned)node % bits);
    return NVML_SUCCESS;
}

SIM_API nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, unsigned int *brand) {
    nvmlReturn_t result = sim_nvml_device(device);
    if (result != NVML_SUCCESS)
        return result;
    return put(device, brand, strncmp(sim_nvml_card(device)->name, "Tesla", 5) == 0 ? BRAND_TESLA : BRAND_NVIDIA);
}

static unsigned architecture_of(const struct sim_card *card) {
    switch (card->capability_major) {
    case 3:
        return 2; /* Kepler */
    case 5:
        return 3; /* Maxwell */
    case 6:
        return 4; /* Pascal */
    case 7:
        return card->capability_minor < 5 ? 5 : 6; /* Volta, Turing */
    case 8:
        return card->capability_minor < 9 ? 7 : 8; /* Ampere, Ada */
    case 9:
        return 9; /* Hopper */
    case 10:
    case 12:
        return 10; /* Blackwell */
    default:
        return 0xffffffffu; /* NVML_DEVICE_ARCH_UNKNOWN */
    }
}

SIM_API nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned int *architecture) {
    nvmlReturn_t result = sim_nvml_device(device);
    return result != NVML_SUCCESS ? result : put(device, architecture, architecture_of(sim_nvml_card(device)));
}

SIM_API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    nvmlReturn_t result = sim_nvml_device(device);
    if (result == NVML_SUCCESS && (major == NULL || minor == NULL))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        *major = (int)sim_nvml_card(device)->capability_major;
        *minor = (int)sim_nvml_card(device)->capability_minor;
    }
    return result;
}

SIM_API nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *cores) {
    nvmlReturn_t result = sim_nvml_device(device);
    return result != NVML_SUCCESS ? result : put(device, cores, sim_nvml_card(device)->sm_count * 64);
}

SIM_API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    nvmlReturn_t result = sim_nvml_device(device);
    if (result == NVML_SUCCESS && pci == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    const struct sim_card *card = sim_nvml_card(device);
    memset(pci, 0, sizeof *pci);
    pci->domain = card->pci_domain;
    pci->bus = card->pci_bus;
    pci->device = card->pci_device;
    pci->pciDeviceId = 0x20b010deu;
    pci->pciSubSystemId = 0x134f10deu;
    snprintf(pci->busId, sizeof pci->busId, "%.31s", card->pci_bus_id);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", card->pci_domain & 0xffffu,
             card->pci_bus & 0xffu, card->pci_device & 0x1fu);
    return NVML_SUCCESS;
}

SIM_API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    return nvmlDeviceGetPciInfo_v3(device, pci);
}

SIM_API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    return nvmlDeviceGetPciInfo_v3(device, pci);
}

SIM_API nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t device1, nvmlDevice_t device2, int *same) {
    nvmlReturn_t result = sim_nvml_device(device1);
    if (result == NVML_SUCCESS)
        result = sim_nvml_device(device2);
    if (result == NVML_SUCCESS && same == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *same = device1 == device2;
    return result;
}

SIM_API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int *mode) {
    return put(device, mode, 0); /* default: shared */
}

SIM_API nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned int *mode) {
    return put(device, mode, 1);
}
