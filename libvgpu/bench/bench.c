/* bench-vgpu: what libvgpu adds to a call. The same program, bare and preloaded, in turn, over a driver that costs next
 * to nothing; one JSON object a line. README.md says what the numbers are good for. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure.h"
#include "sandbox.h"

#define IDLE_PROCESSES 63
#define MAX_ROUNDS 99
#define NULL_DRIVER "LD_LIBRARY_PATH=" VGPU_BINARY_DIR "/bench/driver:" VGPU_BINARY_DIR "/sim"
#define SIMULATED_DRIVER "LD_LIBRARY_PATH=" VGPU_BINARY_DIR "/sim"

static const char usage_text[] =
    "usage: bench-vgpu [--only NAME]... [--rounds N] [--seconds N] [--check-budgets]\n"
    "\n"
    "Measures what libvgpu adds to driver calls; one JSON object a line on stdout, what is under way on stderr.\n"
    "Modes: bare (no libvgpu), hooked (preloaded, no limits), limited (below memory and core limits).\n"
    "\n"
    "  --only NAME       launch, alloc_free, free_unknown, mem_info, get_proc_address, cuinit or throttle_wall\n"
    "  --rounds N        processes started for each mode, in turn (default 9)\n"
    "  --seconds N       how long throttle_wall runs for each share (default 5)\n"
    "  --check-budgets   adds a row for each budget, PASS or MISS\n"
    "\n"
    "exit status: 0 done, 1 something failed or (with --check-budgets) a budget is missed, 2 wrong use\n";

enum mode { BARE, HOOKED, LIMITED, MODES };
static const char *const mode_names[MODES] = {"bare", "hooked", "limited"};

struct bench {
    const char *name;
    const char *entry;    /* which of several functions, or NULL */
    const char *measured; /* what measure() calls it */
    unsigned long live;
    unsigned processes; /* attached to the region at the time, the measured one included */
    double budget_ns;   /* for what is added; 0 = none */
};

static const struct bench benches[] = {
    {"launch", "cuLaunchKernel", "launch", 0, 1, 40},
    {"launch", "cuLaunchKernel", "launch", 0, 1 + IDLE_PROCESSES, 40},
    {"launch", "cuLaunchKernelEx", "launch_ex", 0, 1, 40},
    {"launch", "cuGraphLaunch", "launch_graph", 0, 1, 40},
    {"alloc_free", NULL, "alloc_free", 1, 1, 400},
    {"alloc_free", NULL, "alloc_free", 1000, 1, 400},
    {"alloc_free", NULL, "alloc_free", 100000, 1, 400},
    {"alloc_free", NULL, "alloc_free", 1, 1 + IDLE_PROCESSES, 400},
    {"alloc_free", NULL, "alloc_free", 1000, 1 + IDLE_PROCESSES, 400},
    {"alloc_free", NULL, "alloc_free", 100000, 1 + IDLE_PROCESSES, 400},
    {"free_unknown", NULL, "free_unknown", 1000, 1, 0},
    {"mem_info", NULL, "mem_info", 0, 1, 0},
    {"mem_info", NULL, "mem_info", 0, 1 + IDLE_PROCESSES, 0},
    {"get_proc_address", NULL, "get_proc_address", 0, 1, 0},
    {"cuinit", NULL, "cuinit", 0, 1, 5e6},
    {"cuinit", NULL, "cuinit", 0, 1 + IDLE_PROCESSES, 5e6},
};
#define BENCHES (sizeof benches / sizeof benches[0])

struct options {
    const char *only[16];
    unsigned only_count;
    unsigned rounds;
    unsigned seconds;
    bool check_budgets;
};

struct result {
    double minimum, median;
};

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

static double median_of(double *values, unsigned count) {
    qsort(values, count, sizeof values[0], compare);
    return values[count / 2];
}

/* One process. False when it failed, having said why. */
static bool run_once(const struct sandbox *sandbox, enum mode mode, const char *measured, unsigned long live,
                     struct result *result) {
    char output[SANDBOX_OUTPUT], live_text[32];
    snprintf(live_text, sizeof live_text, "%lu", live);
    const char *const environment[] = {NULL_DRIVER, mode == LIMITED ? "CUDA_DEVICE_MEMORY_LIMIT=30000m" : NULL,
                                       "CUDA_DEVICE_SM_LIMIT=50", "GPU_CORE_UTILIZATION_POLICY=FORCE", NULL};
    int status = sandbox_run(sandbox, mode != BARE, environment,
                             (const char *[]){sandbox_self(), "--measure", measured, live_text, NULL}, output);
    const char *value = strstr(output, "value ");
    if (status == 0 && value != NULL && sscanf(value, "value %lf %lf", &result->minimum, &result->median) == 2)
        return true;
    fprintf(stderr, "bench-vgpu: %s, %s, ended with status %d: %s\n", measured, mode_names[mode], status, output);
    return false;
}

static bool start_idle(const struct sandbox *sandbox, struct sandbox_process *idle, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        idle[i] = sandbox_start(sandbox, true, (const char *[]){NULL_DRIVER, NULL},
                                (const char *[]){sandbox_self(), "--measure", "idle", "0", NULL});
    bool ready = true;
    for (unsigned i = 0; i < count; i++)
        ready &= sandbox_await(&idle[i], "ready");
    return ready;
}

static void stop_idle(const struct sandbox_process *idle, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        kill(idle[i].pid, SIGKILL);
        (void)sandbox_finish(&idle[i], NULL);
    }
}

static bool measure_modes(const struct sandbox *sandbox, const struct bench *bench, unsigned rounds,
                          struct result results[MODES]) {
    double minima[MODES][MAX_ROUNDS], medians[MODES][MAX_ROUNDS];
    for (unsigned round = 0; round < rounds; round++)
        for (enum mode mode = BARE; mode < MODES; mode++) {
            struct result once;
            if (!run_once(sandbox, mode, bench->measured, bench->live, &once))
                return false;
            minima[mode][round] = once.minimum;
            medians[mode][round] = once.median;
        }
    for (enum mode mode = BARE; mode < MODES; mode++)
        results[mode] = (struct result){median_of(minima[mode], rounds), median_of(medians[mode], rounds)};
    return true;
}

static void print_subject(const struct bench *bench, enum mode mode) {
    printf("\"mode\":\"%s\",", mode_names[mode]);
    if (bench->entry != NULL)
        printf("\"entry\":\"%s\",", bench->entry);
    printf("\"live\":%lu,\"processes\":%u,", bench->live, bench->processes);
}

/* Returns how many budgets were missed. */
static unsigned print_rows(const struct bench *bench, const struct options *options,
                           const struct result results[MODES]) {
    unsigned missed = 0;
    for (enum mode mode = BARE; mode < MODES; mode++) {
        printf("{\"bench\":\"%s\",", bench->name);
        print_subject(bench, mode);
        printf("\"ns\":%.1f,\"ns_median\":%.1f,\"rounds\":%u}\n", results[mode].minimum, results[mode].median,
               options->rounds);
    }
    for (enum mode mode = HOOKED; mode < MODES && options->check_budgets && bench->budget_ns > 0; mode++) {
        double added = results[mode].minimum - results[BARE].minimum;
        bool kept = added <= bench->budget_ns;
        missed += !kept;
        printf("{\"budget\":\"%s\",", bench->name);
        print_subject(bench, mode);
        printf("\"added_ns\":%.1f,\"budget_ns\":%.0f,\"result\":\"%s\"}\n", added, bench->budget_ns,
               kept ? "PASS" : "MISS");
    }
    fflush(stdout);
    return missed;
}

static bool run_bench(const struct bench *bench, const struct options *options, unsigned *missed) {
    struct sandbox sandbox = sandbox_make();
    struct sandbox_process idle[IDLE_PROCESSES];
    struct result results[MODES], discarded;
    fprintf(stderr, "bench-vgpu: %s%s%s, %lu live, %u processes\n", bench->name, bench->entry == NULL ? "" : " by ",
            bench->entry == NULL ? "" : bench->entry, bench->live, bench->processes);
    bool done = start_idle(&sandbox, idle, bench->processes - 1) &&
                run_once(&sandbox, HOOKED, bench->measured, bench->live, &discarded) && /* makes the region */
                measure_modes(&sandbox, bench, options->rounds, results);
    stop_idle(idle, bench->processes - 1);
    sandbox_remove(&sandbox);
    if (done)
        *missed += print_rows(bench, options, results);
    return done;
}

/* Requested against held, on the wall clock: kernels of a millisecond on the simulated card, which runs one at a time.
 */
static bool run_throttle(const struct options *options) {
    static const unsigned requested[] = {100, 90, 50, 30, 10};
    for (size_t i = 0; i < sizeof requested / sizeof requested[0]; i++) {
        char output[SANDBOX_OUTPUT], limit[64], seconds[16];
        double held = 0;
        unsigned long long launches = 0;
        struct sandbox sandbox = sandbox_make();
        snprintf(limit, sizeof limit, "CUDA_DEVICE_SM_LIMIT=%u", requested[i]);
        snprintf(seconds, sizeof seconds, "%u", options->seconds);
        fprintf(stderr, "bench-vgpu: throttle_wall, %u %%, %s seconds\n", requested[i], seconds);
        const char *const environment[] = {SIMULATED_DRIVER, "HAMI_SIM_KERNEL_MICROSECONDS=1000",
                                           "GPU_CORE_UTILIZATION_POLICY=FORCE", limit, NULL};
        int status = sandbox_run(&sandbox, true, environment,
                                 (const char *[]){sandbox_self(), "--measure", "throttle_wall", seconds, NULL}, output);
        sandbox_remove(&sandbox);
        const char *value = strstr(output, "value ");
        if (status != 0 || value == NULL || sscanf(value, "value %lf %llu", &held, &launches) != 2) {
            fprintf(stderr, "bench-vgpu: throttle_wall ended with status %d: %s\n", status, output);
            return false;
        }
        printf("{\"bench\":\"throttle_wall\",\"requested\":%u,\"held\":%.1f,\"launches\":%llu,\"seconds\":%s}\n",
               requested[i], held, launches, seconds);
        fflush(stdout);
    }
    return true;
}

static bool is_wanted(const struct options *options, const char *name) {
    for (unsigned i = 0; i < options->only_count; i++)
        if (strcmp(options->only[i], name) == 0)
            return true;
    return options->only_count == 0;
}

static bool is_known(const char *name) {
    bool known = strcmp(name, "throttle_wall") == 0;
    for (size_t i = 0; i < BENCHES; i++)
        known |= strcmp(benches[i].name, name) == 0;
    return known;
}

static bool read_count(const char *text, unsigned most, unsigned *count) {
    char *end = NULL;
    unsigned long number = strtoul(text, &end, 10);
    *count = (unsigned)number;
    return *end == '\0' && number >= 1 && number <= most;
}

static bool read_options(int argc, char **argv, struct options *options) {
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--check-budgets") == 0)
            options->check_budgets = true;
        else if (strcmp(argv[i], "--rounds") == 0 && read_count(value, MAX_ROUNDS, &options->rounds))
            i++;
        else if (strcmp(argv[i], "--seconds") == 0 && read_count(value, 600, &options->seconds))
            i++;
        else if (strcmp(argv[i], "--only") == 0 && is_known(value) && options->only_count < 16)
            options->only[options->only_count++] = argv[++i];
        else
            return false;
    }
    return true;
}

int main(int argc, char **argv) {
    struct options options = {.rounds = 9, .seconds = 5};
    unsigned missed = 0;
    bool done = true;
    if (argc == 4 && strcmp(argv[1], "--measure") == 0)
        return measure(argv[2], strtoul(argv[3], NULL, 10));
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        fputs(usage_text, stdout);
        return 0;
    }
    if (!read_options(argc, argv, &options)) {
        fputs(usage_text, stderr);
        return 2;
    }
    for (size_t i = 0; i < BENCHES; i++)
        if (is_wanted(&options, benches[i].name))
            done = run_bench(&benches[i], &options, &missed) && done;
    if (is_wanted(&options, "throttle_wall"))
        done = run_throttle(&options) && done;
    if (missed > 0)
        fprintf(stderr, "bench-vgpu: %u budgets missed\n", missed);
    return done && missed == 0 ? 0 : 1;
}
