/* Programs that have nothing to do with CUDA, or have no driver: libvgpu is preloaded into them too, and they notice
 * nothing. Not linked against the driver. */
#include <dirent.h>
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "sandbox.h"
#include "vgpu/abi/cuda_fn.h"

extern char **environ;

/* ---- everything of a process that a library could change behind its back ---- */

struct state {
    unsigned descriptors, threads, mappings, variables;
    mode_t mask;
    void (*handlers[65])(int);
    sigset_t blocked;
};

static unsigned count_entries(const char *path) {
    unsigned count = 0;
    DIR *folder = opendir(path);
    while (folder != NULL && readdir(folder) != NULL)
        count++;
    if (folder != NULL)
        closedir(folder);
    return count;
}

/* Mappings of files; the heap may grow as it likes. */
static unsigned count_mappings(void) {
    char line[1024];
    unsigned count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        count += strchr(line, '/') != NULL;
    if (maps != NULL)
        fclose(maps);
    return count;
}

static struct state look(void) {
    struct state state = {.descriptors = count_entries("/proc/self/fd"),
                          .threads = count_entries("/proc/self/task"),
                          .mappings = count_mappings()};
    state.mask = umask(0);
    umask(state.mask);
    for (char **variable = environ; *variable != NULL; variable++)
        state.variables++;
    for (int number = 1; number < 65; number++) {
        struct sigaction action = {.sa_handler = SIG_DFL};
        (void)sigaction(number, NULL, &action);
        state.handlers[number] = action.sa_handler;
    }
    sigprocmask(SIG_BLOCK, NULL, &state.blocked);
    return state;
}

static void check_unchanged(const struct state *before, const char *what) {
    struct state after = look();
    CHECK_EQUAL_THAT(after.descriptors, before->descriptors, what);
    CHECK_EQUAL_THAT(after.threads, before->threads, what);
    CHECK_EQUAL_THAT(after.mappings, before->mappings, what);
    CHECK_EQUAL_THAT(after.variables, before->variables, what);
    CHECK_EQUAL_THAT(after.mask, before->mask, what);
    CHECK_EQUAL_THAT(memcmp(after.handlers, before->handlers, sizeof after.handlers), 0, what);
    CHECK_EQUAL_THAT(memcmp(&after.blocked, &before->blocked, sizeof after.blocked), 0, what);
}

/* From now on whoever opens a file is killed. */
static void forbid_opening(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof rules / sizeof rules[0], .filter = rules};
    (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        fprintf(stderr, "not tested: this kernel cannot forbid opening files\n");
}

/* ---- bodies ---- */

/* Names like the driver's, and the driver's own: without a driver they are found nowhere, as without us. */
static void body_asks(void) {
    static const char *const names[] = {"curl_easy_init",
                                        "cublasCreate_v2",
                                        "customFunc",
                                        "cu",
                                        "cuInit",
                                        "cuMemAlloc_v2",
                                        "cuGetProcAddress_v2",
                                        "cuMadeUp",
                                        "nvmlInit_v2",
                                        "nvmlDeviceGetMemoryInfo",
                                        ""};
    void *math = dlopen("libm.so.6", RTLD_NOW), *self = dlopen(NULL, RTLD_NOW);
    (void)dlsym(RTLD_DEFAULT, "cuInit"); /* whatever libc itself does the first time */
    (void)dlerror();
    struct state before = look();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        CHECK_THAT(dlsym(RTLD_DEFAULT, names[i]) == NULL, names[i]);
        CHECK_THAT(dlerror() != NULL, names[i]); /* and is told why */
        CHECK_THAT(dlsym(self, names[i]) == NULL, names[i]);
        CHECK_THAT(dlerror() != NULL, names[i]);
        CHECK_THAT(dlsym(math, names[i]) == NULL, names[i]);
        CHECK_THAT(dlerror() != NULL, names[i]);
        CHECK_THAT(dlvsym(RTLD_DEFAULT, names[i], "GLIBC_2.17") == NULL, names[i]);
        CHECK_THAT(dlerror() != NULL, names[i]);
    }
    CHECK(dlsym(math, "cos") != NULL && dlerror() == NULL);
    CHECK(dlsym(RTLD_NEXT, "malloc") != NULL && dlsym(RTLD_NEXT, "malloc") == dlsym(RTLD_DEFAULT, "malloc"));
#if defined(__x86_64__)
    CHECK(dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_2.14") != NULL);
    CHECK(dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_2.14") != dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_2.2.5"));
    CHECK(dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5") != NULL); /* how other libraries find libc's */
#endif
    check_unchanged(&before, "asked");
    forbid_opening();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        CHECK_THAT(dlsym(RTLD_DEFAULT, names[i]) == NULL && dlsym(math, names[i]) == NULL, names[i]);
    CHECK(dlsym(math, "cos") != NULL);
}

/* A program that looks for a driver, and there is none. */
static void body_looks_for_driver(void) {
    CHECK(dlopen("libcuda.so.1", RTLD_NOW) == NULL);
    CHECK(dlerror() != NULL);
    struct state before = look();
    CHECK(dlopen("libcuda.so.1", RTLD_NOW) == NULL);
    CHECK(dlopen("libnvidia-ml.so.1", RTLD_NOW) == NULL);
    CHECK(dlsym(RTLD_DEFAULT, "cuInit") == NULL);
    check_unchanged(&before, "looked");
}

/* A library that prefers its own dependencies: what others look up in it is the hook all the same. */
static void body_deepbind(void) {
    void *plugin = dlopen(VGPU_BINARY_DIR "/tests/libdeepbind_plugin.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    CHECK(plugin != NULL);
    PFN_cuMemAlloc_v3020 by_plugin = (PFN_cuMemAlloc_v3020)(uintptr_t)dlsym(plugin, "cuMemAlloc_v2");
    Dl_info info = {0};
    CHECK(by_plugin != NULL && dladdr((void *)(uintptr_t)by_plugin, &info) != 0);
    CHECK(info.dli_fname != NULL && strstr(info.dli_fname, "libvgpu.so") != NULL);
    CHECK(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == NULL); /* the driver is in the plugin's scope alone */
}

/* In the program's own namespace a driver is held, by whatever call it was opened. */
static void body_own_namespace(void) {
    void *driver = dlmopen(LM_ID_BASE, "libcuda.so.1", RTLD_NOW);
    Dl_info info = {0};
    CHECK(driver != NULL && driver == dlopen("libcuda.so.1", RTLD_NOW));
    CHECK(dladdr(dlsym(driver, "cuMemAlloc_v2"), &info) != 0);
    CHECK(info.dli_fname != NULL && strstr(info.dli_fname, "libvgpu.so") != NULL);
}

static const struct {
    const char *name;
    void (*run)(void);
    bool with_driver;
} bodies[] = {
    {"asks", body_asks, true}, /* there is one, and nobody loads it */
    {"asks", body_asks, false},        {"looks-for-driver", body_looks_for_driver, false},
    {"deepbind", body_deepbind, true}, {"own-namespace", body_own_namespace, true},
};

/* ---- the machine ---- */

static void run_bodies(void) {
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        struct sandbox sandbox = sandbox_make();
        char output[SANDBOX_OUTPUT];
        const char *environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=10m", bodies[i].with_driver ? NULL : "LD_LIBRARY_PATH=/",
                                     NULL};
        const char *argv[] = {sandbox_self(), bodies[i].name, NULL};
        if (!CHECK_EQUAL_THAT(sandbox_run(&sandbox, true, environment, argv, output), 0, bodies[i].name))
            fputs(output, stderr);
        CHECK_EQUAL_THAT(access(sandbox.region, F_OK), -1, bodies[i].name); /* no region came to be */
        sandbox_remove(&sandbox);
    }
}

/* Whatever the loader is asked to do with us on board, it does, and nobody says a word. */
static void run_other_programs(void) {
    static const struct {
        const char *setting;
        const char *argv[4];
    } runs[] = {
        {"LD_BIND_NOW=1", {"/bin/true", NULL}},
        {"LD_BIND_NOT=1", {"/bin/true", NULL}},
        {"CUDA_DEVICE_MEMORY_LIMIT=nonsense", {"/bin/true", NULL}}, /* only CUDA is refused */
        {"LD_AUDIT=" VGPU_BINARY_DIR "/lib/libvgpu-sniff.so", {"/bin/true", NULL}},
        {"PATH=/usr/bin:/bin", {"/bin/sh", "-c", "true | cat; (true) && exec true", NULL}},
        {"PATH=/usr/bin:/bin", {"/bin/sh", "-c", "LD_TRACE_LOADED_OBJECTS=1 /bin/true > /dev/null", NULL}},
    };
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        struct sandbox sandbox = sandbox_make();
        char output[SANDBOX_OUTPUT];
        const char *environment[] = {runs[i].setting, NULL};
        CHECK_EQUAL_THAT(sandbox_run(&sandbox, true, environment, runs[i].argv, output), 0, runs[i].setting);
        CHECK_THAT(*output == '\0', output);
        sandbox_remove(&sandbox);
    }
}

int main(int argc, char **argv) {
    for (size_t i = 0; argc > 1 && i < sizeof bodies / sizeof bodies[0]; i++)
        if (strcmp(bodies[i].name, argv[1]) == 0) {
            bodies[i].run();
            return check_done();
        }
    run_bodies();
    run_other_programs();
    return check_done();
}
