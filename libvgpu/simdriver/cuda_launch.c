/* Modules and launches. Any image loads and has every function; a kernel computes nothing and takes its time. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"
#include "objects.h"

#define FUNCTION_MAGIC 0x46554e43u

struct CUfunc_st {
    uint32_t magic;
    uint64_t wave_ns;
    unsigned block[3]; /* for the launches of CUDA 2 */
    struct CUfunc_st *next;
};

struct CUmod_st {
    struct CUfunc_st *functions;
    const struct sim_object *code; /* what it takes of the card, until its context ends; NULL = not loaded yet */
};

static bool loads_lazily(void) {
    const char *setting = getenv("CUDA_MODULE_LOADING");
    return setting != NULL && strcmp(setting, "LAZY") == 0;
}

SIM_API CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
    if (mode == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = loads_lazily() ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}

/* Puts the module's code on the card. */
static CUresult load_code(CUmodule module, CUcontext context) {
    struct sim_object wanted = {.kind = SIM_MODULE, .bytes = sim_card_of(context->device)->module_bytes}, *made = NULL;
    CUresult result = module->code == NULL ? sim_reserve_heap(context) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS && module->code == NULL)
        result = sim_object_make(&wanted, &made);
    if (made != NULL)
        module->code = made;
    return result;
}

static CUresult load(CUmodule *module, const void *image) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (module == NULL || image == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUmodule made = calloc(1, sizeof *made);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = loads_lazily() ? CUDA_SUCCESS : load_code(made, context);
    if (result == CUDA_SUCCESS)
        *module = made;
    else
        free(made);
    return result;
}

SIM_API CUresult cuModuleLoad(CUmodule *module, const char *path) {
    return load(module, path);
}

SIM_API CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    return load(module, image);
}

SIM_API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options,
                                    void **values) {
    (void)options, (void)values, (void)count;
    return load(module, image);
}

SIM_API CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    return load(module, image);
}

SIM_API CUresult cuModuleUnload(CUmodule module) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (module == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&sim.lock);
    while (module->functions != NULL) {
        struct CUfunc_st *next = module->functions->next;
        free(module->functions);
        module->functions = next;
    }
    pthread_mutex_unlock(&sim.lock);
    if (module->code != NULL)
        (void)sim_object_destroy(SIM_MODULE, module->code);
    free(module);
    return CUDA_SUCCESS;
}

/* A kernel named <something>_<number>us takes that long for a wave. */
static uint64_t wave_of(const char *name) {
    const char *number = strrchr(name, '_');
    char *end = NULL;
    uint64_t microseconds = number == NULL ? 0 : strtoull(number + 1, &end, 10);
    return number != NULL && end != number + 1 && strcmp(end, "us") == 0 ? microseconds * 1000 : sim_wave_ns();
}

SIM_API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (function == NULL || module == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    result = load_code(module, context);
    if (result != CUDA_SUCCESS)
        return result;
    CUfunction made = calloc(1, sizeof *made);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->magic = FUNCTION_MAGIC;
    made->wave_ns = wave_of(name);
    pthread_mutex_lock(&sim.lock);
    made->next = module->functions;
    module->functions = made;
    pthread_mutex_unlock(&sim.lock);
    *function = made;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (value == NULL || function == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
             : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 32
                                                                  : 0;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    (void)attribute;
    (void)value;
    CUresult result = sim_ready();
    return result == CUDA_SUCCESS && function == NULL ? CUDA_ERROR_INVALID_HANDLE : result;
}

CUresult sim_kernel_is_valid(const struct sim_kernel *kernel) {
    return kernel->function == NULL || kernel->function->magic != FUNCTION_MAGIC ? CUDA_ERROR_INVALID_HANDLE
                                                                                 : CUDA_SUCCESS;
}

CUresult sim_kernel_run(const struct sim_kernel *k, CUstream stream, bool per_thread) {
    return sim_launch((uint64_t)k->grid[0] * k->grid[1] * k->grid[2], (uint64_t)k->block[0] * k->block[1] * k->block[2],
                      k->function->wave_ns, stream, per_thread);
}

static CUresult launch(CUfunction function, const unsigned grid[3], const unsigned block[3], CUstream stream,
                       bool per_thread) {
    struct sim_kernel kernel = {
        .function = function, .grid = {grid[0], grid[1], grid[2]}, .block = {block[0], block[1], block[2]}};
    CUresult result = sim_ready();
    if (result == CUDA_SUCCESS)
        result = sim_kernel_is_valid(&kernel);
    if (result != CUDA_SUCCESS)
        return result;
    struct sim_capture *capture = sim_capture_of(stream, per_thread);
    if (capture != NULL) {
        struct CUgraphNode_st content = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = kernel};
        CUgraphNode made = NULL;
        return sim_capture_add(capture, stream, per_thread, &content, &made);
    }
    sim_host_spend(SIM_LAUNCH_HOST_NS);
    return sim_kernel_run(&kernel, stream, per_thread);
}

SIM_API CUresult cuLaunchKernel(CUfunction function, unsigned int gridDimX, unsigned int gridDimY,
                                unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream stream,
                                void **kernelParams, void **extra) {
    (void)sharedMemBytes, (void)kernelParams, (void)extra;
    return launch(function, (unsigned[]){gridDimX, gridDimY, gridDimZ}, (unsigned[]){blockDimX, blockDimY, blockDimZ},
                  stream, false);
}

SIM_API CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int gridDimX, unsigned int gridDimY,
                                     unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                     unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream stream,
                                     void **kernelParams, void **extra) {
    (void)sharedMemBytes, (void)kernelParams, (void)extra;
    return launch(function, (unsigned[]){gridDimX, gridDimY, gridDimZ}, (unsigned[]){blockDimX, blockDimY, blockDimZ},
                  stream, true);
}

static CUresult launch_config(const CUlaunchConfig *c, CUfunction function, bool per_thread) {
    if (c == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return launch(function, (unsigned[]){c->gridDimX, c->gridDimY, c->gridDimZ},
                  (unsigned[]){c->blockDimX, c->blockDimY, c->blockDimZ}, c->hStream, per_thread);
}

SIM_API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **kernelParams,
                                  void **extra) {
    (void)kernelParams, (void)extra;
    return launch_config(config, function, false);
}

SIM_API CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **kernelParams,
                                       void **extra) {
    (void)kernelParams, (void)extra;
    return launch_config(config, function, true);
}

SIM_API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int gridDimX, unsigned int gridDimY,
                                           unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                           unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream stream,
                                           void **kernelParams) {
    (void)sharedMemBytes, (void)kernelParams;
    return launch(function, (unsigned[]){gridDimX, gridDimY, gridDimZ}, (unsigned[]){blockDimX, blockDimY, blockDimZ},
                  stream, false);
}

SIM_API CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned int gridDimX, unsigned int gridDimY,
                                                unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                                unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream stream,
                                                void **kernelParams) {
    (void)sharedMemBytes, (void)kernelParams;
    return launch(function, (unsigned[]){gridDimX, gridDimY, gridDimZ}, (unsigned[]){blockDimX, blockDimY, blockDimZ},
                  stream, true);
}

/* ---- the launches of CUDA 2: the shape of blocks is the function's ---- */

SIM_API CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z) {
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (function == NULL || function->magic != FUNCTION_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (x <= 0 || y <= 0 || z <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    function->block[0] = (unsigned)x;
    function->block[1] = (unsigned)y;
    function->block[2] = (unsigned)z;
    return CUDA_SUCCESS;
}

static CUresult launch_grid(CUfunction function, int width, int height, CUstream stream) {
    struct sim_kernel kernel = {.function = function};
    CUresult result = sim_ready();
    if (result == CUDA_SUCCESS)
        result = sim_kernel_is_valid(&kernel);
    if (result != CUDA_SUCCESS)
        return result;
    if (width <= 0 || height <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    return launch(function, (unsigned[]){(unsigned)width, (unsigned)height, 1}, function->block, stream, false);
}

SIM_API CUresult cuLaunch(CUfunction function) {
    return launch_grid(function, 1, 1, NULL);
}

SIM_API CUresult cuLaunchGrid(CUfunction function, int grid_width, int grid_height) {
    return launch_grid(function, grid_width, grid_height, NULL);
}

SIM_API CUresult cuLaunchGridAsync(CUfunction function, int grid_width, int grid_height, CUstream stream) {
    return launch_grid(function, grid_width, grid_height, stream);
}

/* ---- on several devices: each part on its stream's, which must be one that the program made, and another each ---- */

static CUresult check_parts(const CUDA_LAUNCH_PARAMS *parts, unsigned count) {
    uint64_t devices = 0;
    if (parts == NULL || count == 0 || count > sim.device_count)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        CUcontext context = NULL;
        if (parts[i].hStream == NULL || parts[i].hStream == CU_STREAM_LEGACY ||
            parts[i].hStream == CU_STREAM_PER_THREAD || cuStreamGetCtx(parts[i].hStream, &context) != CUDA_SUCCESS ||
            (devices >> context->device & 1) != 0)
            return CUDA_ERROR_INVALID_VALUE;
        devices |= 1ull << context->device;
    }
    return CUDA_SUCCESS;
}

static CUresult launch_part(const CUDA_LAUNCH_PARAMS *p) {
    CUcontext context = NULL;
    CUresult result = cuStreamGetCtx(p->hStream, &context);
    if (result == CUDA_SUCCESS)
        result = cuCtxPushCurrent_v2(context);
    if (result != CUDA_SUCCESS)
        return result;
    result = launch(p->function, (unsigned[]){p->gridDimX, p->gridDimY, p->gridDimZ},
                    (unsigned[]){p->blockDimX, p->blockDimY, p->blockDimZ}, p->hStream, false);
    (void)cuCtxPopCurrent_v2(&context);
    return result;
}

SIM_API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList, unsigned int numDevices,
                                                      unsigned int flags) {
    CUresult result = sim_ready();
    if (result == CUDA_SUCCESS)
        result = flags > 3 ? CUDA_ERROR_INVALID_VALUE : check_parts(launchParamsList, numDevices);
    for (unsigned i = 0; result == CUDA_SUCCESS && i < numDevices; i++)
        result = launch_part(&launchParamsList[i]);
    return result;
}
