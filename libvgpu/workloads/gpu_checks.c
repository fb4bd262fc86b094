/* What tests/gpu/run.sh starts, bare or under libvgpu, on a real card or on the
 * simulated one. Finds the driver as programs do, by dlopen and dlsym; prints
 * one "key value" line for each thing that was measured. Exit status: 0 as it
 * should be, 1 not, with the reason on stderr, 2 wrong use. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "vgpu/abi/cuda_fn.h"
#include "vgpu/abi/nvml_fn.h"

#define MIB (1024ull * 1024ull)
#define COUNT(list) (sizeof(list) / sizeof(list)[0])

/* Two kernels in PTX, which the driver compiles: one that ends at once, one
 * that keeps its SM busy for so many nanoseconds. The simulated driver takes
 * any image. */
static const char kernels[] = ".version 7.0\n"
                              ".target sm_70\n"
                              ".address_size 64\n"
                              ".visible .entry nothing() { ret; }\n"
                              ".visible .entry spin(.param .u64 duration)\n"
                              "{\n"
                              "    .reg .u64 %duration, %start, %now, %passed;\n"
                              "    .reg .pred %more;\n"
                              "    ld.param.u64 %duration, [duration];\n"
                              "    mov.u64 %start, %globaltimer;\n"
                              "again:\n"
                              "    mov.u64 %now, %globaltimer;\n"
                              "    sub.u64 %passed, %now, %start;\n"
                              "    setp.lt.u64 %more, %passed, %duration;\n"
                              "    @%more bra again;\n"
                              "    ret;\n"
                              "}\n";

static struct {
    PFN_cuInit_v2000 init;
    PFN_cuDeviceGet_v2000 device;
    PFN_cuDeviceGetName_v2000 name;
    PFN_cuDeviceTotalMem_v3020 total;
    PFN_cuDeviceGetAttribute_v2000 attribute;
    PFN_cuDevicePrimaryCtxRetain_v7000 retain;
    PFN_cuCtxSetCurrent_v4000 set_current;
    PFN_cuCtxSynchronize_v2000 synchronize;
    PFN_cuMemAlloc_v3020 alloc;
    PFN_cuMemFree_v3020 release;
    PFN_cuMemGetInfo_v3020 info;
    PFN_cuModuleLoadData_v2000 load;
    PFN_cuModuleGetFunction_v2000 function;
    PFN_cuLaunchKernel_v4000 launch;
} cuda;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static bool find(void *library, const char *name, void *where) {
    void *found = library == NULL ? NULL : dlsym(library, name);
    if (found == NULL)
        fprintf(stderr, "%s is not to be found: %s\n", name, dlerror());
    else
        memcpy(where, &found, sizeof found);
    return found != NULL;
}

static bool find_cuda(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        fprintf(stderr, "vgpu-checks: the driver cannot be opened: %s\n", dlerror());
        return false;
    }
    const struct {
        const char *name;
        void *where;
    } wanted[] = {
        {"cuInit", &cuda.init},
        {"cuDeviceGet", &cuda.device},
        {"cuDeviceGetName", &cuda.name},
        {"cuDeviceTotalMem_v2", &cuda.total},
        {"cuDeviceGetAttribute", &cuda.attribute},
        {"cuDevicePrimaryCtxRetain", &cuda.retain},
        {"cuCtxSetCurrent", &cuda.set_current},
        {"cuCtxSynchronize", &cuda.synchronize},
        {"cuMemAlloc_v2", &cuda.alloc},
        {"cuMemFree_v2", &cuda.release},
        {"cuMemGetInfo_v2", &cuda.info},
        {"cuModuleLoadData", &cuda.load},
        {"cuModuleGetFunction", &cuda.function},
        {"cuLaunchKernel", &cuda.launch},
    };
    bool complete = true;
    for (size_t i = 0; i < COUNT(wanted); i++)
        complete = find(driver, wanted[i].name, wanted[i].where) && complete;
    return complete;
}

static bool is(const char *what, unsigned long long got, unsigned long long wanted) {
    if (got != wanted)
        fprintf(stderr, "%s is %llu, not %llu\n", what, got, wanted);
    return got == wanted;
}

static bool works(const char *what, int code) {
    return is(what, (unsigned long long)code, 0);
}

static bool start_cuda(void) {
    CUdevice device = 0;
    CUcontext context = NULL;
    return works("cuInit", cuda.init(0)) && works("cuDeviceGet", cuda.device(&device, 0)) &&
           works("cuDevicePrimaryCtxRetain", cuda.retain(&context, device)) &&
           works("cuCtxSetCurrent", cuda.set_current(context));
}

/* ---- memory ---- */

static int show_info(void) {
    char name[128] = "";
    size_t total = 0;
    int processors = 0;
    if (!start_cuda() || !works("cuDeviceGetName", cuda.name(name, sizeof name, 0)) ||
        !works("cuDeviceTotalMem", cuda.total(&total, 0)) ||
        !works("cuDeviceGetAttribute", cuda.attribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0)))
        return 1;
    printf("name %s\ntotal_bytes %zu\nprocessors %d\n", name, total, processors);
    return 0;
}

static bool sees(size_t *free_bytes, unsigned long long limit) {
    size_t total = 0;
    return works("cuMemGetInfo", cuda.info(free_bytes, &total)) && is("total of cuMemGetInfo", total, limit);
}

/* All that is free can be had, and then not a byte more; what is freed can be
 * had again. */
static int check_memory(unsigned long long limit) {
    CUdeviceptr all = 0, more = 0, half = 0;
    size_t total = 0, free_bytes = 0, left = 0;
    if (!start_cuda() || !works("cuDeviceTotalMem", cuda.total(&total, 0)) || !is("cuDeviceTotalMem", total, limit) ||
        !sees(&free_bytes, limit))
        return 1;
    printf("free_bytes %zu\noverhead_bytes %llu\n", free_bytes, limit - free_bytes);
    bool good =
        is("one byte more than is free", cuda.alloc(&more, free_bytes + 1), CUDA_ERROR_OUT_OF_MEMORY) &&
        works("all that is free", cuda.alloc(&all, free_bytes)) && sees(&left, limit) && is("what is left", left, 0) &&
        is("one byte more", cuda.alloc(&more, 1), CUDA_ERROR_OUT_OF_MEMORY) && works("cuMemFree", cuda.release(all)) &&
        works("half", cuda.alloc(&half, free_bytes / 2)) &&
        is("more than the other half", cuda.alloc(&more, free_bytes - free_bytes / 2 + 1), CUDA_ERROR_OUT_OF_MEMORY) &&
        works("the other half", cuda.alloc(&more, free_bytes - free_bytes / 2)) &&
        works("cuMemFree", cuda.release(half)) && works("cuMemFree", cuda.release(more)) && sees(&left, limit) &&
        is("what is free again", left, free_bytes);
    return good ? 0 : 1;
}

/* Takes memory and keeps it until its standard input ends. */
static int hold(unsigned long long bytes) {
    CUdeviceptr held = 0;
    char nothing;
    if (!start_cuda() || !works("cuMemAlloc", cuda.alloc(&held, bytes)))
        return 1;
    puts("held");
    fflush(stdout);
    return read(STDIN_FILENO, &nothing, 1) >= 0 ? 0 : 1;
}

/* While another process of the slice holds so much, no more than the rest is to
 * be had. */
static int check_shared(unsigned long long limit, unsigned long long held) {
    CUdeviceptr pointer = 0;
    size_t free_bytes = 0;
    if (!start_cuda() || !sees(&free_bytes, limit))
        return 1;
    if (free_bytes > limit - held) {
        fprintf(stderr, "%zu bytes are free, though another process holds %llu of %llu\n", free_bytes, held, limit);
        return 1;
    }
    return is("more than the rest", cuda.alloc(&pointer, free_bytes + 1), CUDA_ERROR_OUT_OF_MEMORY) &&
                   works("the rest", cuda.alloc(&pointer, free_bytes))
               ? 0
               : 1;
}

static int check_nvml(unsigned long long limit) {
    PFN_nvmlInit_v2 init = NULL;
    PFN_nvmlDeviceGetHandleByIndex_v2 by_index = NULL;
    PFN_nvmlDeviceGetMemoryInfo memory_info = NULL;
    nvmlDevice_t device = NULL;
    nvmlMemory_t memory;
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!find(nvml, "nvmlInit_v2", &init) || !find(nvml, "nvmlDeviceGetHandleByIndex_v2", &by_index) ||
        !find(nvml, "nvmlDeviceGetMemoryInfo", &memory_info))
        return 1;
    return works("nvmlInit", (int)init()) && works("nvmlDeviceGetHandleByIndex", (int)by_index(0, &device)) &&
                   works("nvmlDeviceGetMemoryInfo", (int)memory_info(device, &memory)) &&
                   is("total of nvmlDeviceGetMemoryInfo", memory.total, limit)
               ? 0
               : 1;
}

/* ---- the CUDA runtime ---- */

static int check_runtime(const char *path, unsigned long long limit) {
    int (*runtime_malloc)(void **, size_t) = NULL;
    int (*runtime_free)(void *) = NULL;
    int (*runtime_info)(size_t *, size_t *) = NULL;
    int (*last_error)(void) = NULL;
    const int out_of_memory = 2; /* cudaErrorMemoryAllocation */
    void *all = NULL, *more = NULL, *runtime = dlopen(path, RTLD_NOW);
    size_t free_bytes = 0, total = 0;
    if (!find(runtime, "cudaMalloc", &runtime_malloc) || !find(runtime, "cudaFree", &runtime_free) ||
        !find(runtime, "cudaMemGetInfo", &runtime_info) || !find(runtime, "cudaGetLastError", &last_error))
        return 1;
    bool good = works("cudaMemGetInfo", runtime_info(&free_bytes, &total)) && is("total", total, limit) &&
                is("one byte more than is free", (unsigned)runtime_malloc(&more, free_bytes + 1), out_of_memory) &&
                is("cudaGetLastError", (unsigned)last_error(), out_of_memory) &&
                works("all that is free", runtime_malloc(&all, free_bytes)) &&
                is("one byte more", (unsigned)runtime_malloc(&more, 1), out_of_memory) &&
                works("cudaFree", runtime_free(all));
    printf("free_bytes %zu\n", free_bytes);
    return good ? 0 : 1;
}

/* ---- compute and costs ---- */

static bool load_kernel(const char *name, CUfunction *function) {
    CUmodule module = NULL;
    return works("cuModuleLoadData", cuda.load(&module, kernels)) &&
           works("cuModuleGetFunction", cuda.function(function, module, name));
}

/* Kernels that fill the card, one after the other, for so many seconds: the
 * percent of the time they ran. */
static int spin(unsigned long long seconds, unsigned long long microseconds) {
    CUfunction function = NULL;
    int processors = 0;
    uint64_t duration = microseconds * 1000, launches = 0;
    void *arguments[] = {&duration};
    if (!start_cuda() || !load_kernel("spin", &function) ||
        !works("cuDeviceGetAttribute", cuda.attribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0)))
        return 1;
    uint64_t start = 0, until = 0;
    for (int warm_up = 1; warm_up >= 0; warm_up--) { /* the first second is the controller's to learn in */
        launches = 0;
        start = now_ns();
        until = start + (warm_up ? 1 : seconds) * 1000000000ull;
        while (now_ns() < until) {
            for (int i = 0; i < 4; i++, launches++) /* so that the card does not wait
                                                       for us in between */
                if (cuda.launch(function, (unsigned)processors * 2, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL) != 0)
                    return 1;
            if (cuda.synchronize() != 0)
                return 1;
        }
    }
    printf("percent %.1f\nlaunches %llu\n", 100.0 * (double)(launches * duration) / (double)(now_ns() - start),
           (unsigned long long)launches);
    return 0;
}

static bool launch_batch(CUfunction function, unsigned calls) {
    bool good = true;
    for (unsigned i = 0; i < calls; i++)
        good = cuda.launch(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) == CUDA_SUCCESS && good;
    return good;
}

static bool alloc_batch(unsigned calls) {
    bool good = true;
    for (unsigned i = 0; i < calls; i++) {
        CUdeviceptr pointer = 0;
        good = cuda.alloc(&pointer, 4096) == CUDA_SUCCESS && cuda.release(pointer) == CUDA_SUCCESS && good;
    }
    return good;
}

/* Nanoseconds of a call in the best of many batches, each short enough for the
 * driver's queue. */
static int cost(bool of_launches) {
    CUfunction function = NULL;
    double best = 1e18;
    if (!start_cuda() || !load_kernel("nothing", &function))
        return 1;
    for (int batch = 0; batch < 200; batch++) {
        uint64_t start = now_ns();
        bool good = of_launches ? launch_batch(function, 200) : alloc_batch(200);
        double took = (double)(now_ns() - start) / 200;
        if (!good || !works("cuCtxSynchronize", cuda.synchronize()))
            return 1;
        best = took < best ? took : best;
    }
    printf("ns %.1f\n", best);
    return 0;
}

static int init_cost(void) {
    uint64_t start = now_ns();
    if (!works("cuInit", cuda.init(0)))
        return 1;
    printf("ns %llu\n", (unsigned long long)(now_ns() - start));
    return 0;
}

static const char usage_text[] =
    "usage: vgpu-checks COMMAND [NUMBER...]\n"
    "\n"
    "The single checks of tests/gpu/run.sh (which see), bare or under libvgpu, on the card that the driver shows.\n"
    "\n"
    "  info                       print what CUDA shows of the card\n"
    "  memory BYTES               all of a limit of so many bytes can be had, and not one more\n"
    "  hold BYTES                 allocate so much and hold it until standard input ends\n"
    "  shared LIMIT HELD          what is free beside another process that holds so much\n"
    "  nvml BYTES                 NVML shows a card of that size\n"
    "  runtime LIBRARY BYTES      the same through the CUDA runtime, by its path\n"
    "  spin SECONDS MICROSECONDS  kernels that fill the card, so long each: the percent of the time that they ran\n"
    "  launch-cost, alloc-cost, init-cost  nanoseconds of a call\n"
    "\n"
    "Prints \"key value\" lines. exit status: 0 as it should be, 1 not, with the reason on stderr, 2 wrong use\n";

/* Asked before the driver is opened, so that wrong use is told as that where there is none. */
static bool needs_cuda(const char *command) {
    const char *const known[] = {"info", "memory", "hold", "shared", "spin", "launch-cost", "alloc-cost", "init-cost"};
    for (size_t i = 0; i < COUNT(known); i++)
        if (strcmp(command, known[i]) == 0)
            return true;
    return false;
}

int main(int argc, char **argv) {
    const char *command = argc > 1 ? argv[1] : "";
    if (strcmp(command, "--help") == 0) {
        fputs(usage_text, stdout);
        return 0;
    }
    unsigned long long first = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    unsigned long long second = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
    if (strcmp(command, "nvml") == 0)
        return check_nvml(first);
    if (strcmp(command, "runtime") == 0 && argc > 3)
        return check_runtime(argv[2], second);
    if (!needs_cuda(command)) {
        fprintf(stderr, "vgpu-checks: nothing is called \"%s\"; --help lists what there is\n", command);
        return 2;
    }
    if (!find_cuda())
        return 1;
    if (strcmp(command, "info") == 0)
        return show_info();
    if (strcmp(command, "memory") == 0)
        return check_memory(first);
    if (strcmp(command, "hold") == 0)
        return hold(first);
    if (strcmp(command, "shared") == 0)
        return check_shared(first, second);
    if (strcmp(command, "spin") == 0)
        return spin(first, second);
    if (strcmp(command, "launch-cost") == 0 || strcmp(command, "alloc-cost") == 0)
        return cost(strcmp(command, "launch-cost") == 0);
    return init_cost();
}
