/* The names that libnvidia-ml.so.1 exports. */
#include "entry.h"

const enum sim_table sim_entry_table = SIM_TABLE_NVML;

#define NVML_HOOK(symbol, type, area) SIM_ENTRY(symbol)
#define NVML_CALL NVML_HOOK
#define NVML_NAME(symbol) SIM_ENTRY(symbol)
#include "nvml.def"
#undef NVML_HOOK
#undef NVML_CALL
#undef NVML_NAME
