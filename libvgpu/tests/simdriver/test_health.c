/* Cards that fail under running processes: what CUDA tells these, bare and under libvgpu, and those that come after;
 * and which cards reach each other. */
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "reach.h"
#include "sandbox.h"

#define MIB (1024ull * 1024ull)
#define TOOL VGPU_BINARY_DIR "/bin/sim-driver "
#define COUNT(list) (sizeof(list) / sizeof(list)[0])

static CUcontext use_device(int device) {
    CUcontext context = NULL;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
    return context;
}

static void tool(const char *words) {
    char command[512];
    snprintf(command, sizeof command, "env -u LD_PRELOAD " TOOL "%s", words);
    CHECK_EQUAL_THAT(system(command), 0, command);
}

/* What a program does with a card, all of which fails for one reason. */
static void check_all_fail(CUdeviceptr held, CUfunction function, CUresult code, const char *what) {
    CUdeviceptr pointer = 0;
    size_t bytes = 0;
    CHECK_EQUAL_THAT(cuMemAlloc_v2(&pointer, MIB), code, what);
    CHECK_EQUAL_THAT(cuMemAllocManaged(&pointer, MIB, 1), code, what);
    CHECK_EQUAL_THAT(cuMemFree_v2(held), code, what);
    CHECK_EQUAL_THAT(cuMemGetInfo_v2(&bytes, &bytes), code, what);
    CHECK_EQUAL_THAT(cuCtxSynchronize(), code, what);
    CHECK_EQUAL_THAT(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), code, what);
}

static CUfunction load_function(void) {
    CUmodule module = NULL;
    CUfunction function = NULL;
    CHECK_EQUAL(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleGetFunction(&function, module, "kernel"), CUDA_SUCCESS);
    return function;
}

/* ---- bodies ---- */

static void body_xid(const char *argument) {
    int xid = 0, code = 0;
    char words[64];
    CUdeviceptr held = 0, pointer = 0;
    CUcontext first = use_device(0);
    CUfunction function = load_function();
    CHECK_EQUAL(sscanf(argument, "%d,%d", &xid, &code), 2);
    CHECK_EQUAL(cuMemAlloc_v2(&held, MIB), CUDA_SUCCESS);
    snprintf(words, sizeof words, "xid 0 %d", xid);
    tool(words);
    if (code == 0) {
        CHECK_EQUAL_THAT(cuMemFree_v2(held), CUDA_SUCCESS, argument);
        return;
    }
    check_all_fail(held, function, (CUresult)code, argument);
    (void)use_device(1); /* another card is well */
    CHECK_EQUAL_THAT(cuMemAlloc_v2(&pointer, MIB), CUDA_SUCCESS, argument);
    CHECK_EQUAL(cuCtxSetCurrent(first), CUDA_SUCCESS);
    check_all_fail(held, function, (CUresult)code, argument); /* and this one stays ill, for this process */
}

/* Who starts afterwards finds the card well and nothing held. */
static void body_later(const char *argument) {
    CUdeviceptr pointer = 0;
    (void)argument;
    (void)use_device(0);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 100 * MIB), CUDA_SUCCESS);
}

static void body_lost(const char *argument) {
    CUdeviceptr held = 0;
    (void)argument;
    (void)use_device(0);
    CUfunction function = load_function();
    CHECK_EQUAL(cuMemAlloc_v2(&held, MIB), CUDA_SUCCESS);
    tool("lose 0");
    check_all_fail(held, function, CUDA_ERROR_DEVICE_UNAVAILABLE, "a lost card");
}

/* Starts while card 0 is lost: CUDA's first device is the second card, and so is its limit. */
static void body_start_without_first(const char *argument) {
    int count = 0;
    size_t total = 0;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDeviceGetCount(&count), CUDA_SUCCESS);
    CHECK_EQUAL(count, 1);
    CHECK_EQUAL(cuDeviceTotalMem_v2(&total, 0), CUDA_SUCCESS);
    CHECK_EQUAL(total / MIB, strtoull(argument, NULL, 10));
}

static void body_start_without_any(const char *argument) {
    (void)argument;
    CHECK_EQUAL(cuInit(0), CUDA_ERROR_NO_DEVICE);
}

/* Four cards: 0 and 1 by NVLink, 0 and 2 below one host bridge, 3 apart; 2 and 3 at an NVSwitch. */
static void body_peers(const char *argument) {
    static const struct {
        int from, to, reaches, rank, atomics;
    } pairs[] = {{0, 1, 1, 0, 1}, {1, 0, 1, 0, 1}, {0, 2, 1, 1, 0}, {0, 3, 0, 1, 0}, {2, 3, 1, 0, 1}, {1, 2, 0, 1, 0}};
    int value = -1;
    (void)argument;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    for (size_t i = 0; i < COUNT(pairs); i++) {
        char what[32];
        int from = pairs[i].from, to = pairs[i].to;
        snprintf(what, sizeof what, "cards %d and %d", from, to);
        CHECK_EQUAL_THAT(cuDeviceCanAccessPeer(&value, from, to), CUDA_SUCCESS, what);
        CHECK_EQUAL_THAT(value, pairs[i].reaches, what);
        const struct {
            CUdevice_P2PAttribute attribute;
            int wanted;
        } asked[] = {{CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, pairs[i].reaches},
                     {CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED, pairs[i].reaches},
                     {CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, pairs[i].rank},
                     {CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, pairs[i].atomics}};
        for (size_t a = 0; a < COUNT(asked); a++) {
            CHECK_EQUAL_THAT(cuDeviceGetP2PAttribute(&value, asked[a].attribute, from, to), CUDA_SUCCESS, what);
            CHECK_EQUAL_THAT(value, asked[a].wanted, what);
        }
    }
    CHECK_EQUAL(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 1, 1),
                CUDA_ERROR_INVALID_DEVICE);
    CHECK_EQUAL(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 9),
                CUDA_ERROR_INVALID_DEVICE);
    CHECK_EQUAL(cuDeviceGetP2PAttribute(NULL, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1),
                CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuDeviceCanAccessPeer(&value, 1, 1), CUDA_SUCCESS);
    CHECK_EQUAL(value, 0);
}

static const struct {
    const char *name;
    void (*body)(const char *argument);
} bodies[] = {{"xid", body_xid},
              {"later", body_later},
              {"lost", body_lost},
              {"start-without-first", body_start_without_first},
              {"start-without-any", body_start_without_any},
              {"peers", body_peers}};

/* ---- the tests ---- */

static void run_body(const struct sandbox *sandbox, bool with_vgpu, const char *more, const char *name,
                     const char *argument) {
    char output[SANDBOX_OUTPUT];
    const char *const environment[] = {"CUDA_DEVICE_MEMORY_LIMIT_0=100m", "CUDA_DEVICE_MEMORY_LIMIT_1=50m", more, NULL};
    int status =
        sandbox_run(sandbox, with_vgpu, environment, (const char *[]){sandbox_self(), name, argument, NULL}, output);
    if (!CHECK_EQUAL_THAT(status, 0, name))
        fputs(output, stderr);
}

static void test_failing_cards(bool with_vgpu) {
    static const char *const xids[] = {"13,719", "31,700", "43,719", "48,214", "74,220", "94,214", "95,214", "63,0"};
    for (size_t i = 0; i < COUNT(xids); i++) {
        struct sandbox sandbox = sandbox_make();
        run_body(&sandbox, with_vgpu, NULL, "xid", xids[i]);
        run_body(&sandbox, with_vgpu, NULL, "later", "");
        CHECK_EQUAL_THAT(sandbox_books_used(&sandbox, 0, 0), 0, xids[i]);
        sandbox_remove(&sandbox);
    }
}

static void run_tool(const struct sandbox *sandbox, const char *verb, const char *card) {
    char output[SANDBOX_OUTPUT];
    const char *const argv[] = {VGPU_BINARY_DIR "/bin/sim-driver", verb, card, NULL};
    CHECK_EQUAL_THAT(sandbox_run(sandbox, false, NULL, argv, output), 0, output);
}

static void test_lost_cards(bool with_vgpu) {
    struct sandbox sandbox = sandbox_make();
    run_body(&sandbox, with_vgpu, NULL, "lost", "");
    run_body(&sandbox, with_vgpu, NULL, "start-without-first", with_vgpu ? "50" : "40960");
    run_tool(&sandbox, "lose", "1");
    run_body(&sandbox, with_vgpu, NULL, "start-without-any", "");
    run_tool(&sandbox, "restore", "0");
    run_body(&sandbox, with_vgpu, NULL, "later", "");
    sandbox_remove(&sandbox);
}

static void test_peers(void) {
    char setting[160];
    struct sandbox sandbox = sandbox_make();
    snprintf(setting, sizeof setting, "HAMI_SIM_DRIVER=%s/peers.json", sandbox.directory);
    FILE *file = fopen(strchr(setting, '=') + 1, "w");
    if (!CHECK(file != NULL))
        return;
    fputs("{\"cards\": [", file);
    for (int card = 0; card < 4; card++)
        fprintf(file, "%s{\"uuid\": \"GPU-%d\", \"name\": \"S\", \"memory_mib\": 1024}", card == 0 ? "" : ", ", card);
    fputs("], \"links\": [{\"from\": 0, \"to\": 1, \"nvlinks\": 4}, {\"from\": 0, \"to\": 2, \"ancestor\": "
          "\"hostbridge\"},"
          "{\"from\": 2, \"nvlinks\": 2}, {\"from\": 3, \"nvlinks\": 2}]}",
          file);
    fclose(file);
    run_body(&sandbox, false, setting, "peers", "");
    sandbox_remove(&sandbox);
}

int main(int argc, char **argv) {
    for (size_t i = 0; argc > 2 && i < COUNT(bodies); i++)
        if (strcmp(bodies[i].name, argv[1]) == 0) {
            bodies[i].body(argv[2]);
            return check_done();
        }
    test_failing_cards(false);
    test_failing_cards(true);
    test_lost_cards(false);
    test_lost_cards(true);
    test_peers();
    return check_done();
}
