/* While a stream is captured into a graph nothing reaches the driver but what the program itself calls, whatever limits
 * are in force: the driver would refuse the capture for calls of others, or take them into the graph. Only which
 * context the thread has may be asked: that concerns no stream, and no capture forbids it. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "faults.h"
#include "reach.h"
#include "sandbox.h"

#define MIB (1024ull * 1024ull)

static CUfunction load_kernel(void) {
    CUmodule module = NULL;
    CUfunction function = NULL;
    CHECK_EQUAL(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleGetFunction(&function, module, "kernel"), CUDA_SUCCESS);
    return function;
}

static void launch(CUfunction function, CUstream stream) {
    CHECK_EQUAL(cuLaunchKernel(function, 1000, 1, 1, 256, 1, 1, 0, stream, NULL, NULL), CUDA_SUCCESS);
}

/* Every symbol that was called since counting began, and how often. */
static void print_calls(struct sim_faults *faults, const char *when) {
    for (unsigned number = 0; number < SIM_MAX_ENTRIES; number++) {
        const char *name = sim_symbol_name((struct sim_symbol){SIM_TABLE_CUDA, number});
        uint64_t calls = atomic_load(&faults->calls[SIM_TABLE_CUDA][number]);
        bool asks_thread =
            name != NULL && (strcmp(name, "cuCtxGetDevice") == 0 || strcmp(name, "cuCtxGetCurrent") == 0);
        if (name != NULL && calls != 0 && !asks_thread)
            printf("%s: %s %llu\n", when, name, (unsigned long long)calls);
    }
}

static int be_child(CUstreamCaptureMode mode) {
    char state[256];
    CUcontext context = NULL;
    CUstream stream = NULL;
    CUgraph graph = NULL;
    CUgraphExec executable = NULL;
    CUdeviceptr pointer = 0, own = 0;
    CUstreamCaptureStatus status = 0;
    snprintf(state, sizeof state, "%s.state", getenv("HAMI_SIM_DRIVER"));
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CUfunction function = load_kernel();
    CHECK_EQUAL(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAllocAsync(&own, MIB, stream), CUDA_SUCCESS);
    for (int i = 0; i < 20; i++) /* the throttle has something to measure */
        launch(function, stream);
    CHECK_EQUAL(cuStreamSynchronize(stream), CUDA_SUCCESS);
    struct sim_faults *faults = sim_faults_open(state);

    CHECK_EQUAL(cuStreamBeginCapture_v2(stream, mode), CUDA_SUCCESS);
    sim_faults_count(faults, true);
    for (int i = 0; i < 50; i++)
        launch(function, stream);
    CHECK_EQUAL(cuMemAllocAsync(&pointer, 2 * MIB, stream), CUDA_SUCCESS);
    launch(function, stream);
    CHECK_EQUAL(cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
    CHECK_EQUAL(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    print_calls(faults, "captured");
    CHECK_EQUAL(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    CHECK(graph != NULL);

    CHECK_EQUAL(cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphLaunch(executable, stream), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamSynchronize(stream), CUDA_SUCCESS);
    return check_done();
}

/* case CGR-02 */
static void test_only_its_own_calls(const char *mode) {
    char output[2][SANDBOX_OUTPUT];
    for (int with_vgpu = 0; with_vgpu < 2; with_vgpu++) {
        struct sandbox sandbox = sandbox_make();
        const char *environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=100m", "CUDA_DEVICE_SM_LIMIT=30",
                                     "GPU_CORE_UTILIZATION_POLICY=force", NULL};
        const char *argv[] = {sandbox_self(), mode, NULL};
        if (!CHECK_EQUAL_THAT(sandbox_run(&sandbox, with_vgpu, environment, argv, output[with_vgpu]), 0, mode))
            fputs(output[with_vgpu], stderr);
        sandbox_remove(&sandbox);
    }
    CHECK_THAT(strstr(output[0], "captured: cuLaunchKernel 51\n") != NULL, output[0]);
    if (!CHECK_THAT(strcmp(output[0], output[1]) == 0, mode))
        fprintf(stderr, "without the library:\n%swith it:\n%s", output[0], output[1]);
}

int main(int argc, char **argv) {
    if (argc == 2)
        return be_child((CUstreamCaptureMode)atoi(argv[1]));
    test_only_its_own_calls("0"); /* global: potentially unsafe calls of any thread spoil it */
    test_only_its_own_calls("1"); /* of this thread */
    test_only_its_own_calls("2"); /* none */
    return check_done();
}
