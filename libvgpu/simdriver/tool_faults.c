/* The commands of sim-driver that make calls fail, or count them. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "faults.h"
#include "tool.h"

static bool is_one_of(const char *word, const char *const words[]) {
    for (; *words != NULL; words++)
        if (strcmp(word, *words) == 0)
            return true;
    return false;
}

/* --name N pairs. */
static bool read_options(char **words, int count, bool needs_code, struct sim_fault *fault) {
    bool has_code = false;
    for (int i = 0; i < count; i += 2) {
        unsigned long long number = 0;
        if (i + 1 >= count || !tool_read_number(words[i + 1], &number) || number > INT32_MAX)
            return false;
        if (strcmp(words[i], "--code") == 0 && needs_code) {
            fault->code = (int32_t)number;
            has_code = true;
        } else if (strcmp(words[i], "--after") == 0) {
            fault->after = number;
        } else if (strcmp(words[i], "--times") == 0) {
            fault->times = number;
        } else if (strcmp(words[i], "--pid") == 0) {
            fault->pid = (int32_t)number;
        } else if (strcmp(words[i], "--microseconds") == 0 && fault->signal == 0) {
            fault->delay_us = (uint32_t)number;
        } else {
            return false;
        }
    }
    return has_code == needs_code;
}

static int arm(struct sim_faults *faults, char **words, int count) {
    struct sim_fault fault = {.code = SIM_PASS};
    bool fails = strcmp(words[0], "fail") == 0;
    if (strcmp(words[0], "kill") == 0)
        fault.signal = SIGKILL;
    if (count < 2 || !read_options(words + 2, count - 2, fails, &fault) ||
        (strcmp(words[0], "slow") == 0 && fault.delay_us == 0))
        return tool_wrong_use();
    if (!sim_symbol_find(words[1], &fault.symbol)) {
        fprintf(stderr, "sim-driver: the simulated driver has no \"%s\" that returns a code\n", words[1]);
        return 1;
    }
    if (!sim_faults_arm(faults, &fault)) {
        fprintf(stderr, "sim-driver: %d faults are armed, which is all there is room for; \"heal\" forgets them\n",
                SIM_MAX_FAULTS);
        return 1;
    }
    return 0;
}

static int run(struct sim_faults *faults, char **words, int count) {
    if (strcmp(words[0], "heal") == 0 && count == 1) {
        sim_faults_clear(faults);
        return 0;
    }
    if (strcmp(words[0], "count") == 0) {
        if (count != 2 || !is_one_of(words[1], (const char *const[]){"on", "off", NULL}))
            return tool_wrong_use();
        sim_faults_count(faults, strcmp(words[1], "on") == 0);
        return 0;
    }
    return strcmp(words[0], "heal") == 0 ? tool_wrong_use() : arm(faults, words, count);
}

bool tool_run_fault_command(const char *state_directory, char **words, int count, int *status) {
    if (!is_one_of(words[0], (const char *const[]){"fail", "slow", "kill", "heal", "count", NULL}))
        return false;
    struct sim_faults *faults = sim_faults_open(state_directory);
    if (faults == NULL) {
        fprintf(stderr, "sim-driver: faults.bin in %s cannot be opened\n", state_directory);
        *status = 1;
        return true;
    }
    *status = run(faults, words, count);
    return true;
}

void tool_print_calls(const char *state_directory) {
    struct sim_faults *faults = sim_faults_open(state_directory);
    const char *name = NULL;
    bool first = true;
    printf("{");
    for (enum sim_table table = SIM_TABLE_CUDA; faults != NULL && table <= SIM_TABLE_NVML; table++)
        for (unsigned i = 0; (name = sim_symbol_name((struct sim_symbol){.table = table, .number = i})) != NULL; i++) {
            uint64_t calls = atomic_load(&faults->calls[table][i]);
            if (calls == 0)
                continue;
            printf("%s\"%s\": %llu", first ? "" : ", ", name, (unsigned long long)calls);
            first = false;
        }
    printf("}");
}
