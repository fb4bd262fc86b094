/* Failures that users met, each by its id in tests/data/cases, where no other test stands for it. */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bodies.h"
#include "vgpu/abi/nvml_fn.h"
#include "vgpu/shm_layout.h"

static struct sandbox own_sandbox(void) {
    struct sandbox here = {.directory = ""};
    snprintf(here.directory, sizeof here.directory, "%s", getenv("VGPU_TEST_DIRECTORY"));
    snprintf(here.region, sizeof here.region, "%s", getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"));
    return here;
}

static void lower_limit(uint64_t bytes) {
    struct sandbox here = own_sandbox();
    int file = open(here.region, O_RDWR | O_CLOEXEC);
    CHECK_EQUAL(pwrite(file, &bytes, sizeof bytes, offsetof(struct vg_region, limit)), sizeof bytes);
    close(file);
}

#define NVML_CALL(name) ((PFN_##name)(uintptr_t)dlsym(nvml, #name))

static void *open_nvml(nvmlDevice_t *device) {
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    CHECK_EQUAL(NVML_CALL(nvmlInit_v2)(), NVML_SUCCESS);
    CHECK_EQUAL(NVML_CALL(nvmlDeviceGetHandleByIndex_v2)(0, device), NVML_SUCCESS);
    return nvml;
}

/* ---- bodies: what the process under test does ---- */

/* case CMM-02, REQ-06: 120 MiB are used when the limit becomes 100. What is left is nothing, not 2^64 less 20. */
static void body_more_used_than_allowed(void) {
    CUdeviceptr pointer = 0, more = 0;
    size_t free_bytes = 1, total = 1;
    nvmlDevice_t device = NULL;
    nvmlMemory_t v1 = {.total = 1};
    nvmlMemory_v2_t v2 = {.version = VG_NVML_MEMORY_V2};
    use_device(0);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 120 * MIB), CUDA_SUCCESS);
    lower_limit(100 * MIB);
    CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    CHECK_EQUAL(free_bytes, 0);
    CHECK_EQUAL(total, 100 * MIB);
    void *nvml = open_nvml(&device);
    CHECK_EQUAL(NVML_CALL(nvmlDeviceGetMemoryInfo)(device, &v1), NVML_SUCCESS);
    CHECK(v1.total == 100 * MIB && v1.free == 0 && (v1.used == 100 * MIB || v1.used == 120 * MIB));
    CHECK_EQUAL(NVML_CALL(nvmlDeviceGetMemoryInfo_v2)(device, &v2), NVML_SUCCESS);
    CHECK(v2.total == 100 * MIB && v2.free == 0 && (v2.used == 100 * MIB || v2.used == 120 * MIB));
    CHECK_EQUAL(cuMemAlloc_v2(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 100 * MIB);
}

/* case CMM-03: with outputs left out the code is the driver's, which the test compares, and what is filled is capped.
 */
static void body_outputs_left_out(void) {
    size_t free_bytes = 0, total = 0;
    nvmlDevice_t device = NULL;
    bool is_limited = getenv("CUDA_DEVICE_MEMORY_LIMIT") != NULL;
    use_device(0);
    printf("codes %d", (int)cuMemGetInfo_v2(NULL, &total));
    printf(" %d", (int)cuMemGetInfo_v2(&free_bytes, NULL));
    printf(" %d", (int)cuMemGetInfo_v2(NULL, NULL));
    printf(" %d", (int)cuDeviceTotalMem_v2(NULL, 0));
    void *nvml = open_nvml(&device);
    printf(" %d", (int)NVML_CALL(nvmlDeviceGetMemoryInfo)(device, NULL));
    printf(" %d", (int)NVML_CALL(nvmlDeviceGetMemoryInfo_v2)(device, NULL));
    printf(" %d.\n", (int)NVML_CALL(nvmlDeviceGetComputeRunningProcesses_v3)(device, NULL, NULL));
    if (is_limited) {
        CHECK(total == 0 || total == 100 * MIB);
        CHECK(free_bytes == 0 || free_bytes == 100 * MIB);
        CHECK(total != 0 || free_bytes != 0);
    }
}

/* case CPR-04: what is shown in an unusual way, or not at all; the test compares the codes with the driver's. */
static void body_devices(void) {
    int count = 0;
    CUdeviceptr pointer = 0;
    printf("codes %d", (int)cuInit(0));
    printf(" %d", (int)cuDeviceGetCount(&count));
    printf(" %d devices", count);
    for (int device = 0; device < count; device++) {
        use_device(device);
        printf(" %d", (int)cuMemAlloc_v2(&pointer, 50 * MIB));
    }
    printf(".\n");
}

/* case CMM-04: a pointer that we never saw goes to the driver, once, and the code comes back; accounts stay. */
static void body_pointers_of_others(void) {
    static const CUdeviceptr strangers[] = {0xdead000, 0x1000, ~0ull, 1ull << 63};
    CUdeviceptr own = 0;
    use_device(0);
    CHECK_EQUAL(cuMemAlloc_v2(&own, 40 * MIB), CUDA_SUCCESS);
    sandbox_count_calls(NULL);
    for (unsigned i = 0; i < sizeof strangers / sizeof strangers[0]; i++) {
        CHECK_EQUAL(cuMemFree_v2(strangers[i]), CUDA_ERROR_INVALID_VALUE);
        CHECK_EQUAL(sandbox_calls(NULL, "cuMemFree_v2"), i + 1);
        CHECK_EQUAL(cuMemFreeAsync(strangers[i], NULL), CUDA_ERROR_INVALID_VALUE);
        CHECK_EQUAL(sandbox_calls(NULL, "cuMemFreeAsync"), i + 1);
        CHECK_EQUAL(cuMemRelease((CUmemGenericAllocationHandle)strangers[i]), CUDA_ERROR_INVALID_VALUE);
        CHECK_EQUAL(sandbox_calls(NULL, "cuMemRelease"), i + 1);
    }
    sandbox_fail(NULL, "cuMemFree_v2", CUDA_SUCCESS, 0, 1); /* say the driver knows it: memory it gave by another way */
    CHECK_EQUAL(cuMemFree_v2(strangers[0]), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 60 * MIB);
}

/* case CMM-08: what an earlier process used and gave back leaves the next one's account whole. */
static void body_comes_later(void) {
    CUdeviceptr pointer = 0;
    use_device(0);
    CHECK_EQUAL(seen_free(), 1000 * MIB);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 700 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 300 * MIB);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 301 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
}

/* case CMM-12: managed memory says so, and a question that fails leaves the answer alone. */
static void body_managed(void) {
    CUdeviceptr pointer = 0;
    unsigned managed = 7;
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_IS_MANAGED;
    void *outputs[] = {&managed};
    use_device(0);
    CHECK_EQUAL(cuMemAllocManaged(&pointer, 1000, 1), CUDA_SUCCESS);
    CHECK_EQUAL(cuPointerGetAttribute(&managed, attribute, 0xdead000), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(managed, 7);
    CHECK_EQUAL(cuPointerGetAttribute(&managed, attribute, pointer), CUDA_SUCCESS);
    CHECK_EQUAL(managed, 1);
    managed = 7;
    CHECK_EQUAL(cuPointerGetAttributes(1, &attribute, outputs, pointer), CUDA_SUCCESS);
    CHECK_EQUAL(managed, 1);
    managed = 7;
    sandbox_fail(NULL, "cuPointerGetAttributes", CUDA_ERROR_UNKNOWN, 0, 1);
    CHECK_EQUAL(cuPointerGetAttributes(1, &attribute, outputs, pointer), CUDA_ERROR_UNKNOWN);
    CHECK_EQUAL(managed, 7);
}

/* case CVM-01: memory of the host is the driver's business: passed on, not counted, not complained of. */
static void body_memory_elsewhere(void) {
    static const int types[] = {0, 2, 3, 4, 99}; /* none, host, a NUMA node of it, the current one, of times to come */
    static const int ids[] = {0, 1, -1, 1 << 30};
    use_device(0);
    for (size_t i = 0; i < sizeof types / sizeof types[0] * sizeof ids / sizeof ids[0]; i++) {
        CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
        CUmemGenericAllocationHandle handle = 0x1234, driver_gave = 0x5678;
        prop.location = (CUmemLocation){(CUmemLocationType)types[i / 4], ids[i % 4]};
        CUresult refused = cuMemCreate(&handle, 500 * MIB, &prop, 0);
        CHECK(refused == CUDA_ERROR_NOT_SUPPORTED || refused == CUDA_ERROR_INVALID_VALUE || refused == CUDA_SUCCESS);
        sandbox_fail(NULL, "cuMemCreate", CUDA_SUCCESS, 0, 1);
        CHECK_EQUAL(cuMemCreate(&driver_gave, 500 * MIB, &prop, 0), CUDA_SUCCESS); /* five times the slice */
        CHECK_EQUAL(seen_free(), 100 * MIB);
        CHECK_EQUAL(cuMemRelease(driver_gave), CUDA_ERROR_INVALID_VALUE);
        CHECK_EQUAL(seen_free(), 100 * MIB);
        sandbox_heal(NULL);
    }
}

/* case CUT-02: launches on a device are paid from the share of the card that it is, and of no other; and NVML's load of
 * the process is looked for on that card, by its UUID. VGPU_TEST_DEVICE is card VGPU_TEST_CARD here. */
static void body_pays_for_its_card(void) {
    CUmodule module = NULL;
    CUfunction function = NULL;
    unsigned card = (unsigned)atoi(getenv("VGPU_TEST_CARD"));
    use_device(atoi(getenv("VGPU_TEST_DEVICE")));
    CHECK_EQUAL(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleGetFunction(&function, module, "kernel_1000us"), CUDA_SUCCESS);
    struct sandbox here = own_sandbox();
    struct vg_region *region = sandbox_region(&here);
    const struct vg_extension *extension = vg_extension_of(region);
    int file = open(here.region, O_RDWR | O_CLOEXEC);
    pid_t pid = getpid(); /* an agent or monitor tells the host's, which it is here */
    CHECK_EQUAL(pwrite(file, &pid, sizeof pid, offsetof(struct vg_region, slots[0].host_pid)), sizeof pid);
    close(file);
    while (region->slots[0].utilisation[card].sm == 0)
        CHECK_EQUAL(cuLaunchKernel(function, 100, 1, 1, 256, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
    for (unsigned i = 0; i < VG_MAX_CARDS; i++) {
        CHECK((extension->compute[i].granted_until_ns != 0) == (i == card));
        CHECK((region->slots[0].utilisation[i].sm != 0) == (i == card));
    }
}

/* ---- the tests ---- */

static int run_child(const struct sandbox *sandbox, bool with_vgpu, const char *limit, const char *body,
                     char output[SANDBOX_OUTPUT]) {
    char directory[128];
    snprintf(directory, sizeof directory, "VGPU_TEST_DIRECTORY=%s", sandbox->directory);
    const char *environment[] = {directory, limit, NULL};
    return sandbox_run(sandbox, with_vgpu, environment, (const char *[]){sandbox_self(), body, NULL}, output);
}

static void test_body(const char *limit, const char *body) {
    struct sandbox sandbox = sandbox_make();
    char output[SANDBOX_OUTPUT];
    if (!CHECK_EQUAL_THAT(run_child(&sandbox, true, limit, body, output), 0, body))
        fputs(output, stderr);
    CHECK_THAT(strstr(output, "[libvgpu") == NULL, output);
    sandbox_remove(&sandbox);
}

static void describe_four_cards(const struct sandbox *sandbox) {
    char path[128];
    snprintf(path, sizeof path, "%s/node.json", sandbox->directory);
    FILE *file = fopen(path, "w");
    if (!CHECK(file != NULL))
        return;
    fputs("{\"cards\": [", file);
    for (int i = 0; i < 4; i++)
        fprintf(file,
                "%s{\"uuid\": \"GPU-11111111-2222-3333-4444-00000000000%d\", \"name\": \"Simulated\", "
                "\"memory_mib\": 40960}",
                i == 0 ? "" : ", ", i);
    fputs("]}\n", file);
    fclose(file);
}

static void test_shares_of_cards(void) {
    static const struct {
        const char *visible, *device, *card;
    } rows[] = {
        {"CUDA_VISIBLE_DEVICES=0,1", "VGPU_TEST_DEVICE=0", "VGPU_TEST_CARD=0"},
        {"CUDA_VISIBLE_DEVICES=1,0", "VGPU_TEST_DEVICE=0", "VGPU_TEST_CARD=1"},
        {"CUDA_VISIBLE_DEVICES=1", "VGPU_TEST_DEVICE=0", "VGPU_TEST_CARD=1"},
        {"CUDA_VISIBLE_DEVICES=2,3", "VGPU_TEST_DEVICE=0", "VGPU_TEST_CARD=2"},
        {"CUDA_VISIBLE_DEVICES=2,3", "VGPU_TEST_DEVICE=1", "VGPU_TEST_CARD=3"},
        {"CUDA_VISIBLE_DEVICES=GPU-11111111-2222-3333-4444-000000000001", "VGPU_TEST_DEVICE=0", "VGPU_TEST_CARD=1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sandbox sandbox = sandbox_make();
        char output[SANDBOX_OUTPUT], directory[128];
        describe_four_cards(&sandbox);
        snprintf(directory, sizeof directory, "VGPU_TEST_DIRECTORY=%s", sandbox.directory);
        const char *environment[] = {
            directory, "CUDA_DEVICE_SM_LIMIT=50", rows[i].visible, rows[i].device, rows[i].card, NULL};
        const char *argv[] = {sandbox_self(), "pays-for-its-card", NULL};
        if (!CHECK_EQUAL_THAT(sandbox_run(&sandbox, true, environment, argv, output), 0, rows[i].visible))
            fputs(output, stderr);
        sandbox_remove(&sandbox);
    }
}

static void test_codes_are_the_drivers(const char *body, const char *setting) {
    struct sandbox sandbox = sandbox_make();
    char output[2][SANDBOX_OUTPUT], directory[128];
    snprintf(directory, sizeof directory, "VGPU_TEST_DIRECTORY=%s", sandbox.directory);
    for (int with_vgpu = 0; with_vgpu < 2; with_vgpu++) {
        const char *environment[] = {directory, setting, with_vgpu ? "CUDA_DEVICE_MEMORY_LIMIT=100m" : NULL, NULL};
        const char *argv[] = {sandbox_self(), body, NULL};
        if (!CHECK_EQUAL_THAT(sandbox_run(&sandbox, with_vgpu, environment, argv, output[with_vgpu]), 0, setting))
            fputs(output[with_vgpu], stderr);
    }
    CHECK_THAT(strncmp(output[0], "codes ", 6) == 0 && strcmp(output[0], output[1]) == 0, output[1]);
    sandbox_remove(&sandbox);
}

static void test_after_another(bool is_killed) {
    struct sandbox sandbox = sandbox_make();
    char output[SANDBOX_OUTPUT];
    const char *environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=1000m", NULL};
    const char *argv[] = {WORKLOAD, "alloc", "--mib", "900", "--hold-until-signal", NULL};
    struct sandbox_process first = sandbox_start(&sandbox, true, environment, argv);
    CHECK(sandbox_await(&first, "allocated"));
    kill(first.pid, is_killed ? SIGKILL : SIGTERM);
    CHECK_EQUAL(sandbox_finish(&first, output), is_killed ? -SIGKILL : 0);
    if (!CHECK_EQUAL(run_child(&sandbox, true, environment[0], "comes-later", output), 0))
        fputs(output, stderr);
    sandbox_remove(&sandbox);
}

/* case CPR-07: there is no lock of the node to wait for, so no folder of locks can lack or be closed to us. */
static void test_no_lock_of_the_node(void) {
    int file = open(VGPU_BINARY_DIR "/lib/libvgpu.so", O_RDONLY | O_CLOEXEC);
    struct stat status;
    CHECK_EQUAL(fstat(file, &status), 0);
    void *bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    CHECK(memmem(bytes, (size_t)status.st_size, "CUDA_DEVICE_MEMORY_LIMIT", 24) != NULL);
    CHECK(memmem(bytes, (size_t)status.st_size, "vgpulock", 8) == NULL);
    close(file);
}

static const struct body bodies[] = {
    {"more-used-than-allowed", body_more_used_than_allowed},
    {"outputs-left-out", body_outputs_left_out},
    {"pointers-of-others", body_pointers_of_others},
    {"comes-later", body_comes_later},
    {"managed", body_managed},
    {"devices", body_devices},
    {"memory-elsewhere", body_memory_elsewhere},
    {"pays-for-its-card", body_pays_for_its_card},
};

static const char *const visible[] = {"CUDA_VISIBLE_DEVICES=",    "CUDA_VISIBLE_DEVICES=-1",
                                      "CUDA_VISIBLE_DEVICES=1",   "CUDA_VISIBLE_DEVICES=0,0",
                                      "CUDA_VISIBLE_DEVICES=7",   "CUDA_VISIBLE_DEVICES=0,1,2",
                                      "CUDA_VISIBLE_DEVICES=1,x", "CUDA_VISIBLE_DEVICES=GPU-11111111",
                                      "CUDA_VISIBLE_DEVICES= 1",  "CUDA_VISIBLE_DEVICES=nothing"};

int main(int argc, char **argv) {
    if (argc == 2)
        return RUN_BODY(bodies, argv[1]);
    test_body("CUDA_DEVICE_MEMORY_LIMIT=200m", "more-used-than-allowed");
    test_codes_are_the_drivers("outputs-left-out", "CUDA_VISIBLE_DEVICES=0,1");
    for (size_t i = 0; i < sizeof visible / sizeof visible[0]; i++)
        test_codes_are_the_drivers("devices", visible[i]);
    test_body("CUDA_DEVICE_MEMORY_LIMIT=100m", "pointers-of-others");
    test_after_another(false);
    test_after_another(true);
    test_body("CUDA_DEVICE_MEMORY_LIMIT=100m", "managed");
    test_body("CUDA_DEVICE_MEMORY_LIMIT=100m", "memory-elsewhere");
    test_no_lock_of_the_node();
    test_shares_of_cards();
    return check_done();
}
