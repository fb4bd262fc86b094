/* A small coverage-guided fuzzer, for compilers that have coverage callbacks but no libFuzzer (gcc). It takes
 * libFuzzer's own options, so that with clang a target can be linked against that instead.
 *
 *     fuzz-NAME [CORPUS] [SEEDS] [-max_total_time=S] [-runs=N] [-seed=N] [-max_len=N] [-timeout=S] [-artifact_prefix=P]
 *     fuzz-NAME FILE...                                                        tries each once
 *
 * What is learned is written into CORPUS, the first of two folders; a folder alone is read only.
 *
 * An input that reaches a branch (or a new count of passes) that none before did is kept and mutated further; what the
 * code compares with constants is put into inputs. A finding ends the program with a status other than 0, its input
 * written to PREFIXcrash; so does a call that takes the processor for longer than -timeout. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MOST_BYTES 65536
#define MOST_INPUTS 4096
#define EDGES 65536
#define CONSTANTS 1024

/* ---- what the instrumented code reports ---- */

static uint8_t passes[EDGES]; /* by edge, of the input under way */
static uint8_t seen[EDGES];   /* by edge, one bit for each magnitude of passes that any input had */
static uintptr_t former;
static uint64_t constants[CONSTANTS];
static unsigned constant_count;

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) {
    uintptr_t here = (uintptr_t)__builtin_return_address(0);
    uint8_t *count = &passes[(here ^ former) % EDGES];
    former = here << 1;
    *count = (uint8_t)(*count + (*count < UINT8_MAX));
}

static void note_constant(uint64_t value) {
    if (value > 1 && constant_count < CONSTANTS) {
        for (unsigned i = 0; i < constant_count; i++)
            if (constants[i] == value)
                return;
        constants[constant_count++] = value;
    }
}

/* gcc passes the constant first. */
#define COMPARED(bits, type)                                                                                           \
    void __sanitizer_cov_trace_cmp##bits(type, type);                                                                  \
    void __sanitizer_cov_trace_cmp##bits(type a, type b) {                                                             \
        (void)a, (void)b;                                                                                              \
    }                                                                                                                  \
    void __sanitizer_cov_trace_const_cmp##bits(type, type);                                                            \
    void __sanitizer_cov_trace_const_cmp##bits(type a, type b) {                                                       \
        (void)b;                                                                                                       \
        note_constant(a);                                                                                              \
    }
COMPARED(1, uint8_t)
COMPARED(2, uint16_t)
COMPARED(4, uint32_t)
COMPARED(8, uint64_t)

void __sanitizer_cov_trace_cmpf(float, float);
void __sanitizer_cov_trace_cmpf(float a, float b) {
    (void)a, (void)b;
}

void __sanitizer_cov_trace_cmpd(double, double);
void __sanitizer_cov_trace_cmpd(double a, double b) {
    (void)a, (void)b;
}

void __sanitizer_cov_trace_switch(uint64_t, uint64_t *);
void __sanitizer_cov_trace_switch(uint64_t value, uint64_t *cases) {
    (void)value;
    for (uint64_t i = 0; i < cases[0]; i++)
        note_constant(cases[2 + i]);
}

/* ---- inputs ---- */

struct input {
    size_t size;
    uint8_t *bytes;
};
static struct input inputs[MOST_INPUTS];
static unsigned input_count;

static uint8_t current[MOST_BYTES]; /* the input under way */
static size_t current_size;

static struct {
    const char *folders[2];
    unsigned folder_count;
    unsigned long seconds, runs, seed, most_bytes, timeout;
    const char *prefix;
} options = {.seed = 1, .most_bytes = 4096, .timeout = 5, .prefix = "./"};

static uint64_t random_state;
static unsigned long executed;

static uint64_t draw(uint64_t below) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 0x2545f4914f6cdd1dull % below;
}

/* ---- findings: written by whatever ends the program ---- */

void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void write_finding(void) {
    char path[512];
    snprintf(path, sizeof path, "%scrash", options.prefix);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file >= 0) {
        (void)!write(file, current, current_size);
        close(file);
    }
    fprintf(stderr, "the input of %zu bytes is in %s\n", current_size, path);
}

static void end_by_signal(int number) {
    fprintf(stderr, "%s\n", number == SIGPROF ? "one call takes too long" : "aborted");
    write_finding();
    _exit(1);
}

/* ---- running ---- */

static uint8_t magnitude(uint8_t count) {
    static const uint8_t limits[] = {1, 2, 3, 4, 8, 16, 32};
    uint8_t bit = 0;
    while (bit < sizeof limits && count >= limits[bit])
        bit++;
    return (uint8_t)(1u << (bit - 1));
}

/* By the time that this program has had a processor: others on the machine may keep it waiting. */
static void set_alarm(unsigned long seconds) {
    const struct itimerval timer = {.it_value = {.tv_sec = (time_t)seconds}};
    (void)setitimer(ITIMER_PROF, &timer, NULL);
}

/* Whether it went where none before did. The input is on the heap, of its exact size: reading behind it is noticed. */
static bool run_current(void) {
    bool new_ground = false;
    uint8_t *exact = malloc(current_size == 0 ? 1 : current_size);
    if (exact == NULL)
        abort();
    memcpy(exact, current, current_size);
    memset(passes, 0, sizeof passes);
    former = 0;
    set_alarm(options.timeout);
    (void)LLVMFuzzerTestOneInput(exact, current_size);
    set_alarm(0);
    free(exact);
    executed++;
    for (size_t i = 0; i < EDGES; i++) {
        uint64_t eight = 0;
        if (i % 8 == 0 && memcpy(&eight, passes + i, 8) != NULL && eight == 0)
            i += 7; /* most are untouched */
        if (passes[i] == 0)
            continue;
        uint8_t bit = magnitude(passes[i]);
        new_ground |= (seen[i] & bit) == 0;
        seen[i] |= bit;
    }
    return new_ground;
}

static void keep_current(bool store) {
    if (input_count == MOST_INPUTS)
        return;
    struct input *kept = &inputs[input_count];
    kept->bytes = malloc(current_size == 0 ? 1 : current_size);
    if (kept->bytes == NULL)
        return;
    memcpy(kept->bytes, current, current_size);
    kept->size = current_size;
    input_count++;
    if (store && options.folder_count == 2) {
        char path[512];
        uint64_t hash = 0xcbf29ce484222325ull;
        for (size_t i = 0; i < current_size; i++)
            hash = (hash ^ current[i]) * 0x100000001b3ull;
        snprintf(path, sizeof path, "%s/%016llx", options.folders[0], (unsigned long long)hash);
        int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        if (file >= 0) {
            (void)!write(file, current, current_size);
            close(file);
        }
    }
}

static bool load_file(const char *path) {
    int file = open(path, O_RDONLY);
    ssize_t got = file < 0 ? -1 : read(file, current, sizeof current);
    if (file >= 0)
        close(file);
    current_size = got < 0 ? 0 : (size_t)got;
    return got >= 0;
}

static void load_folder(const char *folder) {
    DIR *opened = opendir(folder);
    for (struct dirent *entry; opened != NULL && (entry = readdir(opened)) != NULL;) {
        char path[1024];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (!load_file(path))
            continue;
        if (current_size > options.most_bytes)
            current_size = options.most_bytes;
        if (run_current())
            keep_current(false);
    }
    if (opened != NULL)
        closedir(opened);
}

/* ---- mutations of `current` ---- */

static void insert(size_t at, const uint8_t *bytes, size_t count) {
    if (count > options.most_bytes - current_size)
        count = options.most_bytes - current_size;
    memmove(current + at + count, current + at, current_size - at);
    memcpy(current + at, bytes, count);
    current_size += count;
}

static void overwrite(size_t at, const uint8_t *bytes, size_t count) {
    if (at + count > current_size)
        count = current_size - at;
    memcpy(current + at, bytes, count);
}

static void put_constant(size_t at) {
    uint8_t bytes[8];
    static const uint8_t widths[] = {1, 2, 4, 8};
    uint64_t value = constant_count == 0 ? draw(256) : constants[draw(constant_count)] + draw(3) - 1;
    size_t width = widths[draw(4)];
    for (size_t i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    if (draw(2) == 0)
        insert(at, bytes, width);
    else
        overwrite(at, bytes, width);
}

static void cross(size_t at) {
    static uint8_t piece[MOST_BYTES];
    const struct input *other = &inputs[draw(input_count)];
    if (other->size == 0)
        return;
    size_t from = draw(other->size), count = 1 + draw(other->size - from);
    memcpy(piece, other->bytes + from, count);
    if (draw(2) == 0)
        insert(at, piece, count);
    else
        overwrite(at, piece, count);
}

static void erase(size_t at) {
    size_t count = current_size == at ? 0 : 1 + draw(current_size - at < 16 ? current_size - at : 16);
    memmove(current + at, current + at + count, current_size - at - count);
    current_size -= count;
}

static void mutate(void) {
    size_t at = draw(current_size + 1);
    uint8_t any = (uint8_t)draw(256);
    switch (draw(8)) {
    case 0:
        if (at < current_size)
            current[at] ^= (uint8_t)(1u << draw(8));
        break;
    case 1:
        overwrite(at, &any, 1);
        break;
    case 2:
        insert(at, &any, 1);
        break;
    case 3:
        erase(at);
        break;
    case 4:
    case 5:
        put_constant(at);
        break;
    case 6:
        cross(at);
        break;
    default:
        if (at < current_size)
            current[at] = (uint8_t)(current[at] + draw(17) - 8);
        break;
    }
}

static void fuzz(void) {
    time_t end = time(NULL) + (time_t)options.seconds;
    while ((options.runs == 0 || executed < options.runs) && (options.seconds == 0 || time(NULL) < end)) {
        /* Late ones found the rarer ground: half of the time one of the newest is taken. */
        unsigned newest = input_count < 32 ? input_count : 32;
        const struct input *chosen =
            draw(2) == 0 ? &inputs[draw(input_count)] : &inputs[input_count - 1 - draw(newest)];
        memcpy(current, chosen->bytes, chosen->size);
        current_size = chosen->size;
        for (uint64_t changes = 1 + draw(6); changes > 0; changes--)
            mutate();
        if (run_current())
            keep_current(true);
    }
}

static bool number_of(const char *word, const char *name, unsigned long *value) {
    size_t length = strlen(name);
    if (strncmp(word, name, length) != 0)
        return false;
    *value = strtoul(word + length, NULL, 10);
    return true;
}

/* False: the word is none of ours (others of libFuzzer's are passed over). */
static void read_option(const char *word) {
    if (strncmp(word, "-artifact_prefix=", 17) == 0)
        options.prefix = word + 17;
    (void)(number_of(word, "-max_total_time=", &options.seconds) || number_of(word, "-runs=", &options.runs) ||
           number_of(word, "-seed=", &options.seed) || number_of(word, "-max_len=", &options.most_bytes) ||
           number_of(word, "-timeout=", &options.timeout));
    if (options.most_bytes == 0 || options.most_bytes > MOST_BYTES)
        options.most_bytes = MOST_BYTES;
}

int main(int argc, char **argv) {
    unsigned files = 0;
    struct stat status;
    signal(SIGPROF, end_by_signal);
    signal(SIGABRT, end_by_signal);
    if (__sanitizer_set_death_callback != NULL)
        __sanitizer_set_death_callback(write_finding);
    for (int i = 1; i < argc; i++)
        if (argv[i][0] == '-')
            read_option(argv[i]);
        else if (stat(argv[i], &status) == 0 && S_ISDIR(status.st_mode) && options.folder_count < 2)
            options.folders[options.folder_count++] = argv[i];
        else if (load_file(argv[i]) && ++files > 0)
            (void)run_current();
        else {
            fprintf(stderr, "%s cannot be read\n", argv[i]);
            return 2;
        }
    if (files > 0)
        return 0;
    random_state = options.seed * 0x9e3779b97f4a7c15ull + 1;
    current_size = 0;
    (void)run_current();
    keep_current(false);
    for (unsigned i = 0; i < options.folder_count; i++)
        load_folder(options.folders[i]);
    fuzz();
    printf("stat::number_of_executed_units: %lu\nstat::inputs_kept: %u\n", executed, input_count);
    return 0;
}
