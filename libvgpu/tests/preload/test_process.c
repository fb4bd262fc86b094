/* What processes do to the library and it to them: environments, forks, exec, contexts, NVML, programs without CUDA. */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bodies.h"
#include "vgpu/abi/nvml_fn.h"
#include "vgpu/shm_layout.h"

#define CARD_0 "GPU-11111111-2222-3333-4444-000000000000"
#define CARD_1 "GPU-11111111-2222-3333-4444-000000000001"

static struct vg_region *map_own_region(void) {
    struct sandbox here = {.directory = ""};
    snprintf(here.region, sizeof here.region, "%s", getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"));
    return sandbox_region(&here);
}

/* The simulated driver knows a process by a lock on its file, which is lost with any descriptor of it. */
static bool is_the_drivers(int descriptor) {
    char link[64], target[512] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    return readlink(link, target, sizeof target - 1) > 0 && strstr(target, "books") != NULL;
}

#define LET_GO 7 /* as true as any; written just before a blocked container is let go */

/* ---- bodies: what the process under test does ---- */

static void body_before_init(void) {
    CUdeviceptr pointer = 0;
    size_t bytes = 0;
    int count = 0;
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_EQUAL(cuMemFree_v2(4096), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_EQUAL(cuMemGetInfo_v2(&bytes, &bytes), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_EQUAL(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_EQUAL(cuInit(1), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_EQUAL(cuMemGetInfo_v2(&bytes, &bytes), CUDA_ERROR_INVALID_CONTEXT);
}

/* Outputs that are missing get the driver's answer (CMM-03), and so do sizes and pointers that make no sense. */
static void body_bad_arguments(void) {
    CUdeviceptr pointer = 0;
    size_t pitch = 0;
    use_device(0);
    CHECK_EQUAL(cuMemAlloc_v2(NULL, 1), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuMemAllocManaged(&pointer, 1, 7), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuMemAllocPitch_v2(&pointer, &pitch, 0, 1, 4), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuMemAllocPitch_v2(&pointer, &pitch, SIZE_MAX, 2, 4), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cuMemCreate(NULL, 1, NULL, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuMemGetInfo_v2(NULL, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuDeviceTotalMem_v2(NULL, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuMemFree_v2(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemFree_v2(0xdead000), CUDA_ERROR_INVALID_VALUE); /* CMM-04 */
    CHECK_EQUAL(seen_free(), 100 * MIB);
}

/* The driver refuses after the claim: the claim comes back (CMM-06). */
static void body_driver_fails(void) {
    CUdeviceptr pointer = 0;
    use_device(0);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 50000 * MIB), CUDA_ERROR_OUT_OF_MEMORY); /* the card has 40,960 */
    CHECK_EQUAL(seen_free(), 40960 * MIB);
    CHECK_EQUAL(cuMemAllocAsync(&pointer, 50000 * MIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(seen_free(), 40960 * MIB);
}

static void body_managed_is_managed(void) {
    CUdeviceptr pointer = 0;
    unsigned managed = 0;
    use_device(0);
    CHECK_EQUAL(cuMemAllocManaged(&pointer, 1000, 1), CUDA_SUCCESS);
    CHECK_EQUAL(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer), CUDA_SUCCESS);
    CHECK_EQUAL(managed, 1); /* CMM-12 */
    CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
}

static void body_contexts(void) {
    CUcontext context = NULL;
    CUdeviceptr pointer = 0, other = 0;
    use_device(0);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 10 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAlloc_v2(&other, 20 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 70 * MIB);
    CHECK_EQUAL(cuCtxDestroy_v2(context), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 90 * MIB);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS); /* still retained once */
    CHECK_EQUAL(seen_free(), 90 * MIB);
    CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    use_device(0);
    CHECK_EQUAL(seen_free(), 100 * MIB);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 10 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
    use_device(0);
    CHECK_EQUAL(seen_free(), 100 * MIB);
}

/* case CVM-02: charged to the card that is named, until the last reference and the last mapping are gone. */
static void body_vmm(void) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}};
    CUmemGenericAllocationHandle handle = 0, again = 0;
    CUdeviceptr where = 0;
    size_t bytes = 50 * MIB;
    use_device(1);
    CHECK_EQUAL(seen_free(), 100 * MIB);
    use_device(0);
    CHECK_EQUAL(cuMemCreate(&handle, bytes, &prop, 0), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 100 * MIB);
    use_device(1);
    CHECK_EQUAL(seen_free(), 50 * MIB);
    CHECK_EQUAL(cuMemAddressReserve(&where, 2 * bytes, 0, 0, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemMap(where, bytes, 0, handle, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemMap(where + bytes, bytes, 0, handle, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemRelease(handle), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 50 * MIB);
    CHECK_EQUAL(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(where + 4096)), CUDA_SUCCESS);
    CHECK(again == handle);
    CHECK_EQUAL(cuMemUnmap(where, 2 * bytes), CUDA_SUCCESS); /* both mappings by one call */
    CHECK_EQUAL(seen_free(), 50 * MIB);
    CHECK_EQUAL(cuMemRelease(again), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 100 * MIB);
    CHECK_EQUAL(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
    prop.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST, .id = 0};
    CHECK_EQUAL(cuMemCreate(&handle, bytes, &prop, 0), CUDA_ERROR_NOT_SUPPORTED); /* as the simulated driver says */
    CHECK_EQUAL(seen_free(), 100 * MIB);
}

/* CPR-04: limit i is of card i of the container, whatever ordinal CUDA gives it. Card 0: 100 MiB, card 1: 200. */
static void body_ordinals(void) {
    int count = 0;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDeviceGetCount(&count), CUDA_SUCCESS);
    const char *wanted = getenv("VGPU_TEST_LIMITS");
    for (int device = 0; device < count; device++) {
        CUdeviceptr pointer = 0;
        size_t total = 0;
        uint64_t mib = strtoull(wanted, (char **)(uintptr_t)&wanted, 10);
        wanted += *wanted == ',';
        use_device(device);
        CHECK_EQUAL(cuDeviceTotalMem_v2(&total, device), CUDA_SUCCESS);
        CHECK_EQUAL(total, mib * MIB);
        CHECK_EQUAL(cuMemAlloc_v2(&pointer, mib * MIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQUAL(cuMemAlloc_v2(&pointer, mib * MIB), CUDA_SUCCESS);
        CHECK_EQUAL(seen_free(), 0);
    }
    CHECK_EQUAL(*wanted, '\0');
}

/* The child of a parent that started CUDA cannot use it (as with the real driver) and leaves the parent's account. */
static void body_fork_after_init(void) {
    CUdeviceptr pointer = 0;
    int status = 0;
    use_device(0);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 40 * MIB), CUDA_SUCCESS);
    pid_t pid = fork();
    if (pid == 0) {
        CUdeviceptr mine = 0;
        bool refused = cuMemAlloc_v2(&mine, 1) == CUDA_ERROR_NOT_INITIALIZED &&
                       cuInit(0) == CUDA_ERROR_NOT_INITIALIZED && cuMemFree_v2(pointer) == CUDA_ERROR_NOT_INITIALIZED;
        exit(refused ? 0 : 1); /* exit, not _exit: the handlers run in the child too */
    }
    waitpid(pid, &status, 0);
    CHECK_EQUAL(status, 0);
    CHECK_EQUAL(seen_free(), 60 * MIB);
    CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 100 * MIB);
}

/* A child made without the C library's knowing: its exit leaves the parent's account as it is. */
static void body_raw_clone(void) {
    CUdeviceptr pointer = 0;
    int status = 0;
    use_device(0);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 40 * MIB), CUDA_SUCCESS);
    pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0)
        exit(0);
    waitpid(pid, &status, 0);
    CHECK_EQUAL(status, 0);
    CHECK_EQUAL(seen_free(), 60 * MIB);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 61 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
}

/* A thread goes on after the first one ended: the process is no zombie to be reclaimed. */
static void *hold_alone(void *unused) {
    char output[SANDBOX_OUTPUT];
    (void)unused;
    const char *argv[] = {WORKLOAD, "alloc", "--mib", "61", NULL};
    struct sandbox here = {.directory = ""};
    snprintf(here.directory, sizeof here.directory, "%s", getenv("VGPU_TEST_DIRECTORY"));
    snprintf(here.region, sizeof here.region, "%s", getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"));
    const char *environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=100m", NULL};
    CHECK_EQUAL(sandbox_run(&here, true, environment, argv, output), 4);
    exit(check_done());
}

static void body_first_thread_ends(void) {
    CUdeviceptr pointer = 0;
    pthread_t thread;
    use_device(0);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 40 * MIB), CUDA_SUCCESS);
    pthread_create(&thread, NULL, hold_alone, NULL);
    pthread_exit(NULL);
}

/* As daemons do: every descriptor is closed, and its number given to something else. Accounts go on. */
static void body_closes_everything(void) {
    CUdeviceptr pointer = 0;
    use_device(0);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 40 * MIB), CUDA_SUCCESS);
    struct vg_region *region = map_own_region();
    for (int descriptor = 3; descriptor < 64; descriptor++)
        if (!is_the_drivers(descriptor))
            dup2(STDOUT_FILENO, descriptor);
    close(STDIN_FILENO);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 61 * MIB), CUDA_ERROR_OUT_OF_MEMORY); /* looks for the dead, so it locks */
    CHECK_EQUAL(fcntl(STDIN_FILENO, F_GETFD), -1); /* what reads or prints there must not meet the region */
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 60 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(vg_card_used(region, 0), 100 * MIB);
}

/* A program that becomes another keeps its pid; the driver frees its memory, and so do we. */
static void body_exec(void) {
    CUdeviceptr pointer = 0;
    if (getenv("VGPU_TEST_EXECED") != NULL) {
        use_device(0);
        CHECK_EQUAL(seen_free(), 100 * MIB);
        return;
    }
    use_device(0);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 90 * MIB), CUDA_SUCCESS);
    setenv("VGPU_TEST_EXECED", "1", 1);
    execl(sandbox_self(), sandbox_self(), "exec", NULL);
    CHECK(!"exec failed");
}

static const char *const launch_ways[] = {"cuLaunchKernel",
                                          "cuLaunchKernel_ptsz",
                                          "cuLaunchKernelEx",
                                          "cuLaunchKernelEx_ptsz",
                                          "cuLaunchCooperativeKernel",
                                          "cuLaunchCooperativeKernel_ptsz",
                                          "cuLaunchCooperativeKernelMultiDevice",
                                          "cuLaunch",
                                          "cuLaunchGrid",
                                          "cuLaunchGridAsync"};
#define LAUNCH_WAYS (sizeof launch_ways / sizeof launch_ways[0])

static CUresult launch_by(size_t way, CUfunction function, CUstream stream) {
    const CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, stream, NULL, 0};
    switch (way) {
    case 0:
        return cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
    case 1:
        return cuLaunchKernel_ptsz(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
    case 2:
        return cuLaunchKernelEx(&config, function, NULL, NULL);
    case 3:
        return cuLaunchKernelEx_ptsz(&config, function, NULL, NULL);
    case 4:
        return cuLaunchCooperativeKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL);
    case 5:
        return cuLaunchCooperativeKernel_ptsz(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL);
    case 6:
        return cuLaunchCooperativeKernelMultiDevice(&(CUDA_LAUNCH_PARAMS){function, 1, 1, 1, 32, 1, 1, 0, stream, NULL},
                                                    1, 0);
    case 7:
        return cuLaunch(function);
    case 8:
        return cuLaunchGrid(function, 1, 1);
    default:
        return cuLaunchGridAsync(function, 1, 1, stream);
    }
}

#define IN_THE_FUTURE 4102444800ull /* the year 2100 */

/* Every way to launch marks the container active, and waits while the monitor blocks it. */
static void body_launch(void) {
    CUmodule module = NULL;
    CUfunction function = NULL;
    CUstream stream = NULL;
    size_t way = (size_t)atoi(getenv("VGPU_TEST_WAY"));
    int32_t recent = 0;
    uint64_t time = way % 2 == 0 ? 0 : IN_THE_FUTURE; /* as before the clock was set back */
    use_device(0);
    int file = open(getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"), O_RDWR | O_CLOEXEC);
    CHECK_EQUAL(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleGetFunction(&function, module, "kernel"), CUDA_SUCCESS);
    CHECK_EQUAL(cuFuncSetBlockShape(function, 32, 1, 1), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
    CHECK_EQUAL(pwrite(file, &recent, sizeof recent, offsetof(struct vg_region, recent_kernel)), 4);
    CHECK_EQUAL(pwrite(file, &time, sizeof time, offsetof(struct vg_region, last_kernel_time)), 8);
    CHECK_EQUAL(launch_by(way, function, stream), CUDA_SUCCESS);
    CHECK_EQUAL(pread(file, &recent, sizeof recent, offsetof(struct vg_region, recent_kernel)), 4);
    CHECK_EQUAL(pread(file, &time, sizeof time, offsetof(struct vg_region, last_kernel_time)), 8);
    CHECK_EQUAL(recent, 2);
    CHECK(time > 1600000000 && time < IN_THE_FUTURE);
    printf("launched\n");
    fflush(stdout);
    /* Blocked by the monitor: the launch waits until it is let go. */
    int32_t blocked = -1;
    CHECK_EQUAL(pwrite(file, &blocked, sizeof blocked, offsetof(struct vg_region, recent_kernel)), 4);
    printf("blocked\n");
    fflush(stdout);
    CHECK_EQUAL(launch_by(way, function, stream), CUDA_SUCCESS);
    CHECK_EQUAL(map_own_region()->utilisation_switch, LET_GO); /* not a moment earlier */
    printf("released\n");
}

extern void *find_next(const char *name); /* of a library that comes after us in the search order */

/* A library that looks for what comes after it, and we come before it: it gets the hook all the same. */
static void body_next(void) {
    CHECK(find_next("cuMemAlloc_v2") == dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
    CHECK(find_next("cuDeviceGet") == dlsym(RTLD_DEFAULT, "cuDeviceGet"));
    CHECK(find_next("find_next") == NULL); /* its own lies before what comes after it */
}

/* Whoever asks for dlsym itself, by whatever way, gets one that answers with the hooks. */
static void body_loaders_own(void) {
    static const struct {
        void *handle;
        const char *version;
    } ways[] = {{RTLD_DEFAULT, NULL}, {RTLD_NEXT, NULL}, {RTLD_DEFAULT, "GLIBC_2.2.5"}, {RTLD_NEXT, "GLIBC_2.2.5"}};
    void *libc = dlopen("libc.so.6", RTLD_LAZY), *hook = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    CHECK(hook != NULL && libc != NULL && driver != NULL);
    CHECK(dlsym(libc, "dlsym") == NULL || dlsym(libc, "dlsym") == dlsym(RTLD_DEFAULT, "dlsym"));
    CHECK(dlsym(libc, "dlvsym") == NULL || dlsym(libc, "dlvsym") == dlsym(RTLD_DEFAULT, "dlvsym"));
    CHECK(find_next("dlsym") == dlsym(RTLD_DEFAULT, "dlsym"));
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        void *(*found)(void *, const char *) = NULL;
        void *pointer =
            ways[i].version == NULL ? dlsym(ways[i].handle, "dlsym") : dlvsym(ways[i].handle, "dlsym", ways[i].version);
        memcpy(&found, &pointer, sizeof found);
        if (found != NULL) /* versions differ between machines */
            CHECK(found(driver, "cuMemAlloc_v2") == hook && found(NULL, "find_next") != NULL);
    }
}

static void run_tool(const char *command) {
    char line[256];
    snprintf(line, sizeof line, "%s/bin/sim-driver %s", VGPU_BINARY_DIR, command);
    CHECK_EQUAL(system(line), 0);
}

/* What the driver does not free stays charged. */
static void body_free_refused(void) {
    CUdeviceptr pointer = 0;
    use_device(0);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 40 * MIB), CUDA_SUCCESS);
    run_tool("lose 0");
    CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_ERROR_DEVICE_UNAVAILABLE);
    CHECK_EQUAL(cuMemFreeAsync(pointer, NULL), CUDA_ERROR_DEVICE_UNAVAILABLE);
    run_tool("restore 0");
    CHECK_EQUAL(seen_free(), 60 * MIB);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 61 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 100 * MIB);
}

/* A program that has nothing to do with CUDA: nothing happens to it, and dlsym is libc's. */
static void body_plain(void) {
    void *math = dlopen("libm.so.6", RTLD_NOW);
    mode_t mask = umask(022);
    struct sigaction usr1;
    umask(mask);
    CHECK(math != NULL && dlsym(math, "cos") != NULL);
    CHECK(dlsym(math, "cuMemAlloc_v2") == NULL); /* not in that library */
    CHECK(dlerror() != NULL);
    CHECK(dlsym(RTLD_DEFAULT, "curl_easy_init") == NULL);
    CHECK(dlsym(RTLD_DEFAULT, "cublasCreate_v2") == NULL);
    CHECK(dlsym(RTLD_DEFAULT, "nvmlNoSuchFunction") == NULL);
    CHECK(dlsym(RTLD_NEXT, "malloc") != NULL);
    CHECK(dlsym(RTLD_NEXT, "malloc") == dlsym(RTLD_NEXT, "malloc"));
    CHECK(dlsym(RTLD_DEFAULT, "dlsym") != NULL);
    CHECK_EQUAL(mask, 077);
    sigaction(SIGUSR1, NULL, &usr1);
    CHECK(usr1.sa_handler == SIG_DFL);
}

static nvmlDevice_t nvml_device(const char *uuid, void **library) {
    nvmlDevice_t device = NULL;
    *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    PFN_nvmlInit_v2 init = (PFN_nvmlInit_v2)(uintptr_t)dlsym(*library, "nvmlInit_v2");
    PFN_nvmlDeviceGetHandleByUUID by_uuid =
        (PFN_nvmlDeviceGetHandleByUUID)(uintptr_t)dlsym(*library, "nvmlDeviceGetHandleByUUID");
    CHECK_EQUAL(init(), NVML_SUCCESS);
    CHECK_EQUAL(by_uuid(uuid, &device), NVML_SUCCESS);
    return device;
}

/* As nvidia-smi looks: NVML alone, the slice as CUDA shows it. Another process holds 30 MiB of card 1's 200. */
static void body_nvml(void) {
    void *library = NULL;
    nvmlMemory_t v1;
    nvmlMemory_v2_t v2 = {.version = VG_NVML_MEMORY_V2};
    nvmlDevice_t device = nvml_device(CARD_1, &library);
    PFN_nvmlDeviceGetMemoryInfo info =
        (PFN_nvmlDeviceGetMemoryInfo)(uintptr_t)dlsym(library, "nvmlDeviceGetMemoryInfo");
    PFN_nvmlDeviceGetMemoryInfo_v2 info_v2 =
        (PFN_nvmlDeviceGetMemoryInfo_v2)(uintptr_t)dlsym(library, "nvmlDeviceGetMemoryInfo_v2");
    CHECK_EQUAL(info(device, &v1), NVML_SUCCESS);
    CHECK(v1.total == 200 * MIB && v1.used == 30 * MIB && v1.free == 170 * MIB);
    CHECK_EQUAL(info_v2(device, &v2), NVML_SUCCESS);
    CHECK(v2.total == 200 * MIB && v2.used == 30 * MIB && v2.free == 170 * MIB);
    CHECK_EQUAL(info(device, NULL), NVML_ERROR_INVALID_ARGUMENT);
    v2.version = 1;
    CHECK_EQUAL(info_v2(device, &v2), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
}

static const struct body bodies[] = {
    {"before-init", body_before_init},
    {"bad-arguments", body_bad_arguments},
    {"driver-fails", body_driver_fails},
    {"managed", body_managed_is_managed},
    {"contexts", body_contexts},
    {"vmm", body_vmm},
    {"ordinals", body_ordinals},
    {"fork-after-init", body_fork_after_init},
    {"exec", body_exec},
    {"raw-clone", body_raw_clone},
    {"first-thread-ends", body_first_thread_ends},
    {"next", body_next},
    {"loaders-own", body_loaders_own},
    {"closes-everything", body_closes_everything},
    {"free-refused", body_free_refused},
    {"launch", body_launch},
    {"plain", body_plain},
    {"nvml", body_nvml},
};

/* ---- the tests ---- */

static void run_one(const struct sandbox *sandbox, const char *body, const char *const *environment) {
    char output[SANDBOX_OUTPUT];
    const char *argv[] = {sandbox_self(), body, NULL};
    if (!CHECK_EQUAL_THAT(sandbox_run(sandbox, true, environment, argv, output), 0, body))
        fputs(output, stderr);
}

static void test_bodies(void) {
    static const char *const small[] = {"CUDA_DEVICE_MEMORY_LIMIT=100m", NULL};
    static const char *const large[] = {"CUDA_DEVICE_MEMORY_LIMIT=60000m", NULL}; /* more than the card */
    static const struct {
        const char *body;
        const char *const *environment;
    } rows[] = {{"before-init", small}, {"bad-arguments", small}, {"driver-fails", large},     {"managed", small},
                {"contexts", small},    {"vmm", small},           {"fork-after-init", small},  {"exec", small},
                {"raw-clone", small},   {"free-refused", small},  {"closes-everything", small}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sandbox sandbox = sandbox_make();
        run_one(&sandbox, rows[i].body, rows[i].environment);
        struct vg_region *region = sandbox_region(&sandbox);
        if (CHECK_THAT(region != NULL, rows[i].body)) {
            CHECK_EQUAL_THAT(vg_card_used(region, 0), 0, rows[i].body);
            CHECK_EQUAL_THAT(region->slots[0].pid, 0, rows[i].body);
        }
        sandbox_remove(&sandbox);
    }
}

/* case CPR-04: without a limits page; with one: test_limits_in_force.c */
static void test_ordinals(void) {
    static const char *const rows[][2] = {
        {"CUDA_DEVICE_ORDER=PCI_BUS_ID", "VGPU_TEST_LIMITS=100,200"},
        {"CUDA_VISIBLE_DEVICES=0,1", "VGPU_TEST_LIMITS=100,200"},
        {"CUDA_VISIBLE_DEVICES=1,0", "VGPU_TEST_LIMITS=200,100"},
        {"CUDA_VISIBLE_DEVICES=1", "VGPU_TEST_LIMITS=200"},
        {"CUDA_VISIBLE_DEVICES=" CARD_1, "VGPU_TEST_LIMITS=200"},
        {"CUDA_VISIBLE_DEVICES=" CARD_1 "," CARD_0, "VGPU_TEST_LIMITS=200,100"},
        /* The runtime shows the second card only: it is card 0 of the container. */
        {"HAMI_SIM_VISIBLE_DEVICES=" CARD_1, "VGPU_TEST_LIMITS=100"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sandbox sandbox = sandbox_make();
        const char *environment[] = {"CUDA_DEVICE_MEMORY_LIMIT_0=100m", "CUDA_DEVICE_MEMORY_LIMIT_1=200m", rows[i][0],
                                     rows[i][1], NULL};
        run_one(&sandbox, "ordinals", environment);
        sandbox_remove(&sandbox);
    }
}

/* Says nothing but one line that names the variable and the reason, and CUDA does not start. */
static void test_bad_limits(void) {
    static const char *const rows[] = {
        "CUDA_DEVICE_MEMORY_LIMIT_0=50%", "CUDA_DEVICE_MEMORY_LIMIT=-1m",
        "CUDA_DEVICE_MEMORY_LIMIT=abc",   "CUDA_DEVICE_MEMORY_LIMIT=17179869184G",
        "CUDA_DEVICE_SM_LIMIT=lots",      "CUDA_DEVICE_SM_LIMIT_1=50m",
        "HAMI_HANDOFF=pending",
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sandbox sandbox = sandbox_make();
        char output[SANDBOX_OUTPUT], name[64];
        const char *environment[] = {rows[i], NULL};
        const char *argv[] = {WORKLOAD, "alloc", "--mib", "1", NULL};
        struct stat status;
        snprintf(name, sizeof name, "%.*s=", (int)strcspn(rows[i], "="), rows[i]);
        CHECK_EQUAL_THAT(sandbox_run(&sandbox, true, environment, argv, output), 3, rows[i]);
        const char *line = strstr(output, "[libvgpu error");
        CHECK_THAT(line != NULL && strstr(line, name) != NULL, output);
        CHECK_THAT(line != NULL && strstr(line + 1, "[libvgpu") == NULL, output);
        CHECK_THAT(strstr(output, "\"code\": 800") != NULL, output);
        CHECK_THAT(stat(sandbox.region, &status) != 0, rows[i]);
        sandbox_remove(&sandbox);
    }
}

/* The promise in one row: refused at the 4,001st MiB, granted without us. */
static void test_4001st_mib(void) {
    static const char *const environment[] = {"CUDA_DEVICE_MEMORY_LIMIT_0=4000m", NULL};
    static const char *const argv[] = {WORKLOAD, "over-alloc", "--max-mib", "4001", NULL};
    struct sandbox sandbox = sandbox_make();
    char output[SANDBOX_OUTPUT];
    CHECK_EQUAL(sandbox_run(&sandbox, true, environment, argv, output), 0);
    CHECK_THAT(strstr(output, "\"code\": 2, \"name\": \"CUDA_ERROR_OUT_OF_MEMORY\", \"granted_mib\": 4000") != NULL,
               output);
    CHECK_EQUAL(sandbox_run(&sandbox, false, environment, argv, output), 4);
    CHECK_THAT(strstr(output, "\"granted_mib\": 4001") != NULL, output);
    sandbox_remove(&sandbox);
}

static void test_absent_limit_is_unlimited(void) {
    static const char *const argv[] = {WORKLOAD, "over-alloc", "--step-mib", "512", NULL};
    struct sandbox sandbox = sandbox_make();
    char output[SANDBOX_OUTPUT];
    CHECK_EQUAL(sandbox_run(&sandbox, true, NULL, argv, output), 0);
    CHECK_THAT(strstr(output, "\"granted_mib\": 40960") != NULL, output);
    sandbox_remove(&sandbox);
}

/* The first process had no limits (a shell, say): those of the container's own process hold all the same. */
static void test_first_process_without_limits(void) {
    static const char *const argv[] = {WORKLOAD, "alloc", "--mib", "101", NULL};
    static const char *const limited[] = {"CUDA_DEVICE_MEMORY_LIMIT=100m", NULL};
    struct sandbox sandbox = sandbox_make();
    char output[SANDBOX_OUTPUT];
    CHECK_EQUAL(sandbox_run(&sandbox, true, NULL, argv, output), 0);
    CHECK_EQUAL(sandbox_run(&sandbox, true, limited, argv, output), 4);
    CHECK_EQUAL(sandbox_run(&sandbox, true, NULL, argv, output), 4); /* and now for those without, too */
    sandbox_remove(&sandbox);
}

static void test_plain_program(void) {
    struct sandbox sandbox = sandbox_make();
    char output[SANDBOX_OUTPUT];
    struct stat status;
    const char *environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=nonsense", NULL};
    const char *argv[] = {"/bin/sh", "-c", "echo fine; exit 7", NULL};
    CHECK_EQUAL(sandbox_run(&sandbox, true, environment, argv, output), 7);
    CHECK_THAT(strcmp(output, "fine\n") == 0, output);
    mode_t before = umask(077);
    run_one(&sandbox, "plain", environment);
    umask(before);
    CHECK(stat(sandbox.region, &status) != 0);
    sandbox_remove(&sandbox);
}

static void test_nvml_alone(void) {
    struct sandbox sandbox = sandbox_make();
    const char *environment[] = {"CUDA_DEVICE_MEMORY_LIMIT_0=100m", "CUDA_DEVICE_MEMORY_LIMIT_1=200m", NULL};
    const char *argv[] = {WORKLOAD, "alloc", "--mib", "30", "--device", "1", "--hold-until-signal", NULL};
    struct sandbox_process holder = sandbox_start(&sandbox, true, environment, argv);
    CHECK(sandbox_await(&holder, "allocated"));
    run_one(&sandbox, "nvml", environment);
    struct vg_region *region = sandbox_region(&sandbox);
    CHECK(region != NULL && region->slot_count == 1); /* who only looks takes no slot */
    kill(holder.pid, SIGTERM);
    CHECK_EQUAL(sandbox_finish(&holder, NULL), 0);
    sandbox_remove(&sandbox);
}

static void test_first_thread_ends(void) {
    struct sandbox sandbox = sandbox_make();
    char directory[128];
    snprintf(directory, sizeof directory, "VGPU_TEST_DIRECTORY=%s", sandbox.directory);
    const char *environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=100m", directory, NULL};
    run_one(&sandbox, "first-thread-ends", environment);
    run_one(&sandbox, "next", environment);
    run_one(&sandbox, "loaders-own", environment);
    sandbox_remove(&sandbox);
}

static void test_launches(size_t way) {
    struct sandbox sandbox = sandbox_make();
    char output[SANDBOX_OUTPUT], way_text[32];
    snprintf(way_text, sizeof way_text, "VGPU_TEST_WAY=%zu", way);
    const char *environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=100m", way_text, NULL};
    const char *argv[] = {sandbox_self(), "launch", NULL};
    struct sandbox_process process = sandbox_start(&sandbox, true, environment, argv);
    CHECK(sandbox_await(&process, "blocked\n"));
    int file = open(sandbox.region, O_RDWR | O_CLOEXEC);
    int32_t released = 0, let_go = LET_GO;
    CHECK_EQUAL(pwrite(file, &let_go, sizeof let_go, offsetof(struct vg_region, utilisation_switch)), 4);
    CHECK_EQUAL(pwrite(file, &released, sizeof released, offsetof(struct vg_region, recent_kernel)), 4);
    close(file);
    if (!CHECK_EQUAL_THAT(sandbox_finish(&process, output), 0, launch_ways[way]))
        fputs(output, stderr);
    CHECK_THAT(strstr(output, "released") != NULL, output);
    sandbox_remove(&sandbox);
}

int main(int argc, char **argv) {
    if (argc == 2)
        return RUN_BODY(bodies, argv[1]);
    test_bodies();
    test_ordinals();
    test_bad_limits();
    test_4001st_mib();
    test_absent_limit_is_unlimited();
    test_first_process_without_limits();
    test_plain_program();
    test_nvml_alone();
    test_first_thread_ends();
    for (size_t way = 0; way < LAUNCH_WAYS; way++)
        test_launches(way);
    return check_done();
}
