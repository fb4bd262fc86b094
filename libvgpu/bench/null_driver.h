/* The null driver's functions, with the types of hooks/cuda.def. */
#ifndef NULL_DRIVER_H
#define NULL_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "vgpu/abi/cuda_fn.h"

#define NULL_API __attribute__((visibility("default")))

#define CUDA_HOOK(symbol, base, type, version, streams, area) extern __typeof__(*(type)0) symbol;
#define CUDA_CALL CUDA_HOOK
#define CUDA_NAME(symbol, base, version, streams)
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME

#endif
