/* vgpu-sniff: what a program reaches and how, its exit status, and that the program notices nothing. */
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "reach.h"
#include "sandbox.h"

#define SNIFF VGPU_BINARY_DIR "/bin/vgpu-sniff"
#define VERSIONED_DRIVER "LD_LIBRARY_PATH=" VGPU_BINARY_DIR "/sim-versioned:" VGPU_BINARY_DIR "/sim"

/* ---- the program under watch: linked against cuGetProcAddress_v2 and others, see reach.c ---- */

typedef CUresult (*get_export_table)(const void **table, const CUuuid *id);

static void ask(const char *name, int version, cuuint64_t flags) {
    void *found = NULL;
    (void)cuGetProcAddress_v2(name, &found, version, flags, NULL);
}

static void *ask_for(const char *name, int version) {
    void *found = NULL;
    CHECK_EQUAL(cuGetProcAddress_v2(name, &found, version, 0, NULL), CUDA_SUCCESS);
    return found;
}

static int reach_by_all_ways(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    CUuuid id = {{0x6b, (char)0xd5, (char)0xfb, 0x6c, 0x5b, (char)0xf4, (char)0xe7, 0x4a, (char)0x89, (char)0x87,
                  (char)0xd9, 0x39, 0x12, (char)0xfd, (char)0x9d, (char)0xf9}};
    const void *table = NULL;
    for (int i = 0; i < 3; i++)
        CHECK(dlsym(driver, "cuMemAllocManaged") != NULL);
    CHECK(dlsym(RTLD_NEXT, "cuMemCreate") != NULL); /* the loader still sees who asks */
    CHECK(dlsym(nvml, "nvmlDeviceGetMemoryInfo") != NULL);
    CHECK(dlvsym(driver, "cuNoSuchThing", "SIMULATED_1") == NULL);
    CHECK(dlvsym(driver, "cuMemHostAlloc", "SIMULATED_1") != NULL);
    CHECK(dlsym(driver, "cuMemHostAlloc") != NULL);
    ask("cuLaunchKernel", 7000, VG_PROC_ADDRESS_PER_THREAD_STREAM);
    ask("cuLaunchKernel", 7000, VG_PROC_ADDRESS_PER_THREAD_STREAM);
    ask("cuMemAlloc", 12000, VG_PROC_ADDRESS_LEGACY_STREAM);
    ask("cuNoSuchThing", 12000, 0);
    ask("", 0, 0);
    /* What was found by the driver's own way leads on. */
    PFN_cuGetProcAddress_v12000 again = (PFN_cuGetProcAddress_v12000)(uintptr_t)ask_for("cuGetProcAddress", 12000);
    void *found = NULL;
    CHECK_EQUAL(again("cuCtxGetDevice", &found, 2000, 0, NULL), CUDA_SUCCESS);
    get_export_table tables = (get_export_table)(uintptr_t)ask_for("cuGetExportTable", 3000);
    CHECK(tables(&table, &id) != CUDA_SUCCESS); /* the simulated driver has none */
    pid_t pid = fork();
    if (pid == 0) {
        (void)dlsym(driver, "cuMemAllocManaged");
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    return check_failures > 0 ? 1 : 42;
}

/* ---- the reports ---- */

static char *sniff(const char *const *options, const char *preload, int wanted_status) {
    static char report[1 << 18];
    char path[128], watched[] = "VGPU_TEST_WATCHED=1", output[SANDBOX_OUTPUT];
    struct sandbox sandbox = sandbox_make();
    snprintf(path, sizeof path, "%s/report", sandbox.directory);
    const char *argv[12] = {SNIFF, "--output", path};
    int count = 3;
    for (; *options != NULL; options++)
        argv[count++] = *options;
    const char *environment[] = {watched, VERSIONED_DRIVER, preload, NULL};
    CHECK_EQUAL_THAT(sandbox_run(&sandbox, false, environment, argv, output), wanted_status, argv[3]);
    if (*output != '\0')
        fputs(output, stderr);
    FILE *file = fopen(path, "r");
    size_t length = file == NULL ? 0 : fread(report, 1, sizeof report - 1, file);
    report[length] = '\0';
    if (file != NULL)
        fclose(file);
    sandbox_remove(&sandbox);
    return report;
}

static const char *const rows[] = {
    "\"symbol\": \"cuMemAllocManaged\", \"how\": \"dlsym\", \"times\": 4, \"libvgpu\": \"holds\", "
    "\"asked_by\": [\"test_sniff\"]",
    "\"symbol\": \"cuMemCreate\", \"how\": \"dlsym\", \"times\": 1, \"libvgpu\": \"holds\"",
    "\"symbol\": \"nvmlDeviceGetMemoryInfo\", \"how\": \"dlsym\", \"times\": 1, \"libvgpu\": \"holds\"",
    "\"symbol\": \"cuMemHostAlloc\", \"how\": \"dlvsym\", \"times\": 1, ",
    "\"symbol\": \"cuMemHostAlloc\", \"how\": \"dlsym\", \"times\": 1, ",
    "\"symbol\": \"cuGetProcAddress_v2\", \"how\": \"linked\", \"times\": 1, \"libvgpu\": \"holds\"",
    "\"symbol\": \"cuLaunchKernel_ptsz\", \"how\": \"cuGetProcAddress\", \"asked\": \"cuLaunchKernel\", \"version\": "
    "7000, "
    "\"flags\": 2, \"times\": 2, \"libvgpu\": \"holds\"",
    "\"symbol\": \"cuMemAlloc_v2\", \"how\": \"cuGetProcAddress\", \"asked\": \"cuMemAlloc\", \"version\": 12000, "
    "\"flags\": 1, \"times\": 1, \"libvgpu\": \"holds\"",
    "\"symbol\": \"cuNoSuchThing\", \"how\": \"cuGetProcAddress\", \"asked\": \"cuNoSuchThing\", \"version\": 12000, "
    "\"flags\": 0, \"times\": 1, \"libvgpu\": \"not found\"",
    "\"symbol\": \"\", \"how\": \"cuGetProcAddress\", \"asked\": \"\", \"version\": 0, \"flags\": 0, \"times\": 1, ",
    "\"symbol\": \"cuCtxGetDevice\", \"how\": \"cuGetProcAddress\", \"asked\": \"cuCtxGetDevice\", \"version\": 2000, ",
    "\"symbol\": \"6bd5fb6c-5bf4-e74a-8987-d93912fd9df9\", \"how\": \"cuGetExportTable\", \"times\": 1, "
    "\"libvgpu\": \"forwards\"",
    "\"exit_status\": 42, \"programs\": 1, \"dropped\": 0",
};

static void test_ways(void) {
    const char *options[] = {"--json", "--", sandbox_self(), NULL};
    const char *report = sniff(options, NULL, 42);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        CHECK_THAT(strstr(report, rows[i]) != NULL, rows[i]);
    CHECK(strstr(report, "LD_AUDIT") == NULL);
    options[0] = "--";
    options[1] = sandbox_self();
    options[2] = NULL;
    report = sniff(options, NULL, 42);
    CHECK(strstr(report, "cuLaunchKernel_ptsz") != NULL && strstr(report, "cuLaunchKernel@7000 per-thread") != NULL);
}

/* libvgpu would answer for the driver: it is left out, and what else is preloaded stays. */
static void test_without_libvgpu(void) {
    const char *options[] = {"--json", sandbox_self(), NULL};
    const char *report = sniff(options, "LD_PRELOAD=" VGPU_BINARY_DIR "/lib/libvgpu.so:libc.so.6", 42);
    CHECK(strstr(report, "libvgpu.so") == NULL);
    CHECK(strstr(report, rows[0]) != NULL);
}

static void test_endings(void) {
    static const struct {
        const char *options[4];
        int status;
    } runs[] = {
        {{"sh", "-c", "exit 7", NULL}, 7},     {{"sh", "-c", "kill -9 $$", NULL}, 128 + 9},
        {{"/nonexistent/program", NULL}, 127}, {{"--json", NULL}, 2},
        {{"--no-such-option", NULL}, 2},
    };
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        struct sandbox sandbox = sandbox_make();
        const char *argv[8] = {SNIFF};
        char output[SANDBOX_OUTPUT];
        for (int o = 0; runs[i].options[o] != NULL; o++)
            argv[o + 1] = runs[i].options[o];
        const char *environment[] = {"PATH=/usr/bin:/bin", NULL};
        CHECK_EQUAL_THAT(sandbox_run(&sandbox, false, environment, argv, output), runs[i].status, runs[i].options[0]);
        CHECK_THAT(*output != '\0', runs[i].options[0]);
        sandbox_remove(&sandbox);
    }
    const char *argv[] = {SNIFF, "--help", NULL};
    struct sandbox sandbox = sandbox_make();
    char output[SANDBOX_OUTPUT];
    CHECK_EQUAL(sandbox_run(&sandbox, false, NULL, argv, output), 0);
    CHECK(strstr(output, "usage: vgpu-sniff") == output);
    sandbox_remove(&sandbox);
}

int main(void) {
    if (getenv("VGPU_TEST_WATCHED") != NULL)
        return reach_by_all_ways();
    test_ways();
    test_without_libvgpu();
    test_endings();
    return check_done();
}
