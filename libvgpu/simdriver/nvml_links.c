/* How cards are connected: PCIe and NVLink. */
#include <stdio.h>
#include <string.h>

#include "nvml.h"

enum { REMOTE_GPU = 0, REMOTE_SWITCH = 2 }; /* nvmlIntNvLinkDeviceType_t */

SIM_API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
                                                         unsigned int *level) {
    nvmlReturn_t result = sim_nvml_device(device1);
    if (result == NVML_SUCCESS)
        result = sim_nvml_device(device2);
    if (result == NVML_SUCCESS && level == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    int described = sim_nvml.description.links.ancestors[device1->card][device2->card];
    bool same_node = sim_nvml_card(device1)->numa_node == sim_nvml_card(device2)->numa_node;
    if (device1 == device2)
        *level = SIM_ANCESTOR_INTERNAL;
    else if (described >= 0)
        *level = (unsigned)described;
    else
        *level = same_node ? SIM_ANCESTOR_NODE : SIM_ANCESTOR_SYSTEM;
    return NVML_SUCCESS;
}

/* Whether the card has that link. */
static nvmlReturn_t find_link(nvmlDevice_t device, unsigned link, const void *out) {
    nvmlReturn_t result = sim_nvml_device(device);
    if (result != NVML_SUCCESS)
        return result;
    unsigned count = sim_links_of(&sim_nvml.description.links, device->card);
    if (count == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    return out == NULL || link >= count ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

SIM_API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *isActive) {
    nvmlReturn_t result = find_link(device, link, isActive);
    if (result == NVML_SUCCESS)
        *isActive = 1;
    return result;
}

SIM_API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, unsigned int *type) {
    nvmlReturn_t result = find_link(device, link, type);
    if (result == NVML_SUCCESS)
        *type = sim_links_peer(&sim_nvml.description.links, device->card, link) < SIM_LINKED_CARDS ? REMOTE_GPU
                                                                                                   : REMOTE_SWITCH;
    return result;
}

SIM_API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci) {
    nvmlReturn_t result = find_link(device, link, pci);
    if (result != NVML_SUCCESS)
        return result;
    unsigned peer = sim_links_peer(&sim_nvml.description.links, device->card, link);
    memset(pci, 0, sizeof *pci);
    if (peer == SIM_LINKED_CARDS) {
        snprintf(pci->busId, sizeof pci->busId, "00000000:F0:00.0");
        return NVML_SUCCESS;
    }
    const struct sim_card *card = &sim_nvml.description.cards[peer];
    pci->domain = card->pci_domain;
    pci->bus = card->pci_bus;
    pci->device = card->pci_device;
    snprintf(pci->busId, sizeof pci->busId, "%.31s", card->pci_bus_id);
    return NVML_SUCCESS;
}
