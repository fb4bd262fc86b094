#include "hook_index.h"

#include <stdatomic.h>
#include <string.h>

#include "loader.h"

static const struct vgi_hook hooks[] = {
#define CUDA_HOOK(symbol, base, type, version, streams, area) {#symbol, (void *)symbol, VGI_LIBCUDA},
#define CUDA_CALL(symbol, base, type, version, streams, area)
#define CUDA_NAME(symbol, base, version, streams)
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME
#define NVML_HOOK(symbol, type, area) {#symbol, (void *)symbol, VGI_LIBNVML},
#define NVML_CALL(symbol, type, area)
#define NVML_NAME(symbol)
#include "nvml.def"
#undef NVML_HOOK
#undef NVML_CALL
#undef NVML_NAME
};

enum { legacy = VG_PROC_ADDRESS_LEGACY_STREAM, per_thread = VG_PROC_ADDRESS_PER_THREAD_STREAM };

/* What cuGetProcAddress is asked for each CUDA hook; they come first in `hooks`, in the same order. */
static const struct {
    const char *base;
    int version;
    cuuint64_t flags;
} questions[] = {
#define CUDA_HOOK(symbol, base, type, version, streams, area) {#base, version, streams},
#define CUDA_CALL(symbol, base, type, version, streams, area)
#define CUDA_NAME(symbol, base, version, streams)
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME
};

#define HOOKS (sizeof hooks / sizeof hooks[0])
#define CUDA_HOOKS (sizeof questions / sizeof questions[0])
const unsigned vgi_cuda_hook_count = CUDA_HOOKS;

/* ---- by name ---- */

#define NAME_PLACES 1024u
_Static_assert(2 * HOOKS <= NAME_PLACES, "half of the places stay free");
static _Atomic uint16_t places[NAME_PLACES]; /* index into hooks, from 1 */

static uint32_t hash_name(const char *name) {
    uint32_t hash = 2166136261u;
    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return hash ^ hash >> 15;
}

/* Several threads may do this at once: each writes the same values in the same order. */
static void index_names(void) {
    static _Atomic int indexed;
    if (__builtin_expect(atomic_load_explicit(&indexed, memory_order_acquire), 1))
        return;
    for (uint16_t i = 0; i < HOOKS; i++) {
        uint32_t place = hash_name(hooks[i].name) % NAME_PLACES;
        for (;; place = (place + 1) % NAME_PLACES) {
            uint16_t taken = atomic_load_explicit(&places[place], memory_order_relaxed);
            if (taken == 0 || taken == i + 1)
                break;
        }
        atomic_store_explicit(&places[place], (uint16_t)(i + 1), memory_order_relaxed);
    }
    atomic_store_explicit(&indexed, 1, memory_order_release);
}

const struct vgi_hook *vgi_hook_by_name(const char *name) {
    if (strncmp(name, "cu", 2) != 0 && strncmp(name, "nvml", 4) != 0)
        return NULL;
    index_names();
    for (uint32_t place = hash_name(name) % NAME_PLACES;; place = (place + 1) % NAME_PLACES) {
        uint16_t taken = atomic_load_explicit(&places[place], memory_order_relaxed);
        if (taken == 0)
            return NULL;
        if (strcmp(hooks[taken - 1].name, name) == 0)
            return &hooks[taken - 1];
    }
}

/* ---- by pointer ---- */

#define POINTER_PLACES 2048u
_Static_assert(4 * CUDA_HOOKS <= POINTER_PLACES, "half of the places stay free");
static struct {
    const void *pointer;
    void *hook;
} known[POINTER_PLACES];

static uint32_t hash_pointer(const void *pointer) {
    return (uint32_t)(((uintptr_t)pointer >> 4) * 0x9e3779b97f4a7c15ull >> 40);
}

void *vgi_hook_by_pointer(const void *pointer) {
    uint32_t place = hash_pointer(pointer) % POINTER_PLACES;
    for (; known[place].pointer != NULL; place = (place + 1) % POINTER_PLACES)
        if (known[place].pointer == pointer)
            return known[place].hook;
    return NULL;
}

static void enter(const void *pointer, void *hook) {
    uint32_t place = hash_pointer(pointer) % POINTER_PLACES;
    if (pointer == NULL)
        return;
    for (; known[place].pointer != NULL; place = (place + 1) % POINTER_PLACES)
        if (known[place].pointer == pointer)
            return;
    known[place].pointer = pointer;
    known[place].hook = hook;
}

/* What is exported under a name is that function; an answer of cuGetProcAddress comes second, lest an older function
 * that a driver gives in place of one it lacks be taken for it. */
void vgi_learn_pointers(const struct vgi_driver_pointers *pointers) {
    for (size_t i = 0; i < CUDA_HOOKS; i++)
        enter(pointers[i].by_name, hooks[i].hook);
    for (size_t i = 0; i < CUDA_HOOKS; i++)
        enter(pointers[i].by_question, hooks[i].hook);
}

void vgi_ask_pointers(void *library, const struct vgi_cuda_calls *calls, struct vgi_driver_pointers *pointers) {
    for (size_t i = 0; i < CUDA_HOOKS; i++) {
        void *given = NULL;
        pointers[i].by_name = vgi_real_dlsym(library, hooks[i].name);
        /* A driver without the name may give the function of an older version for it: not ours to stand in front of. */
        if (pointers[i].by_name != NULL && calls->cuGetProcAddress_v2 != NULL)
            (void)calls->cuGetProcAddress_v2(questions[i].base, &given, questions[i].version, questions[i].flags, NULL);
        else if (pointers[i].by_name != NULL && calls->cuGetProcAddress != NULL)
            (void)calls->cuGetProcAddress(questions[i].base, &given, questions[i].version, questions[i].flags);
        pointers[i].by_question = given;
    }
}
