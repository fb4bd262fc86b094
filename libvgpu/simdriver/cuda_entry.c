/* The names that libcuda.so.1 exports. */
#include "entry.h"

const enum sim_table sim_entry_table = SIM_TABLE_CUDA;

#define CUDA_HOOK(symbol, base, type, version, streams, area) SIM_ENTRY(symbol)
#define CUDA_CALL CUDA_HOOK
#define CUDA_NAME(symbol, base, version, streams) SIM_ENTRY(symbol)
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME
