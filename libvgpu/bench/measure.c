#include "measure.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "vgpu/abi/cuda_fn.h"

#define BATCHES 101
#define PAUSE_NS 1000000 /* between batches: launches stay below the limit */
#define ALLOCATION_BYTES 4096
#define UNKNOWN_POINTER 0x1000

/* Found as a program with a runtime finds them: by dlsym, which gives the hooks where there are any. */
static struct {
    PFN_cuInit_v2000 init;
    PFN_cuDevicePrimaryCtxRetain_v7000 retain;
    PFN_cuCtxSetCurrent_v4000 set_current;
    PFN_cuCtxSynchronize_v2000 synchronize;
    PFN_cuMemAlloc_v3020 alloc;
    PFN_cuMemFree_v3020 release;
    PFN_cuMemGetInfo_v3020 info;
    PFN_cuModuleLoadData_v2000 load;
    PFN_cuModuleGetFunction_v2000 get_function;
    PFN_cuLaunchKernel_v4000 launch;
    PFN_cuLaunchKernelEx_v11060 launch_ex;
    PFN_cuGraphInstantiateWithFlags_v11040 instantiate;
    PFN_cuGraphLaunch_v10000 launch_graph;
    PFN_cuGetProcAddress_v12000 get_proc_address;
} call;

static CUfunction function;
static CUgraphExec graph;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static bool find_calls(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    const struct {
        const char *name;
        void *where;
    } wanted[] = {
        {"cuInit", &call.init},
        {"cuDevicePrimaryCtxRetain", &call.retain},
        {"cuCtxSetCurrent", &call.set_current},
        {"cuCtxSynchronize", &call.synchronize},
        {"cuMemAlloc_v2", &call.alloc},
        {"cuMemFree_v2", &call.release},
        {"cuMemGetInfo_v2", &call.info},
        {"cuModuleLoadData", &call.load},
        {"cuModuleGetFunction", &call.get_function},
        {"cuLaunchKernel", &call.launch},
        {"cuLaunchKernelEx", &call.launch_ex},
        {"cuGraphInstantiateWithFlags", &call.instantiate},
        {"cuGraphLaunch", &call.launch_graph},
        {"cuGetProcAddress_v2", &call.get_proc_address},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        void *found = driver == NULL ? NULL : dlsym(driver, wanted[i].name);
        if (found == NULL) {
            fprintf(stderr, "bench-vgpu: no %s: %s\n", wanted[i].name, dlerror());
            return false;
        }
        memcpy(wanted[i].where, &found, sizeof found);
    }
    return true;
}

static CUresult start_cuda(void) {
    CUcontext context = NULL;
    CUmodule module = NULL;
    CUresult result = call.retain(&context, 0);
    if (result == CUDA_SUCCESS)
        result = call.set_current(context);
    if (result == CUDA_SUCCESS)
        result = call.load(&module, "image");
    return result == CUDA_SUCCESS ? call.get_function(&function, module, "kernel") : result;
}

/* ---- what is called: 0 = as it should ---- */

static int call_launch(void) {
    return (int)call.launch(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
}

static int call_launch_ex(void) {
    static const CUlaunchConfig config = {
        .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1};
    return (int)call.launch_ex(&config, function, NULL, NULL);
}

static int call_launch_graph(void) {
    if (graph == NULL && call.instantiate(&graph, (CUgraph)(uintptr_t)1, 0) != CUDA_SUCCESS)
        return 1;
    return (int)call.launch_graph(graph, NULL);
}

static int call_alloc_free(void) {
    CUdeviceptr pointer = 0;
    int result = (int)call.alloc(&pointer, ALLOCATION_BYTES);
    return result == 0 ? (int)call.release(pointer) : result;
}

static int call_free_unknown(void) {
    return call.release(UNKNOWN_POINTER) == CUDA_ERROR_INVALID_VALUE ? 0 : 1;
}

static int call_info(void) {
    size_t free_bytes = 0, total = 0;
    return (int)call.info(&free_bytes, &total);
}

static int call_get_proc_address(void) {
    void *found = NULL;
    return (int)call.get_proc_address("cuMemAlloc", &found, 12000, 0, NULL);
}

static const struct {
    const char *name;
    int (*run)(void);
    unsigned calls; /* in a batch */
} subjects[] = {
    {"launch", call_launch, 1000},
    {"launch_ex", call_launch_ex, 1000},
    {"launch_graph", call_launch_graph, 1000},
    {"alloc_free", call_alloc_free, 1000},
    {"free_unknown", call_free_unknown, 2000},
    {"mem_info", call_info, 2000},
    {"get_proc_address", call_get_proc_address, 500},
};

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

static int run_batches(int (*run)(void), unsigned calls) {
    double values[BATCHES];
    int failed = 0;
    for (int i = -1; i < BATCHES; i++) { /* the first one warms up */
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        uint64_t start = now_ns();
        for (unsigned n = 0; n < calls; n++)
            failed |= run();
        if (i >= 0)
            values[i] = (double)(now_ns() - start) / calls;
    }
    if (failed != 0) {
        fprintf(stderr, "bench-vgpu: the measured call failed\n");
        return 1;
    }
    qsort(values, BATCHES, sizeof values[0], compare);
    printf("value %.2f %.2f\n", values[0], values[BATCHES / 2]);
    return 0;
}

static int measure_init(void) {
    uint64_t start = now_ns();
    CUresult result = call.init(0);
    uint64_t took = now_ns() - start;
    printf("value %llu %llu\n", (unsigned long long)took, (unsigned long long)took);
    return result == CUDA_SUCCESS ? 0 : 1;
}

/* Kernels of a fixed time on the simulated card, as fast as they are let through: "value PERCENT LAUNCHES". */
static int measure_throttle(unsigned long seconds) {
    uint64_t kernel_ns = strtoull(getenv("HAMI_SIM_KERNEL_MICROSECONDS"), NULL, 10) * 1000;
    uint64_t launches = 0, start = now_ns(), until = start + seconds * 1000000000ull;
    while (now_ns() < until) {
        if (call_launch() != 0)
            return 1;
        launches++;
    }
    if (call.synchronize() != CUDA_SUCCESS)
        return 1;
    double elapsed = (double)(now_ns() - start);
    printf("value %.2f %llu\n", 100.0 * (double)(launches * kernel_ns) / elapsed, (unsigned long long)launches);
    return 0;
}

int measure(const char *name, unsigned long live) {
    if (!find_calls())
        return 1;
    if (strcmp(name, "cuinit") == 0)
        return measure_init();
    if (call.init(0) != CUDA_SUCCESS || start_cuda() != CUDA_SUCCESS) {
        fprintf(stderr, "bench-vgpu: CUDA does not start\n");
        return 1;
    }
    if (strcmp(name, "idle") == 0) {
        puts("ready");
        fflush(stdout);
        pause();
        return 0;
    }
    if (strcmp(name, "throttle_wall") == 0)
        return measure_throttle(live);
    for (unsigned long i = 0; i < live; i++) {
        CUdeviceptr pointer = 0;
        if (call.alloc(&pointer, ALLOCATION_BYTES) != CUDA_SUCCESS)
            return 1;
    }
    for (size_t i = 0; i < sizeof subjects / sizeof subjects[0]; i++)
        if (strcmp(subjects[i].name, name) == 0)
            return run_batches(subjects[i].run, subjects[i].calls);
    fprintf(stderr, "bench-vgpu: nothing is called %s\n", name);
    return 2;
}
