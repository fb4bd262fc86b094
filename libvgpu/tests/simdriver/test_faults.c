/* Faults on purpose: every symbol of both tables can be made to fail, later, some times, in one process; calls are
 * counted by entry; and what the simulation lacks is NOT_SUPPORTED and counted, row by row. */
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "books.h"
#include "check.h"
#include "faults.h"
#include "reach.h"
#include "sandbox.h"
#include "vgpu/abi/nvml_fn.h"

#define TOOL VGPU_BINARY_DIR "/bin/sim-driver"
#define CHECKS VGPU_BINARY_DIR "/bin/vgpu-checks"
#define SOME_CODE 716 /* of none that the simulated driver returns by itself */

static const char *const cuda_symbols[] = {
#define CUDA_HOOK(symbol, base, type, version, streams, area) #symbol,
#define CUDA_CALL CUDA_HOOK
#define CUDA_NAME(symbol, base, version, streams) #symbol,
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME
};

static const char *const nvml_symbols[] = {
#define NVML_HOOK(symbol, type, area) #symbol,
#define NVML_CALL NVML_HOOK
#define NVML_NAME(symbol) #symbol,
#include "nvml.def"
#undef NVML_HOOK
#undef NVML_CALL
#undef NVML_NAME
};

static const char *const lacking_cuda[] = {
#define CUDA_HOOK(symbol, base, type, version, streams, area)
#define CUDA_CALL CUDA_HOOK
#define CUDA_NAME(symbol, base, version, streams) #symbol,
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME
};

static const char *const lacking_nvml[] = {
#define NVML_HOOK(symbol, type, area)
#define NVML_CALL NVML_HOOK
#define NVML_NAME(symbol) #symbol,
#include "nvml.def"
#undef NVML_HOOK
#undef NVML_CALL
#undef NVML_NAME
};

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

/* A fault that passes hands the arguments on: all registers, and what lies on the stack. */
static void body_arguments(void) {
    CUcontext context = NULL;
    CUmodule module = NULL;
    CUfunction function = NULL;
    sandbox_count_calls(NULL);
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleGetFunction(&function, module, "kernel"), CUDA_SUCCESS);
    CHECK_EQUAL(cuLaunchKernel(function, 2, 3, 4, 5, 6, 7, 8, NULL, NULL, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuLaunchKernel_ptsz(function, 2, 3, 4, 5, 6, 7, 8, NULL, NULL, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuLaunchKernel_ptsz(function, 2, 3, 4, 5, 0, 7, 8, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuLaunchKernel_ptsz(function, 2, 3, 4, 5, 6, 0, 8, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(sandbox_calls(NULL, "cuInit"), 1);
    CHECK_EQUAL(sandbox_calls(NULL, "cuLaunchKernel"), 1);
    CHECK_EQUAL(sandbox_calls(NULL, "cuLaunchKernel_ptsz"), 3);
    CHECK_EQUAL(sandbox_calls(NULL, "cuLaunchKernelEx"), 0);
}

/* By both of the ways in which a pointer is had, for every row. */
static void body_every_cuda_symbol(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(library != NULL);
    for (size_t i = 0; i < COUNT(cuda_symbols); i++) {
        CUresult (*call)(void *, void *, void *, void *, void *, void *) = NULL;
        *(void **)&call = dlsym(library, cuda_symbols[i]);
        if (!CHECK_THAT(call != NULL, cuda_symbols[i]))
            continue;
        sandbox_fail(NULL, cuda_symbols[i], SOME_CODE, 0, 1);
        CHECK_EQUAL_THAT(call(NULL, NULL, NULL, NULL, NULL, NULL), SOME_CODE, cuda_symbols[i]);
        sandbox_heal(NULL);
    }
}

static void body_every_nvml_symbol(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    CHECK(library != NULL);
    for (size_t i = 0; i < COUNT(nvml_symbols); i++) {
        nvmlReturn_t (*call)(void *, void *, void *, void *, void *, void *) = NULL;
        struct sim_symbol symbol;
        *(void **)&call = dlsym(library, nvml_symbols[i]);
        if (!CHECK_THAT(call != NULL, nvml_symbols[i]) || !sim_symbol_find(nvml_symbols[i], &symbol))
            continue;
        sandbox_fail(NULL, nvml_symbols[i], SOME_CODE, 0, 1);
        CHECK_EQUAL_THAT((int)call(NULL, NULL, NULL, NULL, NULL, NULL), SOME_CODE, nvml_symbols[i]);
        sandbox_heal(NULL);
    }
}

/* What is lacking answers so, and each call is in the books. */
static void body_lacking(void) {
    char directory[256], reason[256];
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    nvmlReturn_t (*start_nvml)(void) = NULL;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    *(void **)&start_nvml = dlsym(nvml, "nvmlInit_v2");
    CHECK_EQUAL(start_nvml(), NVML_SUCCESS);
    snprintf(directory, sizeof directory, "%s.state", getenv("HAMI_SIM_DRIVER"));
    struct sim_books *books = sim_books_open(directory, reason, sizeof reason);
    CHECK(books != NULL);
    for (size_t i = 0; i < COUNT(lacking_cuda); i++) {
        CUresult (*call)(void) = NULL;
        struct sim_symbol symbol;
        *(void **)&call = dlsym(cuda, lacking_cuda[i]);
        CHECK_EQUAL_THAT(call == NULL ? CUDA_SUCCESS : call(), CUDA_ERROR_NOT_SUPPORTED, lacking_cuda[i]);
        CHECK(sim_symbol_find(lacking_cuda[i], &symbol));
        CHECK_EQUAL_THAT(books->unsupported_cuda[symbol.number], 1, lacking_cuda[i]);
    }
    for (size_t i = 0; i < COUNT(lacking_nvml); i++) {
        nvmlReturn_t (*call)(void) = NULL;
        *(void **)&call = dlsym(nvml, lacking_nvml[i]);
        CHECK_EQUAL_THAT(call == NULL ? NVML_SUCCESS : call(), NVML_ERROR_NOT_SUPPORTED, lacking_nvml[i]);
        CHECK_EQUAL_THAT(books->unsupported_nvml[i], 1, lacking_nvml[i]);
    }
}

/* The tool's faults are armed by the test before this starts: two calls pass, three fail. */
static void body_after_and_times(void) {
    static const int wanted[] = {0, 0, 46, 46, 46, 0, 0};
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    for (size_t i = 0; i < COUNT(wanted); i++) {
        int count = 0;
        CHECK_EQUAL(cuDeviceGetCount(&count), wanted[i]);
    }
}

static void body_count_devices(void) {
    int count = 0;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDeviceGetCount(&count), CUDA_SUCCESS);
}

static void body_first_call_fails(void) {
    CHECK_EQUAL(cuInit(0), 100);
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
}

static const struct {
    const char *name;
    void (*body)(void);
} bodies[] = {
    {"arguments", body_arguments},
    {"every-cuda-symbol", body_every_cuda_symbol},
    {"every-nvml-symbol", body_every_nvml_symbol},
    {"lacking", body_lacking},
    {"after-and-times", body_after_and_times},
    {"count-devices", body_count_devices},
    {"first-call-fails", body_first_call_fails},
};

static void run_body(const struct sandbox *sandbox, const char *name, int wanted) {
    char output[SANDBOX_OUTPUT];
    CHECK_EQUAL_THAT(sandbox_run(sandbox, false, NULL, (const char *[]){sandbox_self(), name, NULL}, output), wanted,
                     name);
    fputs(output, stderr);
}

static int tool(const struct sandbox *sandbox, const char *const *words, char output[SANDBOX_OUTPUT]) {
    const char *argv[12] = {TOOL};
    for (size_t i = 0; i + 2 < COUNT(argv) && words[i] != NULL; i++)
        argv[i + 1] = words[i];
    return sandbox_run(sandbox, false, NULL, argv, output);
}

#define WORDS(...) ((const char *[]){__VA_ARGS__, NULL})

static void test_tool(const struct sandbox *sandbox) {
    char output[SANDBOX_OUTPUT];
    static const char *const wrong[][7] = {
        {"fail", "cuInit"},
        {"fail"},
        {"fail", "cuInit", "--code", "x"},
        {"fail", "cuInit", "--code"},
        {"slow", "cuInit"},
        {"slow", "cuInit", "--code", "3"},
        {"kill", "cuInit", "--microseconds", "3"},
        {"heal", "cuInit"},
        {"count"},
        {"count", "perhaps"},
    };
    for (size_t i = 0; i < COUNT(wrong); i++)
        CHECK_EQUAL_THAT(tool(sandbox, wrong[i], output), 2, wrong[i][0]);
    CHECK_EQUAL(tool(sandbox, WORDS("fail", "cuNothing", "--code", "1"), output), 1);
    CHECK_EQUAL(tool(sandbox, WORDS("fail", "nvmlErrorString", "--code", "1"), output), 1);

    CHECK_EQUAL(
        tool(sandbox, WORDS("fail", "cuDeviceGetCount", "--code", "46", "--after", "2", "--times", "3"), output), 0);
    run_body(sandbox, "after-and-times", 0);
    CHECK_EQUAL(tool(sandbox, WORDS("heal"), output), 0);

    CHECK_EQUAL(tool(sandbox, WORDS("fail", "cuInit", "--code", "100", "--times", "1"), output), 0);
    run_body(sandbox, "first-call-fails", 0);
    CHECK_EQUAL(tool(sandbox, WORDS("heal"), output), 0);

    CHECK_EQUAL(tool(sandbox, WORDS("kill", "cuDeviceGetCount"), output), 0);
    run_body(sandbox, "count-devices", -SIGKILL);
    CHECK_EQUAL(tool(sandbox, WORDS("heal"), output), 0);
    run_body(sandbox, "count-devices", 0);

    CHECK_EQUAL(tool(sandbox, WORDS("fail", "cuInit", "--code", "999", "--pid", "1"), output), 0); /* not us */
    CHECK_EQUAL(tool(sandbox, WORDS("slow", "cuInit", "--microseconds", "1"), output), 0);
    CHECK_EQUAL(tool(sandbox, WORDS("count", "on"), output), 0);
    run_body(sandbox, "count-devices", 0);
    CHECK_EQUAL(tool(sandbox, WORDS("books"), output), 0);
    CHECK_THAT(strstr(output, "\"calls\": {\"cuInit\": 1, \"cuDeviceGetCount\": 1}") != NULL, output);
    CHECK_EQUAL(tool(sandbox, WORDS("count", "off"), output), 0);
    CHECK_EQUAL(tool(sandbox, WORDS("heal"), output), 0);
    for (int i = 0; i < SIM_MAX_FAULTS; i++)
        sandbox_fail(sandbox, "cuInit", 1, 0, 1);
    CHECK_EQUAL(tool(sandbox, WORDS("fail", "cuInit", "--code", "1"), output), 1); /* no room */
    CHECK_EQUAL(tool(sandbox, WORDS("heal"), output), 0);
}

/* Wrong use is 2 before anything is opened, and what cannot be opened is told in one line. */
static void test_what_needs_no_driver(const struct sandbox *sandbox) {
    char output[SANDBOX_OUTPUT];
    const char *const bare[] = {"LD_LIBRARY_PATH=/nowhere", "HAMI_SIM_DRIVER=", NULL};
    CHECK_EQUAL(sandbox_run(sandbox, false, bare, (const char *[]){TOOL, "books", NULL}, output), 2);
    CHECK_THAT(strstr(output, "--description FILE") != NULL, output);
    CHECK_EQUAL(sandbox_run(sandbox, false, bare, (const char *[]){CHECKS, "nothing", NULL}, output), 2);
    CHECK_THAT(strstr(output, "nothing is called \"nothing\"") != NULL, output);
    CHECK_EQUAL(sandbox_run(sandbox, false, bare, (const char *[]){CHECKS, "info", NULL}, output), 1);
    CHECK_THAT(strchr(output, '\n') == strrchr(output, '\n') && strstr(output, "libcuda.so.1") != NULL, output);
}

int main(int argc, char **argv) {
    for (size_t i = 0; argc > 1 && i < COUNT(bodies); i++)
        if (strcmp(bodies[i].name, argv[1]) == 0) {
            bodies[i].body();
            return check_done();
        }
    struct sandbox sandbox = sandbox_make();
    test_tool(&sandbox);
    test_what_needs_no_driver(&sandbox);
    run_body(&sandbox, "arguments", 0);
    run_body(&sandbox, "every-cuda-symbol", 0);
    run_body(&sandbox, "every-nvml-symbol", 0);
    run_body(&sandbox, "lacking", 0);
    sandbox_remove(&sandbox);
    return check_done();
}
