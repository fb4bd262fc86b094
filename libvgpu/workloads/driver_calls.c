#include "driver_calls.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define DECLARE(field, symbol, base, version, type) extern __typeof__(*(type)0) symbol;
WORKLOAD_CALLS(DECLARE)
#undef DECLARE

static bool missing(const char *symbol) {
    fprintf(stderr, "vgpu-workload: the driver has no %s\n", symbol);
    return false;
}

static bool resolve_linked(struct driver_calls *calls) {
#define LINK(field, symbol, base, version, type) calls->field = symbol;
    WORKLOAD_CALLS(LINK)
#undef LINK
    return true;
}

static void *open_driver(void) {
    void *handle = dlopen("libcuda.so.1", RTLD_NOW);
    if (handle == NULL)
        fprintf(stderr, "vgpu-workload: %s\n", dlerror());
    return handle;
}

/* Object pointers become function pointers by their bytes: ISO C has no cast for it. */
#define ASSIGN(field, address) memcpy(&calls->field, &(void *){address}, sizeof(void *))

static bool resolve_by_name(struct driver_calls *calls) {
    void *driver = open_driver();
    if (driver == NULL)
        return false;
#define LOOK_UP(field, symbol, base, version, type)                                                                    \
    {                                                                                                                  \
        void *address = dlsym(driver, #symbol);                                                                        \
        if (address == NULL)                                                                                           \
            return missing(#symbol);                                                                                   \
        ASSIGN(field, address);                                                                                        \
    }
    WORKLOAD_CALLS(LOOK_UP)
#undef LOOK_UP
    return true;
}

static bool resolve_by_driver(struct driver_calls *calls) {
    PFN_cuGetProcAddress_v12000 get = NULL;
    void *driver = open_driver();
    if (driver == NULL)
        return false;
    void *entry = dlsym(driver, "cuGetProcAddress_v2");
    if (entry == NULL)
        return missing("cuGetProcAddress_v2");
    memcpy(&get, &entry, sizeof entry);
#define ASK(field, symbol, base, version, type)                                                                        \
    {                                                                                                                  \
        void *address = NULL;                                                                                          \
        if (get(#base, &address, version, VG_PROC_ADDRESS_LEGACY_STREAM, NULL) != CUDA_SUCCESS)                        \
            return missing(#base);                                                                                     \
        ASSIGN(field, address);                                                                                        \
    }
    WORKLOAD_CALLS(ASK)
#undef ASK
    return true;
}

bool driver_calls_resolve(struct driver_calls *calls, enum reach reach) {
    switch (reach) {
    case REACH_LINK:
        return resolve_linked(calls);
    case REACH_DLSYM:
        return resolve_by_name(calls);
    case REACH_GETPROC:
        return resolve_by_driver(calls);
    }
    return false;
}
