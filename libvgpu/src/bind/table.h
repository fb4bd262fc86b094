/* The driver's own functions, and which of them are hooked. Everything here expands from hooks/cuda.def, nvml.def. */
#ifndef VGPU_BIND_TABLE_H
#define VGPU_BIND_TABLE_H

#include <stdbool.h>

#include "vgpu/abi/cuda_fn.h"
#include "vgpu/abi/nvml_fn.h"

#define VGI_HOOK __attribute__((visibility("default")))

/* Every hook must be defined, with the type its row names. */
#define CUDA_HOOK(symbol, base, type, version, streams, area) extern __typeof__(*(type)0) symbol;
#define CUDA_CALL(symbol, base, type, version, streams, area)
#define CUDA_NAME(symbol, base, version, streams)
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME
#define NVML_HOOK(symbol, type, area) extern __typeof__(*(type)0) symbol;
#define NVML_CALL(symbol, type, area)
#define NVML_NAME(symbol)
#include "nvml.def"
#undef NVML_HOOK
#undef NVML_CALL
#undef NVML_NAME

struct vgi_cuda_calls {
#define CUDA_HOOK(symbol, base, type, version, streams, area) type symbol;
#define CUDA_CALL CUDA_HOOK
#define CUDA_NAME(symbol, base, version, streams)
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME
};

struct vgi_nvml_calls {
#define NVML_HOOK(symbol, type, area) type symbol;
#define NVML_CALL NVML_HOOK
#define NVML_NAME(symbol)
#include "nvml.def"
#undef NVML_HOOK
#undef NVML_CALL
#undef NVML_NAME
};

/* Filled by the first successful bind; NULL where the installed driver lacks the function. */
extern struct vgi_cuda_calls vgi_cuda;
extern struct vgi_nvml_calls vgi_nvml;

/* Finds the driver. False when there is none. Cheap once bound. */
bool vgi_find_cuda(void);
bool vgi_bind_nvml(void);

#define VGI_BOUND 1
extern int vgi_cuda_state;

static inline bool vgi_bind_cuda(void) {
    return __builtin_expect(__atomic_load_n(&vgi_cuda_state, __ATOMIC_ACQUIRE) == VGI_BOUND, 1) || vgi_find_cuda();
}

/* A call of the driver's own function, or its "not supported" where the driver is too old to have it. */
#define VGI_CUDA(symbol, ...) (vgi_cuda.symbol != NULL ? vgi_cuda.symbol(__VA_ARGS__) : CUDA_ERROR_NOT_SUPPORTED)
#define VGI_NVML(symbol, ...) (vgi_nvml.symbol != NULL ? vgi_nvml.symbol(__VA_ARGS__) : NVML_ERROR_FUNCTION_NOT_FOUND)

enum vgi_library { VGI_LIBCUDA, VGI_LIBNVML };

const char *vgi_library_name(enum vgi_library library);

#endif
