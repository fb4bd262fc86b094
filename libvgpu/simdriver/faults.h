/* Faults on purpose, and counted calls: what `sim-driver fail` and tests put into the machine's shared `faults.bin`,
 * and every process's entry points (entry.h) ask before the driver's own function runs.
 *
 * The file needs no lock and no set-up: zeros mean that nothing is wrong and nothing is counted. */
#ifndef SIM_FAULTS_H
#define SIM_FAULTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SIM_MAX_FAULTS 64
#define SIM_MAX_ENTRIES 1024 /* symbols of one table */
#define SIM_PASS (-1)        /* no fault: the driver's function runs */

enum sim_table { SIM_TABLE_CUDA, SIM_TABLE_NVML };

struct sim_symbol {
    enum sim_table table;
    unsigned number; /* its row in hooks/cuda.def or nvml.def */
};

/* What shall happen to calls of one symbol. */
struct sim_fault {
    struct sim_symbol symbol;
    int32_t code;      /* what the call returns; SIM_PASS: it is only slowed */
    int32_t pid;       /* of the process meant, as it sees itself; 0 = any */
    int32_t signal;    /* what the caller gets sent at the call; 0 = nothing */
    uint32_t delay_us; /* how much longer the call takes */
    uint64_t after;    /* so many calls come through first */
    uint64_t times;    /* then so many are struck; 0 = all */
};

struct sim_armed_fault {
    _Atomic uint32_t state; /* enum in faults.c */
    uint32_t reserved;
    struct sim_fault fault;
    _Atomic uint64_t calls; /* of its symbol, since it was armed */
};

struct sim_faults {
    _Atomic uint32_t watched; /* faults armed, plus one while calls are counted: 0 lets every entry go straight on */
    _Atomic uint32_t counting;
    struct sim_armed_fault armed[SIM_MAX_FAULTS];
    _Atomic uint64_t calls[2][SIM_MAX_ENTRIES]; /* by table */
};

/* Maps `faults.bin` of a state directory, which is made if need be. NULL when that cannot be done. */
struct sim_faults *sim_faults_open(const char *state_directory);

/* The symbol of a name. False: the simulated driver has none such, or one that returns no code. */
bool sim_symbol_find(const char *name, struct sim_symbol *symbol);

/* The name of a symbol; NULL beyond the last. */
const char *sim_symbol_name(struct sim_symbol symbol);

/* Arms a fault. False: too many are. */
bool sim_faults_arm(struct sim_faults *faults, const struct sim_fault *fault);

/* Forgets all faults; what has been counted stays. */
void sim_faults_clear(struct sim_faults *faults);

/* Begins to count calls, from zero, or ends it. */
void sim_faults_count(struct sim_faults *faults, bool on);

/* One call of a symbol by this process: waits, raises the signal, and returns the code to answer with, or SIM_PASS. */
int sim_faults_strike(struct sim_faults *faults, struct sim_symbol symbol);

#endif
