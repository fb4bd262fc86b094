/* Launches: noted, paid for, then handed to the driver. */
#include "allocation.h"
#include "compute/gate.h"

static struct vgi_work work_of(CUfunction function, const unsigned grid[3], const unsigned block[3], CUstream stream,
                               bool per_thread) {
    return (struct vgi_work){
        .what = (uintptr_t)function, .threads = vgi_threads(grid, block), .stream = stream, .per_thread = per_thread};
}

static struct vgi_work work_of_config(const CUlaunchConfig *c, CUfunction function, bool per_thread) {
    static const CUlaunchConfig none; /* the driver refuses it */
    c = c == NULL ? &none : c;
    return work_of(function, (unsigned[]){c->gridDimX, c->gridDimY, c->gridDimZ},
                   (unsigned[]){c->blockDimX, c->blockDimY, c->blockDimZ}, c->hStream, per_thread);
}

#define LAUNCH(symbol, parameters, work, ...)                                                                          \
    VGI_HOOK CUresult symbol parameters {                                                                              \
        if (!vgi_bind_cuda())                                                                                          \
            return VGI_NO_DRIVER;                                                                                      \
        int card = vgi_before_launch();                                                                                \
        if (card < 0)                                                                                                  \
            return VGI_CUDA(symbol, __VA_ARGS__);                                                                      \
        struct vgi_work launched = work;                                                                               \
        struct vgi_sample *sample = vgi_pay_for((unsigned)card, &launched);                                            \
        return vgi_launched(sample, VGI_CUDA(symbol, __VA_ARGS__));                                                    \
    }

#define GRID                                                                                                           \
    CUfunction function, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX,  \
        unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream stream,                  \
        void **kernelParams
#define GRID_VALUES                                                                                                    \
    function, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, stream, kernelParams
#define GRID_WORK(per_thread)                                                                                          \
    work_of(function, (unsigned[]){gridDimX, gridDimY, gridDimZ}, (unsigned[]){blockDimX, blockDimY, blockDimZ},       \
            stream, per_thread)
#define CONFIG const CUlaunchConfig *config, CUfunction function, void **kernelParams, void **extra
#define CONFIG_VALUES config, function, kernelParams, extra

LAUNCH(cuLaunchKernel, (GRID, void **extra), GRID_WORK(false), GRID_VALUES, extra)
LAUNCH(cuLaunchKernel_ptsz, (GRID, void **extra), GRID_WORK(true), GRID_VALUES, extra)
LAUNCH(cuLaunchCooperativeKernel, (GRID), GRID_WORK(false), GRID_VALUES)
LAUNCH(cuLaunchCooperativeKernel_ptsz, (GRID), GRID_WORK(true), GRID_VALUES)
LAUNCH(cuLaunchKernelEx, (CONFIG), work_of_config(config, function, false), CONFIG_VALUES)
LAUNCH(cuLaunchKernelEx_ptsz, (CONFIG), work_of_config(config, function, true), CONFIG_VALUES)

/* ---- the launches of CUDA 2, which the driver still has: what a block is was told before, and is not known here ----
 */

#define LIKELY_BLOCK 256

static struct vgi_work work_of_blocks(CUfunction function, int width, int height, CUstream stream) {
    return work_of(function, (unsigned[]){(unsigned)width, (unsigned)height, 1}, (unsigned[]){LIKELY_BLOCK, 1, 1},
                   stream, false);
}

LAUNCH(cuLaunch, (CUfunction function), work_of_blocks(function, 1, 1, NULL), function)
LAUNCH(cuLaunchGrid, (CUfunction function, int grid_width, int grid_height),
       work_of_blocks(function, grid_width, grid_height, NULL), function, grid_width, grid_height)
LAUNCH(cuLaunchGridAsync, (CUfunction function, int grid_width, int grid_height, CUstream stream),
       work_of_blocks(function, grid_width, grid_height, stream), function, grid_width, grid_height, stream)
