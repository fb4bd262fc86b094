/* cuGetProcAddress over the symbol table, and the symbols that the simulation lacks. */
#include <stdlib.h>
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

/* ---- looked up once per process ---- */

static uint16_t by_base[symbol_count]; /* indexes into `symbols`, in the order of their base names */
static int driver_version;             /* 0 = not known: nothing is too new */

static int compare_bases(const void *left, const void *right) {
    uint16_t a = *(const uint16_t *)left, b = *(const uint16_t *)right;
    int order = strcmp(symbols[a].base, symbols[b].base);
    return order != 0 ? order : (int)a - (int)b;
}

static void prepare(void) {
    for (uint16_t i = 0; i < symbol_count; i++)
        by_base[i] = i;
    qsort(by_base, symbol_count, sizeof by_base[0], compare_bases);
    (void)cuDriverGetVersion(&driver_version);
}

static size_t first_of_base(const char *base) {
    size_t low = 0, high = symbol_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (strcmp(symbols[by_base[middle]].base, base) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The newest entry of that name not above the version asked; a per-thread request takes the per-thread entry where the
 * name has one. */
static void *find_symbol(const char *base, int version, bool want_per_thread, bool *known) {
    void *found = NULL;
    int found_version = -1;
    bool found_per_thread = false;
    for (size_t i = first_of_base(base); i < symbol_count; i++) {
        uint16_t at = by_base[i];
        bool threaded = symbols[at].streams == per_thread;
        if (strcmp(symbols[at].base, base) != 0)
            break;
        *known = true;
        if (symbols[at].version > version || (threaded && !want_per_thread))
            continue;
        bool better = threaded != found_per_thread ? threaded : symbols[at].version >= found_version;
        if (better) {
            found = symbols[at].address;
            found_version = symbols[at].version;
            found_per_thread = threaded;
        }
    }
    return found;
}

/* Documented: a version above the driver's own is an invalid value. A name that is not found is CUDA_ERROR_NOT_FOUND,
 * as drivers do. */
SIM_API CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult *symbolStatus) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    bool known = false;
    pthread_once(&once, prepare);
    if (symbol == NULL || pfn == NULL || flags > 3 || (driver_version != 0 && cudaVersion > driver_version))
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

SIM_API CUresult cuGetProcAddress_v2_ptsz(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                          CUdriverProcAddressQueryResult *symbolStatus) {
    bool says_which = (flags & (VG_PROC_ADDRESS_LEGACY_STREAM | VG_PROC_ADDRESS_PER_THREAD_STREAM)) != 0;
    return cuGetProcAddress_v2(symbol, pfn, cudaVersion, says_which ? flags : flags | VG_PROC_ADDRESS_PER_THREAD_STREAM,
                               symbolStatus);
}
