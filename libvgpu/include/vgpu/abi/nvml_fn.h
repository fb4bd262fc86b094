/* Function types of the NVML calls in hooks/nvml.def. Source: the public reference of NVML. */
#ifndef VGPU_ABI_NVML_FN_H
#define VGPU_ABI_NVML_FN_H

#include "vgpu/abi/nvml_types.h"

typedef nvmlReturn_t (*PFN_nvmlInit)(void);
typedef nvmlReturn_t (*PFN_nvmlInit_v2)(void);
typedef nvmlReturn_t (*PFN_nvmlInitWithFlags)(unsigned int flags);
typedef nvmlReturn_t (*PFN_nvmlShutdown)(void);
typedef const char *(*PFN_nvmlErrorString)(nvmlReturn_t result);
typedef nvmlReturn_t (*PFN_nvmlSystemGetDriverVersion)(char *version, unsigned int length);
typedef nvmlReturn_t (*PFN_nvmlSystemGetNVMLVersion)(char *version, unsigned int length);
typedef nvmlReturn_t (*PFN_nvmlSystemGetCudaDriverVersion)(int *version);
typedef nvmlReturn_t (*PFN_nvmlSystemGetCudaDriverVersion_v2)(int *version);
typedef nvmlReturn_t (*PFN_nvmlSystemGetProcessName)(unsigned int pid, char *name, unsigned int length);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetCount)(unsigned int *count);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetCount_v2)(unsigned int *count);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetHandleByIndex)(unsigned int index, nvmlDevice_t *device);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetHandleByIndex_v2)(unsigned int index, nvmlDevice_t *device);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetHandleByUUID)(const char *uuid, nvmlDevice_t *device);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetHandleByPciBusId)(const char *busId, nvmlDevice_t *device);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetHandleByPciBusId_v2)(const char *busId, nvmlDevice_t *device);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetHandleBySerial)(const char *serial, nvmlDevice_t *device);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetName)(nvmlDevice_t device, char *name, unsigned int length);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetUUID)(nvmlDevice_t device, char *uuid, unsigned int length);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetSerial)(nvmlDevice_t device, char *serial, unsigned int length);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetIndex)(nvmlDevice_t device, unsigned int *index);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetMinorNumber)(nvmlDevice_t device, unsigned int *minor);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetNumaNodeId)(nvmlDevice_t device, unsigned int *node);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetMemoryAffinity)(nvmlDevice_t device, unsigned int nodeSetSize,
                                                        unsigned long *nodeSet, unsigned int scope);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetBrand)(nvmlDevice_t device, unsigned int *brand);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetArchitecture)(nvmlDevice_t device, unsigned int *architecture);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetCudaComputeCapability)(nvmlDevice_t device, int *major, int *minor);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetNumGpuCores)(nvmlDevice_t device, unsigned int *cores);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetPciInfo)(nvmlDevice_t device, nvmlPciInfo_t *pci);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetPciInfo_v2)(nvmlDevice_t device, nvmlPciInfo_t *pci);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetPciInfo_v3)(nvmlDevice_t device, nvmlPciInfo_t *pci);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetMigMode)(nvmlDevice_t device, unsigned int *current, unsigned int *pending);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetMaxMigDeviceCount)(nvmlDevice_t device, unsigned int *count);
typedef nvmlReturn_t (*PFN_nvmlDeviceIsMigDeviceHandle)(nvmlDevice_t device, unsigned int *isMig);
typedef nvmlReturn_t (*PFN_nvmlDeviceSetMigMode)(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetMigDeviceHandleByIndex)(nvmlDevice_t device, unsigned int index,
                                                                nvmlDevice_t *migDevice);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetDeviceHandleFromMigDeviceHandle)(nvmlDevice_t migDevice, nvmlDevice_t *device);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetGpuInstanceId)(nvmlDevice_t device, unsigned int *id);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetComputeInstanceId)(nvmlDevice_t device, unsigned int *id);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetGpuInstanceProfileInfo)(nvmlDevice_t device, unsigned int profile,
                                                                nvmlGpuInstanceProfileInfo_t *info);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetGpuInstancePossiblePlacements_v2)(nvmlDevice_t device, unsigned int profileId,
                                                                          nvmlGpuInstancePlacement_t *placements,
                                                                          unsigned int *count);
typedef nvmlReturn_t (*PFN_nvmlDeviceCreateGpuInstanceWithPlacement)(nvmlDevice_t device, unsigned int profileId,
                                                                     const nvmlGpuInstancePlacement_t *placement,
                                                                     nvmlGpuInstance_t *gpuInstance);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetGpuInstances)(nvmlDevice_t device, unsigned int profileId,
                                                      nvmlGpuInstance_t *gpuInstances, unsigned int *count);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetGpuInstanceById)(nvmlDevice_t device, unsigned int id,
                                                         nvmlGpuInstance_t *gpuInstance);
typedef nvmlReturn_t (*PFN_nvmlGpuInstanceGetInfo)(nvmlGpuInstance_t gpuInstance, nvmlGpuInstanceInfo_t *info);
typedef nvmlReturn_t (*PFN_nvmlGpuInstanceDestroy)(nvmlGpuInstance_t gpuInstance);
typedef nvmlReturn_t (*PFN_nvmlGpuInstanceGetComputeInstanceProfileInfo)(nvmlGpuInstance_t gpuInstance,
                                                                         unsigned int profile,
                                                                         unsigned int engineProfile,
                                                                         nvmlComputeInstanceProfileInfo_t *info);
typedef nvmlReturn_t (*PFN_nvmlGpuInstanceCreateComputeInstance)(nvmlGpuInstance_t gpuInstance, unsigned int profileId,
                                                                 nvmlComputeInstance_t *computeInstance);
typedef nvmlReturn_t (*PFN_nvmlGpuInstanceGetComputeInstances)(nvmlGpuInstance_t gpuInstance, unsigned int profileId,
                                                               nvmlComputeInstance_t *computeInstances,
                                                               unsigned int *count);
typedef nvmlReturn_t (*PFN_nvmlGpuInstanceGetComputeInstanceById)(nvmlGpuInstance_t gpuInstance, unsigned int id,
                                                                  nvmlComputeInstance_t *computeInstance);
typedef nvmlReturn_t (*PFN_nvmlComputeInstanceGetInfo_v2)(nvmlComputeInstance_t computeInstance,
                                                          nvmlComputeInstanceInfo_t *info);
typedef nvmlReturn_t (*PFN_nvmlComputeInstanceDestroy)(nvmlComputeInstance_t computeInstance);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetTopologyCommonAncestor)(nvmlDevice_t device1, nvmlDevice_t device2,
                                                                unsigned int *level);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetNvLinkState)(nvmlDevice_t device, unsigned int link, unsigned int *isActive);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetNvLinkRemotePciInfo_v2)(nvmlDevice_t device, unsigned int link,
                                                                nvmlPciInfo_t *pci);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetNvLinkRemoteDeviceType)(nvmlDevice_t device, unsigned int link,
                                                                unsigned int *type);
typedef nvmlReturn_t (*PFN_nvmlDeviceOnSameBoard)(nvmlDevice_t device1, nvmlDevice_t device2, int *same);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetComputeMode)(nvmlDevice_t device, unsigned int *mode);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetPersistenceMode)(nvmlDevice_t device, unsigned int *mode);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetMemoryInfo)(nvmlDevice_t device, nvmlMemory_t *memory);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetMemoryInfo_v2)(nvmlDevice_t device, nvmlMemory_v2_t *memory);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetBAR1MemoryInfo)(nvmlDevice_t device, nvmlBAR1Memory_t *memory);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetUtilizationRates)(nvmlDevice_t device, nvmlUtilization_t *utilization);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetProcessUtilization)(nvmlDevice_t device,
                                                            nvmlProcessUtilizationSample_t *samples,
                                                            unsigned int *count, unsigned long long lastSeen);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetComputeRunningProcesses)(nvmlDevice_t device, unsigned int *count,
                                                                 nvmlProcessInfo_v1_t *infos);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetComputeRunningProcesses_v2)(nvmlDevice_t device, unsigned int *count,
                                                                    nvmlProcessInfo_v2_t *infos);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetComputeRunningProcesses_v3)(nvmlDevice_t device, unsigned int *count,
                                                                    nvmlProcessInfo_t *infos);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetGraphicsRunningProcesses)(nvmlDevice_t device, unsigned int *count,
                                                                  nvmlProcessInfo_v1_t *infos);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetGraphicsRunningProcesses_v2)(nvmlDevice_t device, unsigned int *count,
                                                                     nvmlProcessInfo_v2_t *infos);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetGraphicsRunningProcesses_v3)(nvmlDevice_t device, unsigned int *count,
                                                                     nvmlProcessInfo_t *infos);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetMPSComputeRunningProcesses)(nvmlDevice_t device, unsigned int *count,
                                                                    nvmlProcessInfo_v1_t *infos);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetMPSComputeRunningProcesses_v2)(nvmlDevice_t device, unsigned int *count,
                                                                       nvmlProcessInfo_v2_t *infos);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetMPSComputeRunningProcesses_v3)(nvmlDevice_t device, unsigned int *count,
                                                                       nvmlProcessInfo_t *infos);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetRunningProcessDetailList)(nvmlDevice_t device, nvmlProcessDetailList_t *list);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetProcessesUtilizationInfo)(nvmlDevice_t device,
                                                                  nvmlProcessesUtilizationInfo_t *info);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetTemperature)(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetTemperatureThreshold)(nvmlDevice_t device, unsigned int threshold,
                                                              unsigned int *celsius);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetPowerUsage)(nvmlDevice_t device, unsigned int *milliwatts);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetPowerManagementLimit)(nvmlDevice_t device, unsigned int *milliwatts);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetEnforcedPowerLimit)(nvmlDevice_t device, unsigned int *milliwatts);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetClockInfo)(nvmlDevice_t device, unsigned int type, unsigned int *megahertz);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetMaxClockInfo)(nvmlDevice_t device, unsigned int type, unsigned int *megahertz);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetPerformanceState)(nvmlDevice_t device, unsigned int *state);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetTotalEccErrors)(nvmlDevice_t device, unsigned int type, unsigned int counter,
                                                        unsigned long long *count);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetCurrentClocksThrottleReasons)(nvmlDevice_t device, unsigned long long *reasons);
typedef nvmlReturn_t (*PFN_nvmlDeviceGetSupportedEventTypes)(nvmlDevice_t device, unsigned long long *types);
typedef nvmlReturn_t (*PFN_nvmlDeviceRegisterEvents)(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set);
typedef nvmlReturn_t (*PFN_nvmlEventSetCreate)(nvmlEventSet_t *set);
typedef nvmlReturn_t (*PFN_nvmlEventSetWait)(nvmlEventSet_t set, nvmlEventData_t *data,
                                             unsigned int timeoutMilliseconds);
typedef nvmlReturn_t (*PFN_nvmlEventSetWait_v2)(nvmlEventSet_t set, nvmlEventData_t *data,
                                                unsigned int timeoutMilliseconds);
typedef nvmlReturn_t (*PFN_nvmlEventSetFree)(nvmlEventSet_t set);

#endif
