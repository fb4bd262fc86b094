/* Every other name of the driver: not supported. */
#include "vgpu/abi/cuda_types.h"

#define CUDA_HOOK(symbol, base, type, version, streams, area) CUDA_NAME(symbol, base, version, streams)
#define CUDA_CALL CUDA_HOOK
#define CUDA_NAME(symbol, base, version, streams)                                                                      \
    __attribute__((visibility("default"), weak)) CUresult symbol(void);                                                \
    CUresult symbol(void) {                                                                                            \
        return CUDA_ERROR_NOT_SUPPORTED;                                                                               \
    }
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME
