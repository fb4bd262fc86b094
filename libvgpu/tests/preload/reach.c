#include "reach.h"

#include <dlfcn.h>
#include <stdio.h>

const char *const reach_names[REACH_COUNT] = {"link",   "dlsym-default", "dlsym-next", "dlopen",
                                              "dlvsym", "getproc-v1",    "getproc-v2", "getproc-per-thread"};

static void *from_driver(const char *symbol) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver == NULL ? NULL : dlsym(driver, symbol);
}

/* As libcudart does it: cuGetProcAddress itself is looked up by name in the opened library. */
static void *ask_driver(enum reach reach, const char *base, int version) {
    void *found = NULL;
    if (reach == REACH_GETPROC_V1) {
        PFN_cuGetProcAddress_v11030 get = (PFN_cuGetProcAddress_v11030)(uintptr_t)from_driver("cuGetProcAddress");
        return get != NULL && get(base, &found, version, VG_PROC_ADDRESS_LEGACY_STREAM) == CUDA_SUCCESS ? found : NULL;
    }
    PFN_cuGetProcAddress_v12000 get = (PFN_cuGetProcAddress_v12000)(uintptr_t)from_driver("cuGetProcAddress_v2");
    cuuint64_t flags =
        reach == REACH_GETPROC_PER_THREAD ? VG_PROC_ADDRESS_PER_THREAD_STREAM : VG_PROC_ADDRESS_LEGACY_STREAM;
    return get != NULL && get(base, &found, version, flags, NULL) == CUDA_SUCCESS ? found : NULL;
}

void *reach_function(enum reach reach, const char *symbol, const char *base, int version, void *linked) {
    void *found = NULL;
    switch (reach) {
    case REACH_LINK:
        found = linked;
        break;
    case REACH_DLSYM_DEFAULT:
        found = dlsym(RTLD_DEFAULT, symbol);
        break;
    case REACH_DLSYM_NEXT:
        found = dlsym(RTLD_NEXT, symbol);
        break;
    case REACH_DLOPEN:
        found = from_driver(symbol);
        break;
    case REACH_DLVSYM:
        found = dlvsym(dlopen("libcuda.so.1", RTLD_NOW), symbol, "SIMULATED_1");
        break;
    default:
        found = ask_driver(reach, base, version);
        break;
    }
    if (found == NULL)
        fprintf(stderr, "%s is not found by %s\n", symbol, reach_names[reach]);
    return found;
}
