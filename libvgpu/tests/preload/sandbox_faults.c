#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "faults.h"
#include "sandbox.h"

static struct sim_faults *faults_of(const struct sandbox *sandbox) {
    static struct sim_faults *faults;
    static char opened[256];
    char path[256];
    if (sandbox == NULL)
        snprintf(path, sizeof path, "%s.state", getenv("HAMI_SIM_DRIVER"));
    else
        snprintf(path, sizeof path, "%s/node.json.state", sandbox->directory);
    if (faults == NULL || strcmp(opened, path) != 0) {
        faults = sim_faults_open(path);
        snprintf(opened, sizeof opened, "%s", path);
    }
    if (faults == NULL) {
        perror(path);
        exit(1);
    }
    return faults;
}

static struct sim_symbol symbol_of(const char *name) {
    struct sim_symbol symbol = {.number = 0};
    if (!sim_symbol_find(name, &symbol)) {
        fprintf(stderr, "the simulated driver has no %s\n", name);
        exit(1);
    }
    return symbol;
}

void sandbox_fail(const struct sandbox *sandbox, const char *symbol, int code, uint64_t after, uint64_t times) {
    struct sim_fault fault = {.symbol = symbol_of(symbol), .code = code, .after = after, .times = times};
    if (!sim_faults_arm(faults_of(sandbox), &fault)) {
        fprintf(stderr, "too many faults are armed\n");
        exit(1);
    }
}

void sandbox_heal(const struct sandbox *sandbox) {
    sim_faults_clear(faults_of(sandbox));
}

bool sandbox_has_met(const struct sandbox *sandbox, const char *symbol) {
    const struct sim_faults *faults = faults_of(sandbox);
    struct sim_symbol wanted = symbol_of(symbol);
    for (int i = 0; i < SIM_MAX_FAULTS; i++) {
        const struct sim_armed_fault *armed = &faults->armed[i];
        const struct sim_symbol *of = &armed->fault.symbol;
        if (atomic_load(&armed->calls) > armed->fault.after && of->table == wanted.table && of->number == wanted.number)
            return true;
    }
    return false;
}

void sandbox_count_calls(const struct sandbox *sandbox) {
    sim_faults_count(faults_of(sandbox), true);
}

uint64_t sandbox_calls(const struct sandbox *sandbox, const char *symbol) {
    struct sim_symbol found = symbol_of(symbol);
    return atomic_load(&faults_of(sandbox)->calls[found.table][found.number]);
}
