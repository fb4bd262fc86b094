#include "usage.h"

#include <string.h>

#include "account.h"
#include "vgpu/prim.h"

#define MOST_PROCESSES 256
#define MOST_GROWTH (2ull << 30)
#define NOT_AVAILABLE UINT64_MAX /* NVML's word where a driver does not account by process */

/* NVML is started once a process and stays: starting costs more than all we ask it. */
static bool start_nvml(void) {
    static _Atomic int32_t started_pid;
    int32_t pid = vgi_own_pid();
    if (!vgi_bind_nvml())
        return false;
    if (atomic_load_explicit(&started_pid, memory_order_acquire) == pid)
        return true;
    if (VGI_NVML(nvmlInit_v2) != NVML_SUCCESS)
        return false;
    atomic_store_explicit(&started_pid, pid, memory_order_release);
    return true;
}

/* NVML tells the host's process ids; where the slot knows ours there, that is what we look for. */
static bool is_own(unsigned pid) {
    int32_t host_pid = atomic_load_explicit(&vgi_region->slots[vgi_process->slot].host_pid, memory_order_relaxed);
    return pid == (unsigned)(host_pid > 0 ? host_pid : vgi_own_pid());
}

static void read_list(nvmlDevice_t device, struct vgi_usage *usage) {
    nvmlProcessInfo_t processes[MOST_PROCESSES];
    unsigned count = MOST_PROCESSES;
    nvmlReturn_t result = vgi_nvml.nvmlDeviceGetComputeRunningProcesses_v3 != NULL
                              ? vgi_nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &count, processes)
                              : VGI_NVML(nvmlDeviceGetComputeRunningProcesses_v2, device, &count, processes);
    usage->has_list = result == NVML_SUCCESS;
    for (unsigned i = 0; usage->has_list && i < count && i < MOST_PROCESSES; i++)
        if (is_own(processes[i].pid) && processes[i].usedGpuMemory != NOT_AVAILABLE) {
            usage->listed = true;
            usage->process_bytes += processes[i].usedGpuMemory;
        }
}

static uint64_t counted_of(unsigned card) {
    return atomic_load_explicit(&vgi_region->slots[vgi_process->slot].used[card].total, memory_order_relaxed);
}

/* Counted is before the driver's call, entered in a table or settled with its pool after it; the other way round with
 * frees. */
static bool is_quiet(void) {
    uint64_t data = 0;
    for (unsigned card = 0; card < VG_MAX_CARDS; card++)
        data += atomic_load_explicit(&vgi_region->slots[vgi_process->slot].used[card].data, memory_order_relaxed);
    return data == vgi_map_bytes(&vgi_allocations) + vgi_handle_bytes() + vgi_pool_bytes();
}

static void read_driver(unsigned card, struct vgi_usage *usage) {
    char uuid[VG_UUID_BYTES];
    nvmlDevice_t device = NULL;
    nvmlMemory_t memory;
    memcpy(uuid, vgi_region->uuids[card], sizeof uuid); /* tenants can write there: it may be no text */
    uuid[sizeof uuid - 1] = '\0';
    if (!start_nvml() || VGI_NVML(nvmlDeviceGetHandleByUUID, uuid, &device) != NVML_SUCCESS)
        return;
    read_list(device, usage);
    usage->has_card = VGI_NVML(nvmlDeviceGetMemoryInfo, device, &memory) == NVML_SUCCESS;
    usage->card_bytes = usage->has_card ? memory.used : 0;
}

void vgi_read_usage(unsigned card, struct vgi_usage *usage) {
    uint64_t counted = counted_of(card);
    bool quiet = is_quiet();
    *usage = (struct vgi_usage){.counted_first = counted};
    read_driver(card, usage);
    usage->counted_most = counted_of(card) > counted ? counted_of(card) : counted;
    usage->quiet = quiet && is_quiet() && usage->counted_most == counted;
}

bool vgi_usage_growth(const struct vgi_usage *before, const struct vgi_usage *after, uint64_t *bytes) {
    bool by_process = before->has_list && after->listed;
    /* Who has no context on a card may hold memory of it, and is not listed for that. */
    uint64_t listed = before->listed ? before->process_bytes : before->counted_first;
    uint64_t was = by_process ? listed : before->card_bytes;
    uint64_t is = by_process ? after->process_bytes : after->card_bytes;
    if ((!by_process && !(before->has_card && after->has_card)) ||
        (before->counted_first != 0 && !(before->quiet && after->quiet)))
        return false;
    uint64_t grown = is > was ? is - was : 0;
    uint64_t counted = after->counted_most > before->counted_first ? after->counted_most - before->counted_first : 0;
    grown = grown > counted ? grown - counted : 0;
    *bytes = grown < MOST_GROWTH ? grown : MOST_GROWTH;
    return true;
}
