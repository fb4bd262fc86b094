/* NVML's lists of processes: those of this container, under the pids it knows them by, with what our accounts say they
 * hold. The driver is asked first; what it says of processes that are not in the region is left out, and those in the
 * region that it does not show (it may hide other PID namespaces) are added. Its errors pass unchanged. */
#include <stdlib.h>
#include <string.h>

#include "nvml_slice.h"
#include "vgpu/prim.h"

/* ---- the container's processes ---- */

struct own_process {
    uint32_t pid, host_pid; /* 0 = not known */
    uint64_t used;
    bool listed;
};

struct own_processes {
    unsigned count;
    struct own_process list[VG_MAX_SLOTS];
};

/* Pids of other PID namespaces mean nothing to the one who asks: those processes are not listed. */
static void list_own(struct vg_region *region, unsigned card, struct own_processes *own) {
    uint64_t namespace = vgi_pid_namespace();
    own->count = 0;
    for (unsigned i = 0; i < VG_MAX_SLOTS; i++) {
        struct vgi_identity owner = vgi_region_owner(region, i);
        bool foreign = owner.pid_namespace != 0 && namespace != 0 && owner.pid_namespace != namespace;
        if (owner.pid <= 0 || foreign || vgi_is_gone(&owner, namespace))
            continue;
        const struct vg_usage *usage = &region->slots[i].used[card];
        own->list[own->count++] =
            (struct own_process){.pid = (uint32_t)owner.pid,
                                 .host_pid = (uint32_t)owner.host_pid,
                                 .used = atomic_load(&usage->total) + atomic_load(&usage->leaving)};
    }
}

/* NVML tells the host's pid or, newer drivers, that of the asking process's namespace. */
static struct own_process *find_own(struct own_processes *own, uint32_t pid) {
    for (unsigned i = 0; i < own->count; i++)
        if (own->list[i].host_pid != 0 && own->list[i].host_pid == pid)
            return &own->list[i];
    for (unsigned i = 0; i < own->count; i++)
        if (own->list[i].pid == pid)
            return &own->list[i];
    return NULL;
}

/* ---- lists of any kind ---- */

struct question {
    nvmlReturn_t (*ask)(const struct question *question, unsigned *count, void *rows);
    nvmlDevice_t device;
    unsigned mode;               /* of a detail list */
    unsigned version;            /* of the caller's struct */
    unsigned long long since_us; /* of samples */

    size_t row_bytes, pid_at;
    size_t used_at;          /* 0 = rows have no size */
    size_t instance_at;      /* 0 = rows have no instances */
    bool adds_own;           /* who holds memory is in this list */
    nvmlReturn_t when_empty; /* a list without rows */
};

/* The driver's whole list, however short the caller's room is; NULL when there is no memory for it. */
static char *fetch(const struct question *question, unsigned *count, nvmlReturn_t *result) {
    unsigned room = 64;
    for (int tries = 0;; tries++) {
        char *rows = calloc(room, question->row_bytes);
        *count = room;
        *result = rows == NULL ? NVML_ERROR_MEMORY : question->ask(question, count, rows);
        if (rows == NULL || *result != NVML_ERROR_INSUFFICIENT_SIZE || tries == 8)
            return rows;
        free(rows);
        room = 2 * (*count > room ? *count : room);
    }
}

static void write_row(const struct question *question, char *row, const struct own_process *process) {
    uint32_t none = VG_NVML_INSTANCE_NONE;
    if (!process->listed && question->instance_at != 0) {
        memcpy(row + question->instance_at, &none, sizeof none);
        memcpy(row + question->instance_at + sizeof none, &none, sizeof none);
    }
    memcpy(row + question->pid_at, &process->pid, sizeof process->pid);
    if (question->used_at != 0)
        memcpy(row + question->used_at, &process->used, sizeof process->used);
}

/* Rewrites the driver's rows, which have room for one more per process; returns how many there are. */
static unsigned rewrite(const struct question *question, char *rows, unsigned count, struct own_processes *own) {
    unsigned kept = 0;
    for (unsigned i = 0; i < count; i++) {
        uint32_t pid = 0;
        memcpy(&pid, rows + i * question->row_bytes + question->pid_at, sizeof pid);
        struct own_process *process = find_own(own, pid);
        if (process == NULL)
            continue;
        process->listed = true;
        memmove(rows + kept * question->row_bytes, rows + i * question->row_bytes, question->row_bytes);
        write_row(question, rows + kept++ * question->row_bytes, process);
    }
    for (unsigned i = 0; question->adds_own && i < own->count; i++)
        if (!own->list[i].listed && own->list[i].used > 0) {
            memset(rows + kept * question->row_bytes, 0, question->row_bytes);
            write_row(question, rows + kept++ * question->row_bytes, &own->list[i]);
        }
    return kept;
}

static nvmlReturn_t hand_over(const struct question *question, const char *rows, unsigned count, unsigned *room,
                              void *out) {
    unsigned had = *room;
    *room = count;
    if (count == 0)
        return question->when_empty;
    if (out == NULL || had < count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, rows, count * question->row_bytes);
    return NVML_SUCCESS;
}

static nvmlReturn_t answer(const struct question *question, unsigned *room, void *out) {
    char uuid[VG_UUID_BYTES];
    unsigned count = 0;
    nvmlReturn_t result;
    if (!vgi_bind_nvml())
        return NVML_ERROR_LIBRARY_NOT_FOUND;
    struct vg_region *region = vgi_look();
    int card = region == NULL ? -1 : vgi_card_of_nvml(question->device, region, uuid);
    if (card < 0 || room == NULL)
        return question->ask(question, room, out);
    char *rows = fetch(question, &count, &result);
    struct own_processes *own = malloc(sizeof *own);
    char *grown = own == NULL || rows == NULL ? NULL : realloc(rows, (count + VG_MAX_SLOTS) * question->row_bytes);
    rows = grown != NULL ? grown : rows;
    if (result == NVML_SUCCESS && grown == NULL)
        result = NVML_ERROR_MEMORY;
    if (result == NVML_SUCCESS) {
        list_own(region, (unsigned)card, own);
        count = rewrite(question, rows, count, own);
        result = hand_over(question, rows, count, room, out);
    }
    free(rows);
    free(own);
    return result;
}

/* ---- running processes: three kinds, three versions ---- */

/* Version 1 has no instances, the others do. */
#define RUNNING(symbol, row, instance, adds)                                                                           \
    static nvmlReturn_t ask_##symbol(const struct question *question, unsigned *count, void *rows) {                   \
        return VGI_NVML(symbol, question->device, count, rows);                                                        \
    }                                                                                                                  \
    VGI_HOOK nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *count, row *infos) {                               \
        struct question question = {.ask = ask_##symbol,                                                               \
                                    .device = device,                                                                  \
                                    .row_bytes = sizeof(row),                                                          \
                                    .pid_at = offsetof(row, pid),                                                      \
                                    .used_at = offsetof(row, usedGpuMemory),                                           \
                                    .instance_at = instance,                                                           \
                                    .adds_own = adds,                                                                  \
                                    .when_empty = NVML_SUCCESS};                                                       \
        return answer(&question, count, infos);                                                                        \
    }
#define INSTANCE_AT offsetof(nvmlProcessInfo_v2_t, gpuInstanceId)
RUNNING(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, 0, true)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, INSTANCE_AT, true)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, INSTANCE_AT, true)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, 0, false)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, INSTANCE_AT, false)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, INSTANCE_AT, false)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, 0, false)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, INSTANCE_AT, false)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, INSTANCE_AT, false)

static nvmlReturn_t ask_details(const struct question *question, unsigned *count, void *rows) {
    nvmlProcessDetailList_t list = {
        .version = question->version, .mode = question->mode, .numProcArrayEntries = *count, .procArray = rows};
    nvmlReturn_t result = VGI_NVML(nvmlDeviceGetRunningProcessDetailList, question->device, &list);
    *count = list.numProcArrayEntries;
    return result;
}

VGI_HOOK nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list) {
    if (list == NULL)
        return vgi_bind_nvml() ? VGI_NVML(nvmlDeviceGetRunningProcessDetailList, device, list)
                               : NVML_ERROR_LIBRARY_NOT_FOUND;
    struct question question = {
        .ask = ask_details,
        .device = device,
        .mode = list->mode,
        .version = list->version,
        .row_bytes = sizeof(nvmlProcessDetail_v1_t),
        .pid_at = offsetof(nvmlProcessDetail_v1_t, pid),
        .used_at = offsetof(nvmlProcessDetail_v1_t, usedGpuMemory),
        .instance_at = offsetof(nvmlProcessDetail_v1_t, gpuInstanceId),
        .adds_own = list->mode == VG_NVML_MODE_COMPUTE || list->mode == VG_NVML_MODE_ALL,
        .when_empty = NVML_SUCCESS,
    };
    return answer(&question, &list->numProcArrayEntries, list->procArray);
}

/* ---- samples of utilisation: of the container's processes; the card's own rates stay the card's ---- */

static nvmlReturn_t ask_samples(const struct question *question, unsigned *count, void *rows) {
    return VGI_NVML(nvmlDeviceGetProcessUtilization, question->device, rows, count, question->since_us);
}

VGI_HOOK nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                                      unsigned int *count, unsigned long long lastSeen) {
    struct question question = {.ask = ask_samples,
                                .device = device,
                                .since_us = lastSeen,
                                .row_bytes = sizeof(nvmlProcessUtilizationSample_t),
                                .pid_at = offsetof(nvmlProcessUtilizationSample_t, pid),
                                .when_empty = NVML_ERROR_NOT_FOUND};
    return answer(&question, count, samples);
}

static nvmlReturn_t ask_utilisation(const struct question *question, unsigned *count, void *rows) {
    nvmlProcessesUtilizationInfo_t info = {.version = question->version,
                                           .processSamplesCount = *count,
                                           .lastSeenTimeStamp = question->since_us,
                                           .procUtilArray = rows};
    nvmlReturn_t result = VGI_NVML(nvmlDeviceGetProcessesUtilizationInfo, question->device, &info);
    *count = info.processSamplesCount;
    return result;
}

VGI_HOOK nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info) {
    if (info == NULL)
        return vgi_bind_nvml() ? VGI_NVML(nvmlDeviceGetProcessesUtilizationInfo, device, info)
                               : NVML_ERROR_LIBRARY_NOT_FOUND;
    struct question question = {.ask = ask_utilisation,
                                .device = device,
                                .version = info->version,
                                .since_us = info->lastSeenTimeStamp,
                                .row_bytes = sizeof(nvmlProcessUtilizationInfo_v1_t),
                                .pid_at = offsetof(nvmlProcessUtilizationInfo_v1_t, pid),
                                .when_empty = NVML_ERROR_NOT_FOUND};
    return answer(&question, &info->processSamplesCount, info->procUtilArray);
}
