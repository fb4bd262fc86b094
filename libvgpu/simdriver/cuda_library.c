/* Libraries: modules that need no context of their own. A kernel is its function. */
#include <stdlib.h>

#include "driver.h"

struct CUlib_st {
    CUmodule module;
};

static CUresult load(CUlibrary *library, const void *code) {
    if (library == NULL || code == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUlibrary made = calloc(1, sizeof *made);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = cuModuleLoadData(&made->module, code);
    if (result == CUDA_SUCCESS)
        *library = made;
    else
        free(made);
    return result;
}

SIM_API CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions, void **jitValues,
                                   unsigned int jitCount, CUlibraryOption *options, void **values, unsigned int count) {
    (void)jitOptions, (void)jitValues, (void)jitCount, (void)options, (void)values, (void)count;
    return load(library, code);
}

SIM_API CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jitOptions, void **jitValues,
                                       unsigned int jitCount, CUlibraryOption *options, void **values,
                                       unsigned int count) {
    (void)jitOptions, (void)jitValues, (void)jitCount, (void)options, (void)values, (void)count;
    return load(library, path);
}

SIM_API CUresult cuLibraryUnload(CUlibrary library) {
    if (library == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = cuModuleUnload(library->module);
    if (result == CUDA_SUCCESS)
        free(library);
    return result;
}

SIM_API CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    if (module == NULL || library == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *module = library->module;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    CUfunction function = NULL;
    if (kernel == NULL || library == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuModuleGetFunction(&function, library->module, name);
    if (result == CUDA_SUCCESS)
        *kernel = (CUkernel)(void *)function;
    return result;
}

SIM_API CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    if (function == NULL || kernel == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *function = (CUfunction)(void *)kernel;
    return CUDA_SUCCESS;
}
