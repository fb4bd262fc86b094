/* The tables, and binding the driver's functions to them. */
#include "table.h"

#include <dlfcn.h>
#include <sched.h>
#include <string.h>

#include "hook_index.h"
#include "loader.h"
#include "vgpu/prim.h"

struct vgi_cuda_calls vgi_cuda;
struct vgi_nvml_calls vgi_nvml;

const char *vgi_library_name(enum vgi_library library) {
    return library == VGI_LIBCUDA ? "libcuda.so.1" : "libnvidia-ml.so.1";
}

/* Object pointers become function pointers by their bytes: ISO C has no cast for it. */
static void look_up(void *library, const char *name, void *function) {
    void *found = vgi_real_dlsym(library, name);
    memcpy(function, &found, sizeof found);
}

static void load_cuda(void *library, struct vgi_cuda_calls *calls) {
#define CUDA_HOOK(symbol, base, type, version, streams, area) look_up(library, #symbol, &calls->symbol);
#define CUDA_CALL CUDA_HOOK
#define CUDA_NAME(symbol, base, version, streams)
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME
}

static void load_nvml(void *library, struct vgi_nvml_calls *calls) {
#define NVML_HOOK(symbol, type, area) look_up(library, #symbol, &calls->symbol);
#define NVML_CALL NVML_HOOK
#define NVML_NAME(symbol)
#include "nvml.def"
#undef NVML_HOOK
#undef NVML_CALL
#undef NVML_NAME
}

/* Several threads may come here at once, one of them in a constructor under the loader's lock: nobody holds a lock of
 * ours while the loader works. Each finds the same pointers; the first publishes them. The state then is its pid,
 * negative: a child that was forked meanwhile has no such thread and publishes itself. */
enum { UNBOUND = 0, BOUND = VGI_BOUND };

static bool publish_first(int *state) {
    int publishing = -vgi_own_pid(), seen = UNBOUND;
    for (;;) {
        if (__atomic_compare_exchange_n(state, &seen, publishing, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return true;
        if (seen == BOUND)
            return false;
        if (seen == publishing) {
            sched_yield();
            seen = UNBOUND; /* which it never is again: look once more */
        }
    }
}

static void *open_library(enum vgi_library library) {
    vgi_find_loader();
    void *handle = dlopen(vgi_library_name(library), RTLD_NOW | RTLD_NODELETE);
    if (handle == NULL)
        vgi_say(VGI_INFO, "%s cannot be loaded", vgi_library_name(library));
    return handle;
}

int vgi_cuda_state;
static int nvml_state;

bool vgi_find_cuda(void) {
    struct vgi_cuda_calls calls;
    struct vgi_driver_pointers pointers[vgi_cuda_hook_count];
    void *library = open_library(VGI_LIBCUDA);
    if (library == NULL)
        return false;
    load_cuda(library, &calls);
    vgi_ask_pointers(library, &calls, pointers);
    if (publish_first(&vgi_cuda_state)) {
        vgi_cuda = calls;
        vgi_learn_pointers(pointers);
        __atomic_store_n(&vgi_cuda_state, BOUND, __ATOMIC_RELEASE);
    }
    return true;
}

bool vgi_bind_nvml(void) {
    if (__builtin_expect(__atomic_load_n(&nvml_state, __ATOMIC_ACQUIRE) == BOUND, 1))
        return true;
    struct vgi_nvml_calls calls;
    void *library = open_library(VGI_LIBNVML);
    if (library == NULL)
        return false;
    load_nvml(library, &calls);
    if (publish_first(&nvml_state)) {
        vgi_nvml = calls;
        __atomic_store_n(&nvml_state, BOUND, __ATOMIC_RELEASE);
    }
    return true;
}
