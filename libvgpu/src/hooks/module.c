/* Modules and libraries: their code and data lie in the card's memory, as much as the driver likes. Measured by what
 * NVML says of this process before and after, which no capture forbids. Code that the driver loads only at
 * a first launch is not seen (README.md). */
#include "account/overhead.h"
#include "allocation.h"

struct load {
    struct vgi_overhead overhead;
    CUcontext context;
};

static void begin(struct load *load) {
    CUdevice device = 0;
    *load = (struct load){.overhead.card = -1};
    if (VGI_CUDA(cuCtxGetDevice, &device) != CUDA_SUCCESS || VGI_CUDA(cuCtxGetCurrent, &load->context) != CUDA_SUCCESS)
        return;
    vgi_overhead_begin(device, VGI_KIND_MODULE, &load->overhead);
    load->overhead.before.expected = vgi_unmet_heap(load->context);
}

static CUresult end(CUresult result, const struct load *load, const void *handle, bool more) {
    if (result == CUDA_SUCCESS)
        vgi_overhead_end(&load->overhead, handle, load->context, more);
    return result;
}

#define LOAD(symbol, handle, parameters, ...)                                                                          \
    VGI_HOOK CUresult symbol parameters {                                                                              \
        struct load load;                                                                                              \
        if (!vgi_bind_cuda())                                                                                          \
            return VGI_NO_DRIVER;                                                                                      \
        begin(&load);                                                                                                  \
        CUresult result = VGI_CUDA(symbol, __VA_ARGS__);                                                               \
        return end(result, &load, result == CUDA_SUCCESS ? *handle : NULL, false);                                     \
    }

LOAD(cuModuleLoad, module, (CUmodule * module, const char *path), module, path)
LOAD(cuModuleLoadData, module, (CUmodule * module, const void *image), module, image)
LOAD(cuModuleLoadDataEx, module,
     (CUmodule * module, const void *image, unsigned int count, CUjit_option *options, void **values), module, image,
     count, options, values)
LOAD(cuModuleLoadFatBinary, module, (CUmodule * module, const void *image), module, image)

#define LIBRARY_OPTIONS                                                                                                \
    CUjit_option *jitOptions, void **jitValues, unsigned int jitCount, CUlibraryOption *options, void **values,        \
        unsigned int count

LOAD(cuLibraryLoadData, library, (CUlibrary * library, const void *code, LIBRARY_OPTIONS), library, code, jitOptions,
     jitValues, jitCount, options, values, count)
LOAD(cuLibraryLoadFromFile, library, (CUlibrary * library, const char *path, LIBRARY_OPTIONS), library, path,
     jitOptions, jitValues, jitCount, options, values, count)

/* With lazy loading a kernel's code comes with the first question for it. */
static bool loads_lazily(void) {
    static _Atomic int known;
    CUmoduleLoadingMode mode = CU_MODULE_EAGER_LOADING;
    int value = atomic_load_explicit(&known, memory_order_relaxed);
    if (value == 0) {
        (void)VGI_CUDA(cuModuleGetLoadingMode, &mode);
        value = (int)mode;
        atomic_store_explicit(&known, value, memory_order_relaxed);
    }
    return value == CU_MODULE_LAZY_LOADING;
}

VGI_HOOK CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    struct load load;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    if (!loads_lazily())
        return VGI_CUDA(cuModuleGetFunction, function, module, name);
    begin(&load);
    return end(VGI_CUDA(cuModuleGetFunction, function, module, name), &load, module, true);
}

VGI_HOOK CUresult cuModuleUnload(CUmodule module) {
    struct vgi_entry taken;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    bool known = vgi_overhead_take(module, &taken);
    CUresult result = VGI_CUDA(cuModuleUnload, module);
    if (known)
        vgi_overhead_settle(result, &taken);
    return result;
}

VGI_HOOK CUresult cuLibraryUnload(CUlibrary library) {
    struct vgi_entry taken;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    bool known = vgi_overhead_take(library, &taken);
    CUresult result = VGI_CUDA(cuLibraryUnload, library);
    if (known)
        vgi_overhead_settle(result, &taken);
    return result;
}
