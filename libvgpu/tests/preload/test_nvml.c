/* What NVML says inside a slice: the container's own processes, under its own pids, with what the accounts say they
 * hold. Two processes of the slice hold memory on card 0, and so does one of somebody else. */
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "reach.h"
#include "sandbox.h"
#include "vgpu/abi/nvml_fn.h"

#define MIB (1024ull * 1024ull)
#define CARD_0 "GPU-11111111-2222-3333-4444-000000000000"
#define ROOM 8

/* ---- a process that holds memory ---- */

__attribute__((noreturn)) static void hold(uint64_t bytes) {
    CUcontext context = NULL;
    CUdeviceptr pointer = 0;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, bytes), CUDA_SUCCESS);
    printf("holding\n");
    fflush(stdout);
    for (;;)
        pause();
}

/* ---- a process that looks ---- */

static void *library;
static nvmlDevice_t device;

#define CALL(symbol) ((PFN_##symbol)(uintptr_t)dlsym(library, #symbol))

static bool is_slice; /* the looker is under libvgpu too */
static uint32_t slice_pids[2];
static uint64_t slice_used[2];

static unsigned wanted_count(void) {
    return is_slice ? 2 : 3;
}

/* One row of whatever list, as what it must say. */
static unsigned judge_row(uint32_t pid, uint64_t used, const char *what) {
    for (unsigned i = 0; i < 2; i++)
        if (pid == slice_pids[i]) {
            CHECK_EQUAL_THAT(used, slice_used[i], what);
            return 1u << i;
        }
    CHECK_THAT(!is_slice, what); /* somebody else's */
    return 4;
}

/* CPR-08: too short a buffer is an answer with the count that is needed, never a crash. */
#define CHECK_SIZES(symbol, row)                                                                                       \
    do {                                                                                                               \
        row rows[ROOM];                                                                                                \
        for (unsigned room = 0; room < wanted_count(); room++) {                                                       \
            unsigned count = room;                                                                                     \
            memset(rows, 0x5a, sizeof rows);                                                                           \
            CHECK_EQUAL_THAT(CALL(symbol)(device, &count, room == 0 ? NULL : rows), NVML_ERROR_INSUFFICIENT_SIZE,      \
                             #symbol);                                                                                 \
            CHECK_EQUAL_THAT(count, wanted_count(), #symbol);                                                          \
            CHECK_EQUAL_THAT(rows[room].pid, 0x5a5a5a5au, #symbol);                                                    \
        }                                                                                                              \
        unsigned count = ROOM, seen = 0;                                                                               \
        CHECK_EQUAL_THAT(CALL(symbol)(device, &count, rows), NVML_SUCCESS, #symbol);                                   \
        CHECK_EQUAL_THAT(count, wanted_count(), #symbol);                                                              \
        for (unsigned i = 0; i < count && i < ROOM; i++)                                                               \
            seen |= judge_row(rows[i].pid, rows[i].usedGpuMemory, #symbol);                                            \
        CHECK_EQUAL_THAT(seen, is_slice ? 3u : 7u, #symbol);                                                           \
        CHECK_EQUAL_THAT(CALL(symbol)(device, NULL, rows), NVML_ERROR_INVALID_ARGUMENT, #symbol);                      \
    } while (0)

#define CHECK_EMPTY(symbol, row)                                                                                       \
    do {                                                                                                               \
        row rows[ROOM];                                                                                                \
        unsigned count = ROOM;                                                                                         \
        CHECK_EQUAL_THAT(CALL(symbol)(device, &count, rows), NVML_SUCCESS, #symbol);                                   \
        CHECK_EQUAL_THAT(count, 0, #symbol);                                                                           \
        count = 0;                                                                                                     \
        CHECK_EQUAL_THAT(CALL(symbol)(device, &count, NULL), NVML_SUCCESS, #symbol);                                   \
    } while (0)

/* case CPR-08 */
static void look_at_lists(void) {
    CHECK_SIZES(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t);
    CHECK_SIZES(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t);
    CHECK_SIZES(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t);
    CHECK_EMPTY(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t);
    CHECK_EMPTY(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t);
    CHECK_EMPTY(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t);
    CHECK_EMPTY(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t);
    CHECK_EMPTY(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t);
    CHECK_EMPTY(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t);
}

static void look_at_details(void) {
    nvmlProcessDetail_v1_t rows[ROOM];
    nvmlProcessDetailList_t list = {.version = VG_NVML_PROCESS_DETAILS_V1, .mode = VG_NVML_MODE_COMPUTE};
    CHECK_EQUAL(CALL(nvmlDeviceGetRunningProcessDetailList)(device, &list), NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_EQUAL(list.numProcArrayEntries, wanted_count());
    list.procArray = rows;
    CHECK_EQUAL(CALL(nvmlDeviceGetRunningProcessDetailList)(device, &list), NVML_SUCCESS);
    unsigned seen = 0;
    for (unsigned i = 0; i < list.numProcArrayEntries; i++)
        seen |= judge_row(rows[i].pid, rows[i].usedGpuMemory, "details");
    CHECK_EQUAL(seen, is_slice ? 3u : 7u);
    list.mode = VG_NVML_MODE_GRAPHICS;
    CHECK_EQUAL(CALL(nvmlDeviceGetRunningProcessDetailList)(device, &list), NVML_SUCCESS);
    CHECK_EQUAL(list.numProcArrayEntries, 0);
    list.version = 7;
    CHECK_EQUAL(CALL(nvmlDeviceGetRunningProcessDetailList)(device, &list), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    CHECK_EQUAL(CALL(nvmlDeviceGetRunningProcessDetailList)(device, NULL), NVML_ERROR_INVALID_ARGUMENT);
}

static void look_at_samples(void) {
    nvmlProcessUtilizationSample_t rows[ROOM];
    unsigned count = 0, seen = 0;
    CHECK_EQUAL(CALL(nvmlDeviceGetProcessUtilization)(device, NULL, &count, 0), NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_EQUAL(count, wanted_count());
    CHECK_EQUAL(CALL(nvmlDeviceGetProcessUtilization)(device, rows, &count, 0), NVML_SUCCESS);
    for (unsigned i = 0; i < count; i++)
        for (unsigned p = 0; p < 2; p++)
            seen |= rows[i].pid == slice_pids[p] ? 1u << p : 0;
    CHECK_EQUAL(seen, 3);
    count = ROOM;
    CHECK_EQUAL(CALL(nvmlDeviceGetProcessUtilization)(device, rows, &count, ~0ull), NVML_ERROR_NOT_FOUND);
    CHECK_EQUAL(CALL(nvmlDeviceGetProcessUtilization)(device, rows, NULL, 0), NVML_ERROR_INVALID_ARGUMENT);

    nvmlProcessUtilizationInfo_v1_t infos[ROOM];
    nvmlProcessesUtilizationInfo_t list = {.version = VG_NVML_PROCESSES_UTILIZATION_V1};
    CHECK_EQUAL(CALL(nvmlDeviceGetProcessesUtilizationInfo)(device, &list), NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_EQUAL(list.processSamplesCount, wanted_count());
    list.procUtilArray = infos;
    CHECK_EQUAL(CALL(nvmlDeviceGetProcessesUtilizationInfo)(device, &list), NVML_SUCCESS);
    CHECK_EQUAL(list.processSamplesCount, wanted_count());
    CHECK_EQUAL(CALL(nvmlDeviceGetProcessesUtilizationInfo)(device, NULL), NVML_ERROR_INVALID_ARGUMENT);
}

/* Before nvmlInit, and for handles that are none, NVML's own codes. */
static void look_too_early(void) {
    nvmlMemory_t memory;
    nvmlProcessInfo_t rows[ROOM];
    unsigned count = ROOM;
    CHECK_EQUAL(CALL(nvmlDeviceGetMemoryInfo)(NULL, &memory), NVML_ERROR_UNINITIALIZED);
    CHECK_EQUAL(CALL(nvmlDeviceGetComputeRunningProcesses_v3)(NULL, &count, rows), NVML_ERROR_UNINITIALIZED);
    CHECK_EQUAL(CALL(nvmlInit_v2)(), NVML_SUCCESS);
    CHECK_EQUAL(CALL(nvmlDeviceGetMemoryInfo)(NULL, &memory), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQUAL(CALL(nvmlDeviceGetComputeRunningProcesses_v3)(NULL, &count, rows), NVML_ERROR_INVALID_ARGUMENT);
}

static int look(char *text) {
    char *end = text;
    is_slice = *strtok(text, ",") == '1';
    for (unsigned i = 0; i < 2; i++) {
        slice_pids[i] = (uint32_t)strtoul(strtok(NULL, ","), &end, 10);
        slice_used[i] = strtoull(strtok(NULL, ","), &end, 10);
    }
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    CHECK(library != NULL);
    look_too_early();
    CHECK_EQUAL(CALL(nvmlDeviceGetHandleByUUID)(CARD_0, &device), NVML_SUCCESS);
    look_at_lists();
    look_at_details();
    look_at_samples();
    return check_done();
}

/* ---- the machine ---- */

static struct sandbox_process start_holder(const struct sandbox *sandbox, bool in_slice, const char *mib) {
    char setting[64];
    snprintf(setting, sizeof setting, "VGPU_TEST_HOLD=%s", mib);
    const char *environment[] = {setting, "CUDA_DEVICE_MEMORY_LIMIT=100m", NULL};
    const char *argv[] = {sandbox_self(), NULL};
    struct sandbox_process process = sandbox_start(sandbox, in_slice, environment, argv);
    CHECK(sandbox_await(&process, "holding"));
    return process;
}

static void run_looker(const struct sandbox *sandbox, bool in_slice, const struct sandbox_process holders[2]) {
    char setting[128], output[SANDBOX_OUTPUT];
    snprintf(setting, sizeof setting, "VGPU_TEST_LOOK=%d,%d,%llu,%d,%llu", in_slice, (int)holders[0].pid, 10 * MIB,
             (int)holders[1].pid, 20 * MIB);
    const char *environment[] = {setting, "CUDA_DEVICE_MEMORY_LIMIT=100m", NULL};
    const char *argv[] = {sandbox_self(), NULL};
    if (!CHECK_EQUAL_THAT(sandbox_run(sandbox, in_slice, environment, argv, output), 0, in_slice ? "slice" : "host"))
        fputs(output, stderr);
}

int main(void) {
    if (getenv("VGPU_TEST_HOLD") != NULL)
        hold(strtoull(getenv("VGPU_TEST_HOLD"), NULL, 10) * MIB);
    if (getenv("VGPU_TEST_LOOK") != NULL)
        return look(getenv("VGPU_TEST_LOOK"));
    struct sandbox sandbox = sandbox_make();
    struct sandbox_process holders[3] = {start_holder(&sandbox, true, "10"), start_holder(&sandbox, true, "20"),
                                         start_holder(&sandbox, false, "30")};
    run_looker(&sandbox, true, holders);
    run_looker(&sandbox, false, holders); /* the host's view stays the driver's */
    for (unsigned i = 0; i < 3; i++) {
        kill(holders[i].pid, SIGKILL);
        CHECK_EQUAL(sandbox_finish(&holders[i], NULL), -SIGKILL);
    }
    sandbox_remove(&sandbox);
    return check_done();
}
