/* Launches are noted in the region: the monitor sees who is active, and makes those of lower priority wait. Compute is
 * not limited yet (README.md). */
#include "allocation.h"
#include "graph.h"
#include "vgpu/prim.h"

#define ACTIVE 2 /* the monitor counts down from here */
#define BLOCKED_POLL_US 10000

static void wait_while_blocked(int32_t recent) {
    if (vgi_core_policy() == VGI_POLICY_DISABLE)
        return;
    while (recent < 0) {
        vgi_sleep_microseconds(BLOCKED_POLL_US);
        recent = atomic_load_explicit(&vgi_region->recent_kernel, memory_order_relaxed);
    }
}

/* Before every launch. Writes only what changes: all processes of the container share these words. */
static void note_launch(void) {
    if (vgi_state() != VGI_ATTACHED)
        return;
    int32_t recent = atomic_load_explicit(&vgi_region->recent_kernel, memory_order_relaxed);
    if (recent != ACTIVE) {
        wait_while_blocked(recent);
        atomic_store_explicit(&vgi_region->recent_kernel, ACTIVE, memory_order_relaxed);
    }
    int64_t interval = vgi_limits.kernel_interval_seconds;
    if (interval < 0)
        return;
    uint64_t now = vgi_now_seconds();
    uint64_t last = atomic_load_explicit(&vgi_region->last_kernel_time, memory_order_relaxed);
    if (now > last && now - last >= (uint64_t)interval)
        atomic_store_explicit(&vgi_region->last_kernel_time, now, memory_order_relaxed);
}

void vgi_launch_learn_graph(CUgraphExec exec, CUgraph graph) {
    (void)exec, (void)graph;
}

void vgi_launch_gate_graph(CUgraphExec exec) {
    (void)exec;
    note_launch();
}

void vgi_launch_forget_graph(CUgraphExec exec) {
    (void)exec;
}

#define LAUNCH(symbol, parameters, ...)                                                                                \
    VGI_HOOK CUresult symbol parameters {                                                                              \
        if (!vgi_bind_cuda())                                                                                          \
            return VGI_NO_DRIVER;                                                                                      \
        note_launch();                                                                                                 \
        return VGI_CUDA(symbol, __VA_ARGS__);                                                                          \
    }

#define GRID                                                                                                           \
    CUfunction function, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX,  \
        unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream stream,                  \
        void **kernelParams
#define GRID_VALUES                                                                                                    \
    function, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, stream, kernelParams

LAUNCH(cuLaunchKernel, (GRID, void **extra), GRID_VALUES, extra)
LAUNCH(cuLaunchKernel_ptsz, (GRID, void **extra), GRID_VALUES, extra)
LAUNCH(cuLaunchCooperativeKernel, (GRID), GRID_VALUES)
LAUNCH(cuLaunchCooperativeKernel_ptsz, (GRID), GRID_VALUES)
LAUNCH(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction function, void **kernelParams, void **extra), config,
       function, kernelParams, extra)
LAUNCH(cuLaunchKernelEx_ptsz, (const CUlaunchConfig *config, CUfunction function, void **kernelParams, void **extra),
       config, function, kernelParams, extra)
