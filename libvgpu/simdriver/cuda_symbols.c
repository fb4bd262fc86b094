/* cuGetProcAddress over the symbol table, and the symbols that the simulation lacks. */
#include <string.h>

#include "driver.h"

enum stream_mode { legacy, per_thread };

enum symbol_id {
#define CUDA_HOOK(symbol, base, type, version, streams, area) id_##symbol,
#define CUDA_CALL CUDA_HOOK
#define CUDA_NAME(symbol, base, version, streams) id_##symbol,
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME
    symbol_count
};
_Static_assert(symbol_count <= SIM_MAX_SYMBOLS, "the books count that many symbols");

/* The entries, not the bodies: what programs get. */
#define CUDA_HOOK(symbol, base, type, version, streams, area) extern CUresult entry_##symbol(void) __asm__(#symbol);
#define CUDA_CALL CUDA_HOOK
#define CUDA_NAME(symbol, base, version, streams) extern CUresult entry_##symbol(void) __asm__(#symbol);
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME

static const struct {
    const char *base;
    int version;
    enum stream_mode streams;
    void *address;
} symbols[] = {
#define CUDA_HOOK(symbol, base, type, version, streams, area) {#base, version, streams, (void *)entry_##symbol},
#define CUDA_CALL CUDA_HOOK
#define CUDA_NAME(symbol, base, version, streams) {#base, version, streams, (void *)entry_##symbol},
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME
};

#define CUDA_HOOK(symbol, base, type, version, streams, area)
#define CUDA_CALL CUDA_HOOK
#define CUDA_NAME(symbol, base, version, streams)                                                                      \
    SIM_API CUresult symbol(void) {                                                                                    \
        return sim_unsupported(id_##symbol);                                                                           \
    }
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME

CUresult sim_unsupported(unsigned symbol_id) {
    if (sim.books != NULL)
        atomic_fetch_add(&sim.books->unsupported_cuda[symbol_id], 1);
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* The newest entry of that name not above the version asked; a per-thread request takes the per-thread entry where the
 * name has one. */
static void *find_symbol(const char *base, int version, bool want_per_thread, bool *known) {
    void *found = NULL;
    int found_version = -1;
    bool found_per_thread = false;
    for (size_t i = 0; i < symbol_count; i++) {
        bool threaded = symbols[i].streams == per_thread;
        if (strcmp(symbols[i].base, base) != 0)
            continue;
        *known = true;
        if (symbols[i].version > version || (threaded && !want_per_thread))
            continue;
        bool better = threaded != found_per_thread ? threaded : symbols[i].version >= found_version;
        if (better) {
            found = symbols[i].address;
            found_version = symbols[i].version;
            found_per_thread = threaded;
        }
    }
    return found;
}

SIM_API CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult *symbolStatus) {
    bool known = false;
    if (symbol == NULL || pfn == NULL || flags > 3)
        return CUDA_ERROR_INVALID_VALUE;
    *pfn = find_symbol(symbol, cudaVersion, (flags & VG_PROC_ADDRESS_PER_THREAD_STREAM) != 0, &known);
    if (symbolStatus != NULL)
        *symbolStatus = *pfn != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                        : known      ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                     : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *pfn != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

SIM_API CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags) {
    return cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, NULL);
}
