/* NVML's newer lists of processes, from the same books as the older ones. */

#include "nvml.h"

/* Documented: too short an array is INSUFFICIENT_SIZE, with the count that is needed. */
SIM_API nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list) {
    nvmlProcessInfo_t infos[SIM_MAX_PROCESSES];
    unsigned count = SIM_MAX_PROCESSES;
    nvmlReturn_t result = sim_nvml_device(device);
    if (result == NVML_SUCCESS && (list == NULL || list->mode > VG_NVML_MODE_ALL))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && list->version != VG_NVML_PROCESS_DETAILS_V1)
        result = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (result != NVML_SUCCESS)
        return result;
    if (list->mode == VG_NVML_MODE_COMPUTE || list->mode == VG_NVML_MODE_ALL)
        result = nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos);
    else
        count = 0; /* the simulated machine draws nothing and runs no MPS */
    if (result == NVML_SUCCESS && count > 0 && (list->procArray == NULL || list->numProcArrayEntries < count))
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; result == NVML_SUCCESS && i < count; i++)
        list->procArray[i] = (nvmlProcessDetail_v1_t){.pid = infos[i].pid,
                                                      .usedGpuMemory = infos[i].usedGpuMemory,
                                                      .gpuInstanceId = infos[i].gpuInstanceId,
                                                      .computeInstanceId = infos[i].computeInstanceId};
    list->numProcArrayEntries = count;
    return result;
}

SIM_API nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info) {
    nvmlProcessUtilizationSample_t samples[SIM_MAX_PROCESSES];
    unsigned count = SIM_MAX_PROCESSES;
    nvmlReturn_t result = sim_nvml_device(device);
    if (result == NVML_SUCCESS && info == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && info->version != VG_NVML_PROCESSES_UTILIZATION_V1)
        result = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (result == NVML_SUCCESS)
        result = nvmlDeviceGetProcessUtilization(device, samples, &count, info->lastSeenTimeStamp);
    if (result != NVML_SUCCESS)
        return result;
    if (info->procUtilArray == NULL || info->processSamplesCount < count)
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; result == NVML_SUCCESS && i < count; i++)
        info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
            .timeStamp = samples[i].timeStamp, .pid = samples[i].pid, .smUtil = samples[i].smUtil};
    info->processSamplesCount = count;
    return result;
}
