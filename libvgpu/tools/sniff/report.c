#include "report.h"

#include <stdlib.h>
#include <string.h>

#include "vgpu/abi/cuda_fn.h"

/* ---- what the tables know ---- */

enum verdict { NOT_FOUND, UNKNOWN, FORWARDS, HOLDS, LEFT_ALONE };
static const char *const verdicts[] = {"not found", "unknown", "forwards", "holds", "forwards"};

enum { legacy = VG_PROC_ADDRESS_LEGACY_STREAM, per_thread = VG_PROC_ADDRESS_PER_THREAD_STREAM };

static const struct {
    const char *symbol, *base; /* NVML's have no base */
    int version;
    unsigned streams;
    enum verdict verdict;
} known[] = {
#define CUDA_HOOK(symbol, base, type, version, streams, area) {#symbol, #base, version, streams, HOLDS},
#define CUDA_CALL(symbol, base, type, version, streams, area) {#symbol, #base, version, streams, FORWARDS},
#define CUDA_NAME(symbol, base, version, streams) {#symbol, #base, version, streams, FORWARDS},
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME
#define NVML_HOOK(symbol, type, area) {#symbol, "", 0, legacy, HOLDS},
#define NVML_CALL(symbol, type, area) {#symbol, "", 0, legacy, FORWARDS},
#define NVML_NAME(symbol) {#symbol, "", 0, legacy, FORWARDS},
#include "nvml.def"
#undef NVML_HOOK
#undef NVML_CALL
#undef NVML_NAME
};
#define KNOWN (sizeof known / sizeof known[0])

static enum verdict verdict_of(const char *symbol) {
    for (size_t i = 0; i < KNOWN; i++)
        if (strcmp(known[i].symbol, symbol) == 0)
            return known[i].verdict;
    return UNKNOWN;
}

/* The exported symbol that cuGetProcAddress means by the question; NULL for names and versions we do not know. */
static const char *symbol_of(const char *base, int version, unsigned flags) {
    const char *best = NULL;
    int best_version = -1;
    bool best_threaded = false;
    for (size_t i = 0; *base != '\0' && i < KNOWN; i++) { /* runtimes begin with an empty name */
        bool threaded = known[i].streams == per_thread;
        if (strcmp(known[i].base, base) != 0 || known[i].version > version || (threaded && (flags & per_thread) == 0))
            continue;
        if (threaded != best_threaded ? threaded : known[i].version >= best_version) {
            best = known[i].symbol;
            best_version = known[i].version;
            best_threaded = threaded;
        }
    }
    return best;
}

/* ---- rows: equal events together ---- */

#define MAX_ASKERS 8

struct row {
    enum sniff_how how;
    const char *name;
    const char *symbol;
    int version;
    unsigned flags;
    bool found;
    unsigned long times;
    unsigned askers;
    const char *asked_by[MAX_ASKERS];
    enum verdict verdict;
};

static const char *const ways[] = {"", "linked", "dlsym", "dlvsym", "cuGetProcAddress", "cuGetExportTable"};

static bool is_same(const struct row *row, const struct sniff_event *event) {
    return row->how == (enum sniff_how)event->how && row->version == event->version && row->flags == event->flags &&
           row->found == (event->result == 0) && strcmp(row->name, event->name) == 0;
}

static void add_asker(struct row *row, const char *name) {
    for (unsigned i = 0; i < row->askers; i++)
        if (strcmp(row->asked_by[i], name) == 0)
            return;
    if (row->askers < MAX_ASKERS && *name != '\0')
        row->asked_by[row->askers++] = name;
}

static struct row row_of(const struct sniff_event *event) {
    struct row row = {.how = (enum sniff_how)event->how,
                      .name = event->name,
                      .symbol = event->name,
                      .version = event->version,
                      .flags = event->flags,
                      .found = event->result == 0};
    if (row.how == SNIFF_GET_PROC_ADDRESS) {
        const char *symbol = symbol_of(event->name, event->version, event->flags);
        row.symbol = symbol != NULL ? symbol : event->name;
        row.verdict = !row.found ? NOT_FOUND : symbol != NULL ? verdict_of(symbol) : UNKNOWN;
    } else {
        row.verdict = row.how == SNIFF_EXPORT_TABLE ? LEFT_ALONE : verdict_of(event->name);
    }
    return row;
}

/* A library may leave a name like the driver's to somebody else. */
static bool is_the_drivers(const struct sniff_event *event) {
    return event->how != SNIFF_LINKED || event->needs_driver || verdict_of(event->name) != UNKNOWN;
}

static int compare_rows(const void *left, const void *right) {
    const struct row *a = left, *b = right;
    int order = strcmp(a->symbol, b->symbol);
    if (order == 0)
        order = (int)a->how - (int)b->how;
    if (order == 0)
        order = a->version != b->version ? (a->version < b->version ? -1 : 1) : (int)a->flags - (int)b->flags;
    return order;
}

static struct row *collect(const struct sniff_log *log, unsigned events, unsigned *count) {
    struct row *rows = calloc(events + 1, sizeof *rows);
    *count = 0;
    for (unsigned i = 0; rows != NULL && i < events; i++) {
        const struct sniff_event *event = &log->event[i];
        unsigned at = 0;
        if (!atomic_load_explicit(&event->written, memory_order_acquire) || !is_the_drivers(event))
            continue;
        while (at < *count && !is_same(&rows[at], event))
            at++;
        if (at == *count)
            rows[(*count)++] = row_of(event);
        rows[at].times++;
        add_asker(&rows[at], event->asked_by);
    }
    if (rows != NULL)
        qsort(rows, *count, sizeof *rows, compare_rows);
    return rows;
}

/* ---- printing ---- */

static void print_text(FILE *out, const char *text) {
    fputc('"', out);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == '"' || c == '\\')
            fprintf(out, "\\u%04x", c);
        else
            fputc(c, out);
    }
    fputc('"', out);
}

static void print_json(FILE *out, const struct row *rows, unsigned count, const struct sniff_log *log,
                       unsigned long dropped, const struct sniff_ending *ending) {
    fprintf(out, "{\"command\": [");
    for (unsigned i = 0; ending->argv[i] != NULL; i++) {
        fputs(i == 0 ? "" : ", ", out);
        print_text(out, ending->argv[i]);
    }
    fprintf(out, "], \"exit_status\": %d, \"programs\": %u, \"dropped\": %lu, \"reached\": [", ending->exit_status,
            atomic_load(&log->programs), dropped);
    for (unsigned i = 0; i < count; i++) {
        fprintf(out, "%s\n  {\"symbol\": ", i == 0 ? "" : ",");
        print_text(out, rows[i].symbol);
        fprintf(out, ", \"how\": \"%s\"", ways[rows[i].how]);
        if (rows[i].how == SNIFF_GET_PROC_ADDRESS) {
            fprintf(out, ", \"asked\": ");
            print_text(out, rows[i].name);
            fprintf(out, ", \"version\": %d, \"flags\": %u", rows[i].version, rows[i].flags);
        }
        fprintf(out, ", \"times\": %lu, \"libvgpu\": \"%s\", \"asked_by\": [", rows[i].times,
                verdicts[rows[i].verdict]);
        for (unsigned a = 0; a < rows[i].askers; a++) {
            fputs(a == 0 ? "" : ", ", out);
            print_text(out, rows[i].asked_by[a]);
        }
        fprintf(out, "]}");
    }
    fprintf(out, "%s]}\n", count == 0 ? "" : "\n");
}

static void print_row(FILE *out, const struct row *row) {
    char way[96];
    snprintf(way, sizeof way, "%s", ways[row->how]);
    if (row->how == SNIFF_GET_PROC_ADDRESS)
        snprintf(way, sizeof way, "%s %s@%d%s", ways[row->how], row->name, row->version,
                 (row->flags & per_thread) != 0 ? " per-thread" : "");
    fprintf(out, "%-36s %-9s %6lu  %s", row->symbol, verdicts[row->verdict], row->times, way);
    for (unsigned a = 0; a < row->askers; a++)
        fprintf(out, "%s%s", a == 0 ? " by " : ", ", row->asked_by[a]);
    fputc('\n', out);
}

static void print_table(FILE *out, const struct row *rows, unsigned count, const struct sniff_log *log,
                        unsigned long dropped, const struct sniff_ending *ending) {
    fprintf(out, "%-36s %-9s %6s  %s\n", "symbol", "libvgpu", "times", "how");
    for (unsigned i = 0; i < count; i++)
        print_row(out, &rows[i]);
    fprintf(out, "%u ways, %u programs, exit status %d\n", count, atomic_load(&log->programs), ending->exit_status);
    if (dropped > 0)
        fprintf(out, "%lu more events were too many to note\n", dropped);
}

bool sniff_report(FILE *out, const struct sniff_log *log, const struct sniff_ending *ending, bool json) {
    unsigned seen = atomic_load(&log->events), count = 0;
    unsigned events = seen < SNIFF_EVENTS ? seen : SNIFF_EVENTS;
    struct row *rows = collect(log, events, &count);
    if (rows == NULL)
        return false;
    (json ? print_json : print_table)(out, rows, count, log, seen - events, ending);
    free(rows);
    return true;
}
