/* The ways a program comes by a driver function. */
#ifndef VGPU_TEST_REACH_H
#define VGPU_TEST_REACH_H

#include "vgpu/abi/cuda_fn.h"

enum reach {
    REACH_LINK,
    REACH_DLSYM_DEFAULT,
    REACH_DLSYM_NEXT,
    REACH_DLOPEN,
    REACH_DLVSYM, /* finds only symbols that have a version: needs the driver of sim-versioned */
    REACH_GETPROC_V1,
    REACH_GETPROC_V2,
    REACH_GETPROC_PER_THREAD,
    REACH_COUNT
};

extern const char *const reach_names[REACH_COUNT];

/* The function of that symbol; base and version are what cuGetProcAddress is asked. NULL when it is not found. */
void *reach_function(enum reach reach, const char *symbol, const char *base, int version, void *linked);

/* A call of a driver function by the chosen way, for functions of hooks/cuda.def. */
#define REACH(reach, symbol, base, version, type)                                                                      \
    ((type)(uintptr_t)reach_function(reach, #symbol, #base, version, (void *)(uintptr_t)symbol))

/* Every function of the table that has a type. */
#define CUDA_HOOK(symbol, base, type, version, streams, area) extern __typeof__(*(type)0) symbol;
#define CUDA_CALL CUDA_HOOK
#define CUDA_NAME(symbol, base, version, streams)
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME

#endif
