#include "usage.h"

#include <string.h>

#include "account.h"
#include "vgpu/prim.h"

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

/* Our pid as the driver lists us, found because nobody else was new when our first context came; above it our own pid,
 * so that a fork's child does not take it for its own. */
static _Atomic uint64_t found_pid;

static void remember_pid(unsigned listed) {
    atomic_store_explicit(&found_pid, (uint64_t)vgi_own_pid() << 32 | listed, memory_order_relaxed);
}

/* NVML tells the host's process ids; where the slot knows ours there, that is what we look for. */
static bool is_own(unsigned pid) {
    int32_t host_pid = atomic_load_explicit(&vgi_region->slots[vgi_process->slot].host_pid, memory_order_relaxed);
    uint64_t found = atomic_load_explicit(&found_pid, memory_order_relaxed);
    if (host_pid > 0)
        return pid == (unsigned)host_pid;
    return pid == (unsigned)vgi_own_pid() || ((uint64_t)vgi_own_pid() << 32 | pid) == found;
}

static bool is_new(unsigned pid, const struct vgi_usage *before) {
    for (unsigned i = 0; i < before->pid_count; i++)
        if (before->pids[i] == pid)
            return false;
    return true;
}

static void read_list(nvmlDevice_t device, const struct vgi_usage *before, struct vgi_usage *usage) {
    nvmlProcessInfo_t processes[VGI_MOST_LISTED];
    unsigned count = VGI_MOST_LISTED, newcomer = 0;
    nvmlReturn_t result = vgi_nvml.nvmlDeviceGetComputeRunningProcesses_v3 != NULL
                              ? vgi_nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &count, processes)
                              : VGI_NVML(nvmlDeviceGetComputeRunningProcesses_v2, device, &count, processes);
    usage->has_list = result == NVML_SUCCESS;
    for (unsigned i = 0; usage->has_list && i < count && i < VGI_MOST_LISTED; i++) {
        uint64_t used = processes[i].usedGpuMemory;
        usage->pids[usage->pid_count++] = processes[i].pid;
        if (used == NOT_AVAILABLE)
            continue;
        if (is_own(processes[i].pid)) {
            usage->listed = true;
            usage->process_bytes += used;
        } else if (before != NULL && before->has_list && is_new(processes[i].pid, before)) {
            newcomer = processes[i].pid;
            usage->newcomer_bytes =
                usage->newcomers++ == 0 || used < usage->newcomer_bytes ? used : usage->newcomer_bytes;
        }
    }
    if (before != NULL && !before->listed && !usage->listed && usage->newcomers == 1)
        remember_pid(newcomer);
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

static void read_driver(unsigned card, const struct vgi_usage *before, struct vgi_usage *usage) {
    char uuid[VG_UUID_BYTES];
    nvmlDevice_t device = NULL;
    nvmlMemory_t memory;
    memcpy(uuid, vgi_region->uuids[card], sizeof uuid); /* tenants can write there: it may be no text */
    uuid[sizeof uuid - 1] = '\0';
    if (!start_nvml() || VGI_NVML(nvmlDeviceGetHandleByUUID, uuid, &device) != NVML_SUCCESS)
        return;
    read_list(device, before, usage);
    usage->has_card = VGI_NVML(nvmlDeviceGetMemoryInfo, device, &memory) == NVML_SUCCESS;
    usage->card_bytes = usage->has_card ? memory.used : 0;
}

void vgi_read_usage(unsigned card, const struct vgi_usage *before, struct vgi_usage *usage) {
    uint64_t counted = counted_of(card);
    bool quiet = is_quiet();
    *usage = (struct vgi_usage){.counted_first = counted};
    int cancel_state = vgi_hold_off_cancel();
    read_driver(card, before, usage);
    vgi_let_cancel(cancel_state);
    usage->counted_most = counted_of(card) > counted ? counted_of(card) : counted;
    usage->quiet = quiet && is_quiet() && usage->counted_most == counted;
}

bool vgi_usage_growth(const struct vgi_usage *before, const struct vgi_usage *after, uint64_t *bytes, uint64_t *met) {
    bool by_process = before->has_list && after->listed;
    /* Who has no context on a card may hold memory of it, and is not listed for that. */
    uint64_t listed = before->listed ? before->process_bytes : before->counted_first;
    /* Who was not listed and whose pid is not known is one of those who are new: the least of them is counted. */
    bool by_newcomer = !by_process && !before->listed && after->newcomers > 0;
    uint64_t was = by_process || by_newcomer ? listed : before->card_bytes;
    uint64_t is = by_process ? after->process_bytes : by_newcomer ? after->newcomer_bytes : after->card_bytes;
    if ((!by_process && !by_newcomer && !(before->has_card && after->has_card)) ||
        (before->counted_first != 0 && !(before->quiet && after->quiet)))
        return false;
    uint64_t grown = is > was ? is - was : 0;
    uint64_t counted = after->counted_most > before->counted_first ? after->counted_most - before->counted_first : 0;
    grown = grown > counted ? grown - counted : 0;
    *met = grown < before->expected ? grown : before->expected;
    grown -= *met;
    *bytes = grown < MOST_GROWTH ? grown : MOST_GROWTH;
    return true;
}
