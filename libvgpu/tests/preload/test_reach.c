/* Every driver symbol × every way a program comes by it × every situation: under libvgpu the program gets exactly the
 * function that it gets from the bare driver, or the hook of exactly that function.
 *
 * The program walks all questions and writes what it was answered, once with libvgpu and once without; the lines are
 * compared. Built a second time without linking the driver (VGPU_TEST_UNLINKED). */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "sandbox.h"
#include "vgpu/abi/cuda_fn.h"

enum { legacy = VG_PROC_ADDRESS_LEGACY_STREAM, per_thread = VG_PROC_ADDRESS_PER_THREAD_STREAM };
#define NEWEST 13050

#ifdef VGPU_TEST_UNLINKED
#    define LINKED(symbol) NULL
#    define DECLARE(symbol)
#else
#    define LINKED(symbol) (void *)linked_##symbol
#    define DECLARE(symbol) extern void linked_##symbol(void) __asm__(#symbol);
#endif
#define CUDA_HOOK(symbol, base, type, version, streams, area) DECLARE(symbol)
#define CUDA_CALL(symbol, base, type, version, streams, area) DECLARE(symbol)
#define CUDA_NAME(symbol, base, version, streams) DECLARE(symbol)
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME

static const struct {
    const char *symbol, *base;
    int version;
    unsigned streams;
    bool hooked;
    void *linked;
} rows[] = {
#define CUDA_HOOK(symbol, base, type, version, streams, area) {#symbol, #base, version, streams, true, LINKED(symbol)},
#define CUDA_CALL(symbol, base, type, version, streams, area) {#symbol, #base, version, streams, false, LINKED(symbol)},
#define CUDA_NAME(symbol, base, version, streams) {#symbol, #base, version, streams, false, LINKED(symbol)},
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME
};
#define ROWS (sizeof rows / sizeof rows[0])

static const struct {
    const char *symbol;
    bool hooked;
} nvml_rows[] = {
#define NVML_HOOK(symbol, type, area) {#symbol, true},
#define NVML_CALL(symbol, type, area) {#symbol, false},
#define NVML_NAME(symbol) {#symbol, false},
#include "nvml.def"
#undef NVML_HOOK
#undef NVML_CALL
#undef NVML_NAME
};
#define NVML_ROWS (sizeof nvml_rows / sizeof nvml_rows[0])

/* ---- the walk ---- */

static void write_pointer(FILE *out, void *pointer) {
    Dl_info info;
    if (pointer == NULL)
        fprintf(out, "nothing\n");
    else if (dladdr(pointer, &info) == 0 || info.dli_saddr != pointer)
        fprintf(out, "something not exported\n");
    else
        fprintf(out, "%s in %s\n", info.dli_sname, strstr(info.dli_fname, "libvgpu.so") != NULL ? "libvgpu" : "driver");
}

static void walk_names(FILE *out, void *driver) {
    for (size_t i = 0; i < ROWS; i++) {
        const char *name = rows[i].symbol;
        fprintf(out, "link %s: ", name);
        write_pointer(out, rows[i].linked);
        fprintf(out, "dlsym-default %s: ", name);
        write_pointer(out, dlsym(RTLD_DEFAULT, name));
        fprintf(out, "dlsym-next %s: ", name);
        write_pointer(out, dlsym(RTLD_NEXT, name));
        fprintf(out, "dlopen %s: ", name);
        write_pointer(out, dlsym(driver, name));
        fprintf(out, "dlvsym %s: ", name);
        write_pointer(out, dlvsym(driver, name, "SIMULATED_1"));
        fprintf(out, "dlvsym-other-version %s: ", name);
        write_pointer(out, dlvsym(driver, name, "SIMULATED_2"));
        fprintf(out, "dlvsym-default %s: ", name);
        write_pointer(out, dlvsym(RTLD_DEFAULT, name, "SIMULATED_1"));
        fprintf(out, "dlvsym-next %s: ", name);
        write_pointer(out, dlvsym(RTLD_NEXT, name, "SIMULATED_1"));
    }
}

static void walk_nvml(FILE *out) {
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    for (size_t i = 0; i < NVML_ROWS; i++) {
        const char *name = nvml_rows[i].symbol;
        fprintf(out, "dlsym-default %s: ", name);
        write_pointer(out, dlsym(RTLD_DEFAULT, name));
        fprintf(out, "dlsym-next %s: ", name);
        write_pointer(out, dlsym(RTLD_NEXT, name));
        fprintf(out, "dlopen %s: ", name);
        write_pointer(out, dlsym(nvml, name));
        fprintf(out, "dlvsym %s: ", name);
        write_pointer(out, dlvsym(nvml, name, "SIMULATED_1"));
    }
}

typedef PFN_cuGetProcAddress_v11030 ask_v1;
typedef PFN_cuGetProcAddress_v12000 ask_v2;

static void ask(FILE *out, ask_v1 v1, ask_v2 v2, ask_v2 v2_ptsz, const char *base, int version) {
    for (cuuint64_t flags = 0; flags <= 3; flags++) {
        void *found = NULL;
        CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)9;
        CUresult result = v1 == NULL ? CUDA_ERROR_UNKNOWN : v1(base, &found, version, flags);
        fprintf(out, "getproc-v1 %s@%d flags %d: %d ", base, version, (int)flags, (int)result);
        write_pointer(out, found);
        found = NULL;
        result = v2 == NULL ? CUDA_ERROR_UNKNOWN : v2(base, &found, version, flags, &status);
        fprintf(out, "getproc-v2 %s@%d flags %d: %d %d ", base, version, (int)flags, (int)result, (int)status);
        write_pointer(out, found);
        found = NULL;
        result = v2_ptsz == NULL ? CUDA_ERROR_UNKNOWN : v2_ptsz(base, &found, version, flags, NULL);
        fprintf(out, "getproc-v2-ptsz %s@%d flags %d: %d ", base, version, (int)flags, (int)result);
        write_pointer(out, found);
    }
}

/* Every base name at every version that matters to it: its rows', the ones just below, the newest. */
static void walk_questions(FILE *out, void *driver) {
    ask_v1 v1 = (ask_v1)(uintptr_t)dlsym(driver, "cuGetProcAddress");
    ask_v2 v2 = (ask_v2)(uintptr_t)dlsym(driver, "cuGetProcAddress_v2");
    ask_v2 v2_ptsz = (ask_v2)(uintptr_t)dlsym(driver, "cuGetProcAddress_v2_ptsz");
    for (size_t i = 0; i < ROWS; i++) {
        bool seen = false;
        ask(out, v1, v2, v2_ptsz, rows[i].base, rows[i].version);
        ask(out, v1, v2, v2_ptsz, rows[i].base, rows[i].version - 1);
        for (size_t earlier = 0; earlier < i; earlier++)
            seen = seen || strcmp(rows[earlier].base, rows[i].base) == 0;
        if (!seen)
            ask(out, v1, v2, v2_ptsz, rows[i].base, NEWEST);
    }
    static const char *const strange[] = {"", "cuNoSuchThing", "curl_easy_init", "cublasCreate_v2", "cuMemAlloc_v2"};
    for (size_t i = 0; i < sizeof strange / sizeof strange[0]; i++) {
        ask(out, v1, v2, v2_ptsz, strange[i], 0);
        ask(out, v1, v2, v2_ptsz, strange[i], NEWEST);
    }
}

static char *walk(void) {
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL)
        fprintf(stderr, "%s\n", dlerror());
    walk_names(out, driver);
    walk_nvml(out);
    walk_questions(out, driver);
    fclose(out);
    return text;
}

/* ---- situations ---- */

enum situation { IN_MAIN, IN_CONSTRUCTOR, AFTER_FORK, IN_THREADS, SITUATION_COUNT };
static const char *const situation_names[SITUATION_COUNT] = {"main", "constructor", "after-fork", "threads"};
#define THREADS 4

static void *walk_in_thread(void *unused) {
    (void)unused;
    return walk();
}

/* All threads hear the same. */
static char *walk_in_threads(void) {
    pthread_t threads[THREADS];
    char *first = NULL;
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, walk_in_thread, NULL);
    for (int i = 0; i < THREADS; i++) {
        void *text = NULL;
        pthread_join(threads[i], &text);
        CHECK(first == NULL || strcmp(first, text) == 0);
        first = first == NULL ? text : first;
    }
    return first;
}

static void keep(const char *text) {
    FILE *file = fopen(getenv("VGPU_TEST_OUT"), "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static int run_situation(enum situation situation) {
    int status = 0;
    if (situation != AFTER_FORK) {
        keep(situation == IN_THREADS ? walk_in_threads() : walk());
        return check_done();
    }
    void *before = dlsym(RTLD_DEFAULT, "cuInit"); /* whatever was prepared, the child has it too */
    pid_t pid = fork();
    if (pid == 0) {
        keep(walk());
        CHECK(dlsym(RTLD_DEFAULT, "cuInit") == before);
        _exit(check_done());
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static int wanted_situation(void) {
    const char *text = getenv("VGPU_TEST_SITUATION");
    return text == NULL ? -1 : atoi(text);
}

__attribute__((constructor)) static void run_constructor(void) {
    if (wanted_situation() == IN_CONSTRUCTOR)
        _exit(run_situation(IN_CONSTRUCTOR));
}

/* ---- comparing ---- */

static bool is_hook(const char *symbol) {
    for (size_t i = 0; i < ROWS; i++)
        if (strcmp(rows[i].symbol, symbol) == 0)
            return rows[i].hooked;
    for (size_t i = 0; i < NVML_ROWS; i++)
        if (strcmp(nvml_rows[i].symbol, symbol) == 0)
            return nvml_rows[i].hooked;
    return false;
}

static char *read_all(const char *path) {
    char *text = NULL;
    size_t size = 0;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return NULL;
    ssize_t length = getdelim(&text, &size, '\0', file);
    fclose(file);
    return length < 0 ? NULL : text;
}

/* "…: symbol in driver" becomes "…: symbol in libvgpu" where the symbol is hooked, and nothing else changes. */
static bool is_right(const char *bare, const char *under) {
    char wanted[256], symbol[128] = "";
    const char *answer = strstr(bare, " in driver");
    if (answer == NULL) {
        /* RTLD_NEXT is not walked for the caller: where the driver is in a scope of its own, hooks are seen. */
        bool next = strstr(bare, "-next ") == strchr(bare, '-');
        return strcmp(bare, under) == 0 || (next && strstr(under, " in libvgpu") != NULL);
    }
    size_t length = (size_t)(answer - bare);
    const char *start = answer;
    while (start > bare && start[-1] != ' ')
        start--;
    snprintf(symbol, sizeof symbol, "%.*s", (int)(answer - start), start);
    snprintf(wanted, sizeof wanted, "%.*s in %s", (int)length, bare, is_hook(symbol) ? "libvgpu" : "driver");
    return strcmp(wanted, under) == 0;
}

static void compare(char *bare, char *under, const char *what) {
    char *bare_rest = NULL, *under_rest = NULL;
    size_t lines = 0, wrong = 0;
    char *b = strtok_r(bare, "\n", &bare_rest), *u = strtok_r(under, "\n", &under_rest);
    for (; b != NULL && u != NULL; lines++) {
        if (!is_right(b, u) && wrong++ < 10)
            fprintf(stderr, "%s\n  bare:    %s\n  libvgpu: %s\n", what, b, u);
        b = strtok_r(NULL, "\n", &bare_rest);
        u = strtok_r(NULL, "\n", &under_rest);
    }
    CHECK_EQUAL_THAT(wrong, 0, what);
    CHECK_THAT(b == NULL && u == NULL, what);
    CHECK_THAT(lines > 10000, what);
}

static const struct {
    const char *base;
    int version;
    unsigned flags;
    const char *symbol;
} answers[] = {
#define ANSWER(base, version, streams, symbol) {#base, version, streams, #symbol},
#include "runtime_answers.def"
#undef ANSWER
};

static bool contains_line(const char *text, const char *line) {
    size_t length = strlen(line);
    for (const char *found = text; (found = strstr(found, line)) != NULL; found += length)
        if (found == text || found[-1] == '\n')
            return true;
    return false;
}

/* case CSY-02 */
static void check_answers(const char *text) {
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        char line[256];
        snprintf(line, sizeof line, "getproc-v2 %s@%d flags %u: 0 0 %s in ", answers[i].base, answers[i].version,
                 answers[i].flags, answers[i].symbol);
        CHECK_THAT(contains_line(text, line), line);
    }
    CHECK(contains_line(text, "getproc-v2 @0 flags 0: 500 1 nothing\n")); /* runtimes begin with this one */
    CHECK(contains_line(text, "getproc-v2 cuNoSuchThing@13050 flags 1: 500 1 nothing\n"));
}

/* ---- drivers ---- */

static const struct {
    const char *name, *folder;
    const char *cuda_version;
} drivers[] = {
    {"newest", "sim", "13.5"},
    {"with symbol versions", "sim-versioned", "13.5"}, /* what dlvsym needs */
    {"of CUDA 11.8", "sim", "11.8"},
#ifdef VGPU_TEST_UNLINKED
    {"that lacks names", "sim-lacking", "12.8"},
#endif
};

static void describe(const struct sandbox *sandbox, const char *version) {
    char path[128];
    snprintf(path, sizeof path, "%s/walk.json", sandbox->directory);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    fprintf(file,
            "{\"cuda_version\": \"%s\", \"cards\": [{\"uuid\": \"GPU-11111111-2222-3333-4444-000000000000\", "
            "\"name\": \"Simulated A100\", \"memory_mib\": 40960}]}\n",
            version);
    fclose(file);
}

static char *run(const struct sandbox *sandbox, bool with_vgpu, size_t driver, int situation) {
    char description[160], out[160], search[512], number[64], output[SANDBOX_OUTPUT];
    snprintf(description, sizeof description, "HAMI_SIM_DRIVER=%s/walk.json", sandbox->directory);
    snprintf(out, sizeof out, "VGPU_TEST_OUT=%s/%s", sandbox->directory, with_vgpu ? "under" : "bare");
    snprintf(search, sizeof search, "LD_LIBRARY_PATH=%s/%s:%s/sim", VGPU_BINARY_DIR, drivers[driver].folder,
             VGPU_BINARY_DIR);
    snprintf(number, sizeof number, "VGPU_TEST_SITUATION=%d", situation);
    const char *environment[] = {description, out, search, number, NULL};
    const char *argv[] = {sandbox_self(), NULL};
    if (!CHECK_EQUAL_THAT(sandbox_run(sandbox, with_vgpu, environment, argv, output), 0, situation_names[situation]))
        fputs(output, stderr);
    return read_all(strchr(out, '=') + 1);
}

int main(void) {
    if (wanted_situation() >= 0)
        return run_situation((enum situation)wanted_situation());
    for (size_t driver = 0; driver < sizeof drivers / sizeof drivers[0]; driver++)
        for (int situation = 0; situation < SITUATION_COUNT; situation++) {
            char what[128];
            struct sandbox sandbox = sandbox_make();
            describe(&sandbox, drivers[driver].cuda_version);
            snprintf(what, sizeof what, "driver %s, in %s", drivers[driver].name, situation_names[situation]);
            char *bare = run(&sandbox, false, driver, situation), *under = run(&sandbox, true, driver, situation);
            if (driver == 0 && under != NULL)
                check_answers(under);
            if (CHECK_THAT(bare != NULL && under != NULL, what))
                compare(bare, under, what);
            free(bare);
            free(under);
            sandbox_remove(&sandbox);
        }
    return check_done();
}
