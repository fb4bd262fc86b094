/* A library linked against the driver, as plugins are. */
#include "vgpu/abi/cuda_fn.h"

extern CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);

__attribute__((visibility("default"))) CUresult plugin_allocate(CUdeviceptr *pointer, size_t bytes) {
    return cuMemAlloc_v2(pointer, bytes);
}
