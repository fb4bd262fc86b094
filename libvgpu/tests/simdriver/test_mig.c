/* MIG in the simulated driver: what a card can hold, where, and what other processes see of it. */
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "vgpu/abi/nvml_fn.h"

#define TOOL VGPU_BINARY_DIR "/bin/sim-driver"

enum { ID_1G = 19, ID_2G = 14, ID_3G = 9, ID_7G = 0 };

static void *library;
#define NVML(symbol) ((PFN_##symbol)(uintptr_t)dlsym(library, #symbol))

static char folder[] = "/tmp/vgpu-mig-XXXXXX";

static void describe(const char *more) {
    char path[64];
    snprintf(path, sizeof path, "%s/driver.json", folder);
    FILE *file = fopen(path, "we");
    fprintf(file,
            "{\"cards\": [{\"uuid\": \"GPU-a\", \"name\": \"A\", \"memory_mib\": 40960, \"mig_capable\": true%s}, "
            "{\"uuid\": \"GPU-b\", \"name\": \"B\", \"memory_mib\": 40960}]}",
            more);
    fclose(file);
    setenv("HAMI_SIM_DRIVER", path, 1);
}

static nvmlDevice_t card(unsigned index) {
    nvmlDevice_t device = NULL;
    CHECK_EQUAL(NVML(nvmlDeviceGetHandleByIndex_v2)(index, &device), NVML_SUCCESS);
    return device;
}

static nvmlReturn_t create(nvmlDevice_t device, unsigned id, unsigned start, unsigned size, nvmlGpuInstance_t *made) {
    nvmlGpuInstancePlacement_t placement = {.start = start, .size = size};
    return NVML(nvmlDeviceCreateGpuInstanceWithPlacement)(device, id, &placement, made);
}

static void test_profiles(void) {
    nvmlGpuInstanceProfileInfo_t info;
    nvmlGpuInstancePlacement_t places[8];
    unsigned count = 8;
    CHECK_EQUAL(NVML(nvmlDeviceGetGpuInstanceProfileInfo)(card(0), 0, &info), NVML_SUCCESS);
    CHECK(info.id == ID_1G && info.sliceCount == 1 && info.instanceCount == 7 && info.memorySizeMB == 4864);
    CHECK_EQUAL(NVML(nvmlDeviceGetGpuInstanceProfileInfo)(card(0), 5, &info), NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQUAL(NVML(nvmlDeviceGetGpuInstanceProfileInfo)(card(1), 0, &info), NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQUAL(NVML(nvmlDeviceGetGpuInstancePossiblePlacements_v2)(card(0), ID_3G, places, &count), NVML_SUCCESS);
    CHECK(count == 2 && places[0].start == 0 && places[1].start == 4 && places[1].size == 4);
    CHECK_EQUAL(NVML(nvmlDeviceGetGpuInstancePossiblePlacements_v2)(card(0), ID_7G, NULL, &count), NVML_SUCCESS);
    CHECK_EQUAL(count, 1);
}

static void test_mode(void) {
    unsigned current = 9, pending = 9;
    nvmlGpuInstance_t made = NULL;
    nvmlReturn_t activation = NVML_ERROR_UNKNOWN;
    CHECK_EQUAL(NVML(nvmlDeviceGetMigMode)(card(1), &current, &pending), NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQUAL(NVML(nvmlDeviceGetMigMode)(card(0), &current, &pending), NVML_SUCCESS);
    CHECK(current == 0 && pending == 0);
    CHECK_EQUAL(create(card(0), ID_1G, 0, 1, &made), NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQUAL(NVML(nvmlDeviceSetMigMode)(card(0), 1, &activation), NVML_SUCCESS);
    CHECK_EQUAL(activation, NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlDeviceGetMigMode)(card(0), &current, &pending), NVML_SUCCESS);
    CHECK(current == 1 && pending == 1);
}

static void run_tool(const char *command, unsigned id) {
    char line[256];
    snprintf(line, sizeof line, "%s %s 0 %u", TOOL, command, id);
    CHECK_EQUAL(system(line), 0); /* NOLINT(cert-env33-c): the tool of this build */
}

static void test_instances(void) {
    nvmlGpuInstance_t large = NULL, small = NULL, other = NULL, list[8];
    nvmlComputeInstance_t compute = NULL, again = NULL;
    nvmlComputeInstanceProfileInfo_t kind;
    nvmlGpuInstanceInfo_t info;
    nvmlDevice_t device = NULL, parent = NULL;
    char uuid[96] = "";
    unsigned count = 0, id = 9;
    CHECK_EQUAL(create(card(0), ID_3G, 4, 4, &large), NVML_SUCCESS);
    CHECK_EQUAL(create(card(0), ID_1G, 5, 1, &other), NVML_ERROR_INSUFFICIENT_RESOURCES);
    CHECK_EQUAL(create(card(0), ID_7G, 0, 8, &other), NVML_ERROR_INSUFFICIENT_RESOURCES);
    CHECK_EQUAL(create(card(0), ID_2G, 1, 2, &other), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQUAL(create(card(0), ID_1G, 3, 1, &small), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlDeviceGetGpuInstances)(card(0), ID_3G, list, &count), NVML_SUCCESS);
    CHECK(count == 1 && list[0] == large);
    CHECK_EQUAL(NVML(nvmlGpuInstanceGetInfo)(small, &info), NVML_SUCCESS);
    CHECK(info.device == card(0) && info.id == 2 && info.profileId == ID_1G && info.placement.start == 3);

    CHECK_EQUAL(NVML(nvmlDeviceGetMigDeviceHandleByIndex)(card(0), 0, &device), NVML_ERROR_NOT_FOUND);
    CHECK_EQUAL(NVML(nvmlGpuInstanceGetComputeInstanceProfileInfo)(large, 0, 0, &kind), NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQUAL(NVML(nvmlGpuInstanceGetComputeInstanceProfileInfo)(large, 2, 0, &kind), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlGpuInstanceCreateComputeInstance)(large, kind.id, &compute), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlGpuInstanceCreateComputeInstance)(large, kind.id, &again), NVML_ERROR_INSUFFICIENT_RESOURCES);
    CHECK_EQUAL(NVML(nvmlDeviceGetMigDeviceHandleByIndex)(card(0), 0, &device), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlDeviceGetUUID)(device, uuid, sizeof uuid), NVML_SUCCESS);
    CHECK_THAT(strncmp(uuid, "MIG-", 4) == 0, uuid);
    device = NULL;
    CHECK_EQUAL(NVML(nvmlDeviceGetHandleByUUID)(uuid, &device), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlDeviceGetDeviceHandleFromMigDeviceHandle)(device, &parent), NVML_SUCCESS);
    CHECK(parent == card(0));
    CHECK_EQUAL(NVML(nvmlDeviceGetGpuInstanceId)(device, &id), NVML_SUCCESS);
    CHECK_EQUAL(id, 1);
    CHECK_EQUAL(NVML(nvmlDeviceGetComputeInstanceId)(device, &id), NVML_SUCCESS);
    CHECK_EQUAL(id, 0);
    CHECK_EQUAL(NVML(nvmlDeviceGetGpuInstanceId)(card(0), &id), NVML_ERROR_INVALID_ARGUMENT);

    run_tool("mig-hold", 1);
    CHECK_EQUAL(NVML(nvmlComputeInstanceDestroy)(compute), NVML_ERROR_IN_USE);
    CHECK_EQUAL(NVML(nvmlGpuInstanceDestroy)(large), NVML_ERROR_IN_USE);
    run_tool("mig-release", 1);
    CHECK_EQUAL(NVML(nvmlComputeInstanceDestroy)(compute), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlGpuInstanceDestroy)(large), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlGpuInstanceDestroy)(large), NVML_ERROR_NOT_FOUND);
    CHECK_EQUAL(NVML(nvmlDeviceGetUUID)(device, uuid, sizeof uuid), NVML_ERROR_NOT_FOUND);
    CHECK_EQUAL(NVML(nvmlDeviceGetHandleByUUID)(uuid, &device), NVML_ERROR_NOT_FOUND);

    nvmlReturn_t activation = NVML_SUCCESS;
    CHECK_EQUAL(NVML(nvmlDeviceSetMigMode)(card(0), 0, &activation), NVML_ERROR_IN_USE);
    CHECK_EQUAL(NVML(nvmlGpuInstanceDestroy)(small), NVML_SUCCESS);
}

/* What one process made the next one finds, and a later instance has a UUID of its own. */
static void test_other_process(void) {
    pid_t child = fork();
    if (child == 0) {
        nvmlGpuInstance_t made = NULL;
        nvmlComputeInstance_t compute = NULL;
        CHECK_EQUAL(NVML(nvmlInit_v2)(), NVML_SUCCESS);
        CHECK_EQUAL(create(card(0), ID_1G, 6, 1, &made), NVML_SUCCESS);
        CHECK_EQUAL(NVML(nvmlGpuInstanceCreateComputeInstance)(made, 0, &compute), NVML_SUCCESS);
        _exit(check_done());
    }
    int status = -1;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
    CHECK_EQUAL(NVML(nvmlInit_v2)(), NVML_SUCCESS);
    nvmlDevice_t device = NULL;
    nvmlGpuInstance_t found = NULL;
    nvmlComputeInstance_t compute = NULL;
    nvmlComputeInstanceInfo_t info;
    char first[96] = "", second[96] = "";
    CHECK_EQUAL(NVML(nvmlDeviceGetMigDeviceHandleByIndex)(card(0), 0, &device), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlDeviceGetUUID)(device, first, sizeof first), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlDeviceGetGpuInstanceById)(card(0), 1, &found), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlDeviceGetGpuInstanceById)(card(0), 7, &found), NVML_ERROR_NOT_FOUND);
    CHECK_EQUAL(NVML(nvmlDeviceGetGpuInstanceById)(card(0), 1, &found), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlGpuInstanceGetComputeInstanceById)(found, 0, &compute), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlComputeInstanceGetInfo_v2)(compute, &info), NVML_SUCCESS);
    CHECK(info.gpuInstance == found && info.id == 0);
    CHECK_EQUAL(NVML(nvmlComputeInstanceDestroy)(compute), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlGpuInstanceCreateComputeInstance)(found, 0, &compute), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlComputeInstanceDestroy)(compute), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlGpuInstanceDestroy)(found), NVML_SUCCESS);
    CHECK_EQUAL(create(card(0), ID_1G, 6, 1, &found), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlGpuInstanceCreateComputeInstance)(found, 0, &compute), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlDeviceGetUUID)(device, second, sizeof second), NVML_SUCCESS);
    CHECK_THAT(strcmp(first, second) != 0, second);
    CHECK_EQUAL(NVML(nvmlComputeInstanceDestroy)(compute), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlGpuInstanceDestroy)(found), NVML_SUCCESS);
}

static void test_own_profiles(void) {
    nvmlGpuInstanceProfileInfo_t info;
    nvmlGpuInstance_t made = NULL;
    describe(", \"mig_enabled\": true, \"mig_profiles\": [{\"kind\": 3, \"slices\": 4, \"sm_count\": 56, "
             "\"memory_mib\": 24125, \"starts\": [0]}]");
    CHECK_EQUAL(NVML(nvmlShutdown)(), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlInit_v2)(), NVML_SUCCESS);
    CHECK_EQUAL(NVML(nvmlDeviceGetGpuInstanceProfileInfo)(card(0), 0, &info), NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQUAL(NVML(nvmlDeviceGetGpuInstanceProfileInfo)(card(0), 3, &info), NVML_SUCCESS);
    CHECK(info.id == 3 && info.instanceCount == 1 && info.memorySizeMB == 24125);
    CHECK_EQUAL(create(card(0), 3, 0, 4, &made), NVML_SUCCESS);
}

int main(void) {
    CHECK(mkdtemp(folder) != NULL);
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    describe(", \"mig_enabled\": true");
    test_other_process();
    CHECK_EQUAL(NVML(nvmlShutdown)(), NVML_SUCCESS);
    char command[128];
    snprintf(command, sizeof command, "rm -r %s/driver.json.state", folder);
    describe("");
    CHECK_EQUAL(NVML(nvmlInit_v2)(), NVML_SUCCESS);
    nvmlReturn_t activation = NVML_ERROR_UNKNOWN;
    CHECK_EQUAL(NVML(nvmlDeviceSetMigMode)(card(0), 0, &activation), NVML_SUCCESS);
    test_profiles();
    test_mode();
    test_instances();
    test_own_profiles();
    CHECK_EQUAL(system(command), 0); /* NOLINT(cert-env33-c): what this test made */
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK_EQUAL(system(command), 0); /* NOLINT(cert-env33-c) */
    return check_done();
}
