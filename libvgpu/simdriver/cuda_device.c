#include <stdio.h>
#include <string.h>

#include "driver.h"

SIM_API CUresult cuDeviceGetCount(int *count) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *count = (int)sim.device_count;
    return CUDA_SUCCESS;
}

static CUresult check(const void *out, CUdevice device) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return sim_valid_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

SIM_API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    CUresult result = check(device, ordinal);
    if (result == CUDA_SUCCESS)
        *device = ordinal;
    return result;
}

SIM_API CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    CUresult result = check(name, device);
    if (result == CUDA_SUCCESS && length <= 0)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        snprintf(name, (size_t)length, "%s", sim_card_of(device)->name);
    return result;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* The sixteen bytes behind "GPU-xxxxxxxx-xxxx-...". A description's free-form UUID is hashed into them instead. */
static void uuid_bytes(const char *text, char bytes[16]) {
    unsigned digits = 0;
    memset(bytes, 0, 16);
    for (const char *c = strncmp(text, "GPU-", 4) == 0 ? text + 4 : text; *c != '\0'; c++) {
        int digit = hex_digit(*c);
        if (*c == '-')
            continue;
        if (digit < 0 || digits == 32) {
            digits = 0;
            break;
        }
        bytes[digits / 2] = (char)(bytes[digits / 2] | (digits % 2 == 0 ? digit << 4 : digit));
        digits++;
    }
    if (digits == 32)
        return;
    uint64_t hash[2] = {1469598103934665603ull, 1099511628211ull};
    for (const char *c = text; *c != '\0'; c++)
        for (int i = 0; i < 2; i++)
            hash[i] = (hash[i] ^ (unsigned char)*c) * 1099511628211ull;
    memcpy(bytes, hash, 16);
}

SIM_API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    CUresult result = check(uuid, device);
    if (result == CUDA_SUCCESS)
        uuid_bytes(sim_card_of(device)->uuid, uuid->bytes);
    return result;
}

SIM_API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    return cuDeviceGetUuid_v2(uuid, device);
}

SIM_API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    CUresult result = check(bytes, device);
    if (result == CUDA_SUCCESS)
        *bytes = sim_card_of(device)->memory_bytes - sim_card_of(device)->reserved_bytes;
    return result;
}

SIM_API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    CUresult result = check(major, device);
    if (result == CUDA_SUCCESS && minor == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        *major = (int)sim_card_of(device)->capability_major;
        *minor = (int)sim_card_of(device)->capability_minor;
    }
    return result;
}

SIM_API CUresult cuDeviceGetPCIBusId(char *busId, int length, CUdevice device) {
    CUresult result = check(busId, device);
    if (result == CUDA_SUCCESS && length < 13)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) /* CUDA writes four digits of domain where NVML writes eight */
        snprintf(busId, (size_t)length, "%04x:%02x:%02x.0", sim_card_of(device)->pci_domain,
                 sim_card_of(device)->pci_bus, sim_card_of(device)->pci_device);
    return result;
}

SIM_API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *busId) {
    unsigned domain = 0, bus = 0, slot = 0;
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (device == NULL || busId == NULL || sscanf(busId, "%x:%x:%x", &domain, &bus, &slot) != 3)
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; sim_valid_device(i); i++) {
        const struct sim_card *card = sim_card_of(i);
        if (card->pci_domain == domain && card->pci_bus == bus && card->pci_device == slot) {
            *device = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

SIM_API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    CUresult result = check(value, device);
    if (result != CUDA_SUCCESS)
        return result;
    const struct sim_card *card = sim_card_of(device);
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
        *value = 1024;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
        *value = 64;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
        *value = 2147483647;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
        *value = 65535;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
        *value = 49152;
        break;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
        *value = 65536;
        break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
        *value = 32;
        break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
        *value = (int)card->sm_megahertz * 1000;
        break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = (int)card->sm_count;
        break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        *value = (int)card->pci_bus;
        break;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
        *value = (int)card->pci_device;
        break;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
        *value = (int)card->pci_domain;
        break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
        *value = (int)card->memory_megahertz * 1000;
        break;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
        *value = 5120;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        *value = (int)card->threads_per_sm;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = (int)card->capability_major;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = (int)card->capability_minor;
        break;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
        *value = card->integrated;
        break;
    case CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED:
        *value = sim.description.cuda_version >= 11060;
        break;
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
        *value = 1;
        break;
    default: /* what the simulated card does not have */
        *value = 0;
        break;
    }
    return CUDA_SUCCESS;
}
