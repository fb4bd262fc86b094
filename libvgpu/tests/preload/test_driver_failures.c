/* The driver fails, at every call that a hook makes: the program gets the driver's own code, and afterwards what is
 * held is what was held before, in the slice and in the driver. Which calls a hook makes is not written down here but
 * counted by the simulated driver: first it is watched, then each of its calls is made to fail. */
#include <stdlib.h>

#include "check.h"
#include "faults.h"
#include "reach.h"
#include "sandbox.h"

#define MIB (1024ull * 1024ull)
#define LIMIT (64 * MIB)
#define CODE 716  /* nothing else returns it here */
#define ROUNDS 16 /* more calls of one symbol than any hook makes */

static struct sandbox here;

/* ---- operations: what is had by `take` is given back by `release` ---- */

struct operation {
    const char *name;
    CUresult (*take)(uint64_t *handle);
    CUresult (*release)(uint64_t handle);
};

static CUresult take_linear(uint64_t *handle) {
    return cuMemAlloc_v2((CUdeviceptr *)handle, 4 * MIB);
}

static CUresult take_managed(uint64_t *handle) {
    return cuMemAllocManaged((CUdeviceptr *)handle, 4 * MIB, 1);
}

static CUresult take_pitch(uint64_t *handle) {
    size_t pitch = 0;
    return cuMemAllocPitch_v2((CUdeviceptr *)handle, &pitch, 500, 8192, 4);
}

static CUresult take_async(uint64_t *handle) {
    return cuMemAllocAsync((CUdeviceptr *)handle, 4 * MIB, NULL);
}

static CUresult take_async_per_thread(uint64_t *handle) {
    return cuMemAllocAsync_ptsz((CUdeviceptr *)handle, 4 * MIB, NULL);
}

static CUmemoryPool default_pool(void) {
    static CUmemoryPool pool;
    if (pool == NULL)
        CHECK_EQUAL(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
    return pool;
}

static CUresult take_from_pool(uint64_t *handle) {
    return cuMemAllocFromPoolAsync((CUdeviceptr *)handle, 4 * MIB, default_pool(), NULL);
}

static CUresult take_from_pool_per_thread(uint64_t *handle) {
    return cuMemAllocFromPoolAsync_ptsz((CUdeviceptr *)handle, 4 * MIB, default_pool(), NULL);
}

static CUresult take_vmm(uint64_t *handle) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    return cuMemCreate((CUmemGenericAllocationHandle *)handle, 4 * MIB, &prop, 0);
}

static CUresult release_linear(uint64_t handle) {
    return cuMemFree_v2(handle);
}

static CUresult release_async(uint64_t handle) {
    return cuMemFreeAsync(handle, NULL);
}

static CUresult release_async_per_thread(uint64_t handle) {
    return cuMemFreeAsync_ptsz(handle, NULL);
}

static CUresult release_vmm(uint64_t handle) {
    return cuMemRelease(handle);
}

static CUresult take_linear_v1(uint64_t *handle) {
    CUdeviceptr_v1 pointer = 0;
    CUresult result = cuMemAlloc(&pointer, 4 * MIB);
    *handle = pointer;
    return result;
}

static CUresult release_linear_v1(uint64_t handle) {
    return cuMemFree((CUdeviceptr_v1)handle);
}

static CUresult take_array(uint64_t *handle) {
    CUDA_ARRAY_DESCRIPTOR shape = {.Width = 1000, .Height = 1000, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    return cuArrayCreate_v2((CUarray *)handle, &shape);
}

static CUresult take_array_3d(uint64_t *handle) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {
        .Width = 100, .Height = 100, .Depth = 10, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    return cuArray3DCreate_v2((CUarray *)handle, &shape);
}

static CUresult release_array(uint64_t handle) {
    return cuArrayDestroy((CUarray)handle);
}

static CUresult take_mipmapped(uint64_t *handle) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 512, .Height = 512, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    return cuMipmappedArrayCreate((CUmipmappedArray *)handle, &shape, 4);
}

static CUresult release_mipmapped(uint64_t handle) {
    return cuMipmappedArrayDestroy((CUmipmappedArray)handle);
}

static CUresult take_host(uint64_t *handle) {
    return cuMemHostAlloc((void **)handle, MIB, 0);
}

static CUresult release_host(uint64_t handle) {
    return cuMemFreeHost((void *)handle);
}

static CUresult take_registered(uint64_t *handle) {
    static char memory[65536] __attribute__((aligned(4096)));
    *handle = (uint64_t)(uintptr_t)memory;
    return cuMemHostRegister_v2(memory, sizeof memory, 0);
}

static CUresult release_registered(uint64_t handle) {
    return cuMemHostUnregister((void *)handle);
}

static CUresult take_module(uint64_t *handle) {
    return cuModuleLoadData((CUmodule *)handle, "image");
}

static CUresult release_module(uint64_t handle) {
    return cuModuleUnload((CUmodule)handle);
}

/* The new context becomes the current one, and no more once it is destroyed. */
static CUresult take_context(uint64_t *handle) {
    return cuCtxCreate_v2((CUcontext *)handle, 0, 0);
}

static CUresult release_context(uint64_t handle) {
    return cuCtxDestroy_v2((CUcontext)handle);
}

static CUresult take_pool(uint64_t *handle) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    return cuMemPoolCreate((CUmemoryPool *)handle, &props);
}

static CUresult release_pool(uint64_t handle) {
    return cuMemPoolDestroy((CUmemoryPool)handle);
}

static const struct operation operations[] = {
    {"linear", take_linear, release_linear},
    {"managed", take_managed, release_linear},
    {"pitch", take_pitch, release_linear},
    {"stream-ordered", take_async, release_async},
    {"stream-ordered, freed at once", take_async, release_linear},
    {"stream-ordered, per thread", take_async_per_thread, release_async_per_thread},
    {"from a pool", take_from_pool, release_async},
    {"from a pool, per thread", take_from_pool_per_thread, release_async_per_thread},
    {"virtual memory", take_vmm, release_vmm},
    {"linear, 32-bit", take_linear_v1, release_linear_v1},
    {"array", take_array, release_array},
    {"array of three dimensions", take_array_3d, release_array},
    {"mipmapped array", take_mipmapped, release_mipmapped},
    {"host memory", take_host, release_host},
    {"registered host memory", take_registered, release_registered},
    {"module", take_module, release_module},
    {"context", take_context, release_context},
    {"pool", take_pool, release_pool},
};

/* ---- what is held ---- */

struct held {
    uint64_t of_slice, of_driver;
};

static struct held held_now(void) {
    size_t free_bytes = 0, total = 0;
    CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    CHECK_EQUAL(total, LIMIT);
    return (struct held){.of_slice = total - free_bytes, .of_driver = sandbox_books_used(&here, 0, 0)};
}

static void check_held(struct held before, const char *what) {
    struct held now = held_now();
    CHECK_EQUAL_THAT(now.of_slice, before.of_slice, what);
    CHECK_EQUAL_THAT(now.of_driver, before.of_driver, what);
}

/* ---- each call of each operation fails once ---- */

static bool was_called(struct sim_symbol symbol) {
    return sandbox_calls(NULL, sim_symbol_name(symbol)) > 0;
}

/* Pooled memory stays reserved after the first free, so what is compared is had when everything has been used once. */
static void warm_up(const struct operation *operation) {
    uint64_t handle = 0;
    CHECK_EQUAL_THAT(operation->take(&handle), CUDA_SUCCESS, operation->name);
    CHECK_EQUAL_THAT(operation->release(handle), CUDA_SUCCESS, operation->name);
}

/* False when the symbol is not called that often. */
static bool fail_while_taking(const struct operation *operation, const char *symbol, uint64_t after) {
    char what[160];
    uint64_t handle = 0;
    snprintf(what, sizeof what, "%s, call %llu of %s while taking", operation->name, (unsigned long long)after, symbol);
    struct held before = held_now();
    sandbox_count_calls(NULL);
    sandbox_fail(NULL, symbol, CODE, after, 1);
    CUresult result = operation->take(&handle);
    bool struck = sandbox_calls(NULL, symbol) > after;
    sandbox_heal(NULL);
    if (result == CUDA_SUCCESS)
        CHECK_EQUAL_THAT(operation->release(handle), CUDA_SUCCESS, what);
    else
        CHECK_EQUAL_THAT(result, CODE, what);
    check_held(before, what);
    return struck;
}

static bool fail_while_releasing(const struct operation *operation, const char *symbol, uint64_t after) {
    char what[160];
    uint64_t handle = 0;
    snprintf(what, sizeof what, "%s, call %llu of %s while releasing", operation->name, (unsigned long long)after,
             symbol);
    struct held before = held_now();
    CHECK_EQUAL_THAT(operation->take(&handle), CUDA_SUCCESS, what);
    struct held taken = held_now();
    sandbox_count_calls(NULL);
    sandbox_fail(NULL, symbol, CODE, after, 1);
    CUresult result = operation->release(handle);
    bool struck = sandbox_calls(NULL, symbol) > after;
    sandbox_heal(NULL);
    if (result != CUDA_SUCCESS) {
        CHECK_EQUAL_THAT(result, CODE, what);
        check_held(taken, what); /* still the program's, still counted */
        CHECK_EQUAL_THAT(operation->release(handle), CUDA_SUCCESS, what);
    }
    check_held(before, what);
    return struck;
}

/* The call of the operation's own name must be among those that failed, or nothing was tested. */
static void try_operation(const struct operation *operation) {
    unsigned struck = 0;
    uint64_t handle = 0;
    struct sim_symbol symbol = {.table = SIM_TABLE_CUDA};
    bool called[SIM_MAX_ENTRIES] = {false};
    warm_up(operation);
    sandbox_count_calls(NULL);
    CHECK_EQUAL_THAT(operation->take(&handle), CUDA_SUCCESS, operation->name);
    CHECK_EQUAL_THAT(operation->release(handle), CUDA_SUCCESS, operation->name);
    for (; sim_symbol_name(symbol) != NULL; symbol.number++)
        called[symbol.number] = was_called(symbol);
    for (symbol.number = 0; sim_symbol_name(symbol) != NULL; symbol.number++) {
        const char *name = sim_symbol_name(symbol);
        for (uint64_t after = 0; called[symbol.number] && after < ROUNDS; after++)
            if (!fail_while_taking(operation, name, after))
                break;
            else
                struck++;
        for (uint64_t after = 0; called[symbol.number] && after < ROUNDS; after++)
            if (!fail_while_releasing(operation, name, after))
                break;
            else
                struck++;
    }
    CHECK_THAT(struck >= 2, operation->name);
}

/* case CMM-06: a later driver call fails; nothing leaks, nothing is forgotten, the code is the driver's. */
static int run_child(void) {
    CUcontext context = NULL;
    snprintf(here.directory, sizeof here.directory, "%s", getenv("VGPU_TEST_DIRECTORY"));
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++)
        try_operation(&operations[i]);
    return check_done();
}

int main(void) {
    char directory[128], output[SANDBOX_OUTPUT];
    if (getenv("VGPU_TEST_DIRECTORY") != NULL)
        return run_child();
    struct sandbox sandbox = sandbox_make();
    snprintf(directory, sizeof directory, "VGPU_TEST_DIRECTORY=%s", sandbox.directory);
    const char *environment[] = {directory, "CUDA_DEVICE_MEMORY_LIMIT=64m", NULL};
    int status = sandbox_run(&sandbox, true, environment, (const char *[]){sandbox_self(), NULL}, output);
    if (!CHECK_EQUAL(status, 0))
        fputs(output, stderr);
    sandbox_remove(&sandbox);
    return check_done();
}
