#include "faults.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FREE, FILLING, ARMED };

static const char *const cuda_names[] = {
#define CUDA_HOOK(symbol, base, type, version, streams, area) #symbol,
#define CUDA_CALL CUDA_HOOK
#define CUDA_NAME(symbol, base, version, streams) #symbol,
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME
};

static const char *const nvml_names[] = {
#define NVML_HOOK(symbol, type, area) #symbol,
#define NVML_CALL NVML_HOOK
#define NVML_NAME(symbol) #symbol,
#include "nvml.def"
#undef NVML_HOOK
#undef NVML_CALL
#undef NVML_NAME
};

#define COUNT(names) (sizeof(names) / sizeof(names)[0])
_Static_assert(COUNT(cuda_names) <= SIM_MAX_ENTRIES && COUNT(nvml_names) <= SIM_MAX_ENTRIES, "every symbol is counted");

struct sim_faults *sim_faults_open(const char *state_directory) {
    char path[4200];
    struct stat status;
    if (mkdir(state_directory, 0777) == 0)
        (void)chmod(state_directory, 0777);
    snprintf(path, sizeof path, "%s/faults.bin", state_directory);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0)
        return NULL;
    /* Containers of other users share it, whatever the umask was. */
    if (fstat(file, &status) == 0 && status.st_uid == geteuid() && (status.st_mode & 0777) != 0666)
        (void)fchmod(file, 0666);
    void *mapped = MAP_FAILED;
    if (ftruncate(file, sizeof(struct sim_faults)) == 0)
        mapped = mmap(NULL, sizeof(struct sim_faults), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return mapped == MAP_FAILED ? NULL : mapped;
}

const char *sim_symbol_name(struct sim_symbol symbol) {
    if (symbol.table == SIM_TABLE_CUDA)
        return symbol.number < COUNT(cuda_names) ? cuda_names[symbol.number] : NULL;
    return symbol.number < COUNT(nvml_names) ? nvml_names[symbol.number] : NULL;
}

static bool find_in(const char *const names[], size_t count, const char *name, unsigned *number) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0) {
            *number = (unsigned)i;
            return true;
        }
    return false;
}

bool sim_symbol_find(const char *name, struct sim_symbol *symbol) {
    if (strcmp(name, "nvmlErrorString") == 0) /* returns a text */
        return false;
    symbol->table = SIM_TABLE_CUDA;
    if (find_in(cuda_names, COUNT(cuda_names), name, &symbol->number))
        return true;
    symbol->table = SIM_TABLE_NVML;
    return find_in(nvml_names, COUNT(nvml_names), name, &symbol->number);
}

bool sim_faults_arm(struct sim_faults *faults, const struct sim_fault *fault) {
    for (int i = 0; i < SIM_MAX_FAULTS; i++) {
        struct sim_armed_fault *armed = &faults->armed[i];
        uint32_t expected = FREE;
        if (!atomic_compare_exchange_strong(&armed->state, &expected, FILLING))
            continue;
        armed->fault = *fault;
        atomic_store(&armed->calls, 0);
        atomic_store(&armed->state, ARMED);
        atomic_fetch_add(&faults->watched, 1);
        return true;
    }
    return false;
}

void sim_faults_clear(struct sim_faults *faults) {
    for (int i = 0; i < SIM_MAX_FAULTS; i++) {
        uint32_t expected = ARMED;
        if (atomic_compare_exchange_strong(&faults->armed[i].state, &expected, FREE))
            atomic_fetch_sub(&faults->watched, 1);
    }
}

void sim_faults_count(struct sim_faults *faults, bool on) {
    for (unsigned i = 0; on && i < SIM_MAX_ENTRIES; i++) {
        atomic_store(&faults->calls[SIM_TABLE_CUDA][i], 0);
        atomic_store(&faults->calls[SIM_TABLE_NVML][i], 0);
    }
    if (atomic_exchange(&faults->counting, on) != (uint32_t)on)
        atomic_fetch_add(&faults->watched, on ? 1u : ~0u);
}

static bool is_meant(struct sim_armed_fault *armed, struct sim_symbol symbol) {
    const struct sim_fault *fault = &armed->fault;
    if (atomic_load(&armed->state) != ARMED || fault->symbol.table != symbol.table ||
        fault->symbol.number != symbol.number || (fault->pid != 0 && fault->pid != (int32_t)getpid()))
        return false;
    uint64_t earlier = atomic_fetch_add(&armed->calls, 1);
    return earlier >= fault->after && (fault->times == 0 || earlier - fault->after < fault->times);
}

int sim_faults_strike(struct sim_faults *faults, struct sim_symbol symbol) {
    int answer = SIM_PASS;
    if (atomic_load(&faults->counting))
        atomic_fetch_add(&faults->calls[symbol.table][symbol.number], 1);
    for (int i = 0; i < SIM_MAX_FAULTS; i++) {
        const struct sim_fault *fault = &faults->armed[i].fault;
        if (!is_meant(&faults->armed[i], symbol))
            continue;
        struct timespec delay = {.tv_sec = fault->delay_us / 1000000,
                                 .tv_nsec = (long)(fault->delay_us % 1000000) * 1000};
        if (fault->delay_us > 0)
            nanosleep(&delay, NULL);
        if (fault->signal != 0)
            raise(fault->signal);
        if (answer == SIM_PASS)
            answer = fault->code;
    }
    return answer;
}
