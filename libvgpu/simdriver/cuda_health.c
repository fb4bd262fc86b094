/* Cards that fail under running processes, and which cards reach which. */
#include "driver.h"

/* Errors that the card had had when this process first used it; what comes later hits it. */
static uint32_t errors_before[SIM_MAX_CARDS];
static bool in_use[SIM_MAX_CARDS];

void sim_card_is_used(int device) {
    unsigned card = sim.cards[device];
    if (in_use[card])
        return;
    errors_before[card] = __atomic_load_n(&sim_state_of(device)->fatal_errors, __ATOMIC_ACQUIRE);
    in_use[card] = true;
}

/* "The process must be terminated and relaunched": what hit it once is the answer for good (CUDA driver API, CUresult).
 */
CUresult sim_card_fault(int device) {
    const struct sim_card_state *state = sim_state_of(device);
    unsigned card = sim.cards[device];
    if (__atomic_load_n(&state->lost, __ATOMIC_RELAXED))
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (in_use[card] && __atomic_load_n(&state->fatal_errors, __ATOMIC_ACQUIRE) != errors_before[card])
        return (CUresult)state->fatal_code;
    return CUDA_SUCCESS;
}

static bool by_nvlink(unsigned from, unsigned to) {
    const struct sim_links *links = &sim.description.links;
    return links->nvlinks[from][to] > 0 || (links->switch_links[from] > 0 && links->switch_links[to] > 0);
}

/* Over NVLink, or below one host bridge; CUDA does not reach a peer across the CPUs' interconnect. */
static bool reaches(int device, int peer) {
    unsigned from = sim.cards[device], to = sim.cards[peer];
    int ancestor = sim.description.links.ancestors[from][to];
    return by_nvlink(from, to) || (ancestor >= 0 && ancestor <= SIM_ANCESTOR_HOST_BRIDGE);
}

SIM_API CUresult cuDeviceCanAccessPeer(int *canAccess, CUdevice device, CUdevice peer) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (!sim_valid_device(device) || !sim_valid_device(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    if (canAccess == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *canAccess = device != peer && reaches(device, peer);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (!sim_valid_device(from) || !sim_valid_device(to) || from == to)
        return CUDA_ERROR_INVALID_DEVICE;
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    bool nvlink = by_nvlink(sim.cards[from], sim.cards[to]);
    switch (attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK: /* 0 is the fastest way */
        *value = !nvlink;
        return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
        *value = reaches(from, to);
        return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
        *value = nvlink;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}
