/* In place of src/bind: the table of real pointers holds the simulated driver's functions, linked into the program. No
 * dlopen, no dlsym, so that sanitizers see all of it. */
#include "bind/hook_index.h"
#include "bind/table.h"

#define CUDA_HOOK(symbol, base, type, version, streams, area)                                                          \
    extern __typeof__(*(type)0) sim_##symbol __asm__("sim_body_" #symbol);
#define CUDA_CALL CUDA_HOOK
#define CUDA_NAME(symbol, base, version, streams)
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME
#define NVML_HOOK(symbol, type, area) extern __typeof__(*(type)0) sim_##symbol __asm__("sim_body_" #symbol);
#define NVML_CALL NVML_HOOK
#define NVML_NAME(symbol)
#include "nvml.def"
#undef NVML_HOOK
#undef NVML_CALL
#undef NVML_NAME

/* The driver's own are made of its exported names, which are the hooks' here. */
CUresult sim_cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags) {
    (void)symbol, (void)pfn, (void)version, (void)flags;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult sim_cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *status) {
    (void)status;
    return sim_cuGetProcAddress(symbol, pfn, version, flags);
}

CUresult sim_cuGetProcAddress_v2_ptsz(const char *symbol, void **pfn, int version, cuuint64_t flags,
                                      CUdriverProcAddressQueryResult *status) {
    return sim_cuGetProcAddress_v2(symbol, pfn, version, flags, status);
}

struct vgi_cuda_calls vgi_cuda = {
#define CUDA_HOOK(symbol, base, type, version, streams, area) .symbol = sim_##symbol,
#define CUDA_CALL CUDA_HOOK
#define CUDA_NAME(symbol, base, version, streams)
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME
};

struct vgi_nvml_calls vgi_nvml = {
#define NVML_HOOK(symbol, type, area) .symbol = sim_##symbol,
#define NVML_CALL NVML_HOOK
#define NVML_NAME(symbol)
#include "nvml.def"
#undef NVML_HOOK
#undef NVML_CALL
#undef NVML_NAME
};

int vgi_cuda_state = VGI_BOUND;

bool vgi_find_cuda(void) {
    return true;
}

bool vgi_bind_nvml(void) {
    return true;
}

void *vgi_hook_by_pointer(const void *pointer) {
    (void)pointer;
    return NULL;
}
