/* The hooks linked into a program, under sanitizers, over the simulated driver's functions: threads allocate, free,
 * launch and ask all at once, and the accounts are right afterwards. */
#include <pthread.h>
#include <stdlib.h>

#include "account/account.h"
#include "check.h"
#include "sandbox.h"

#define THREADS 6
#define ROUNDS 400
#define HOLDINGS 24
#define MIB (1024ull * 1024ull)

static CUcontext context;
static CUfunction function;

enum kind { NOTHING, PLAIN, ORDERED, HANDLE };

struct holding {
    enum kind kind;
    CUdeviceptr pointer;
    CUmemGenericAllocationHandle handle;
};

static void take(struct holding *holding, uint64_t *state) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    size_t bytes = 1 + check_random(state) % (4 * MIB), pitch = 0;
    CUresult result = CUDA_SUCCESS;
    switch (check_random(state) % 5) {
    case 0:
        result = cuMemAlloc_v2(&holding->pointer, bytes);
        holding->kind = PLAIN;
        break;
    case 1:
        result = cuMemAllocManaged(&holding->pointer, bytes, 1);
        holding->kind = PLAIN;
        break;
    case 2:
        result = cuMemAllocPitch_v2(&holding->pointer, &pitch, 1 + bytes % 4000, 1 + bytes % 50, 4);
        holding->kind = PLAIN;
        break;
    case 3:
        result = cuMemAllocAsync(&holding->pointer, bytes, NULL);
        holding->kind = ORDERED;
        break;
    default:
        result = cuMemCreate(&holding->handle, 2 * MIB, &prop, 0);
        holding->kind = HANDLE;
        break;
    }
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
    if (result != CUDA_SUCCESS)
        holding->kind = NOTHING;
}

static void give(struct holding *holding) {
    if (holding->kind == PLAIN)
        CHECK_EQUAL(cuMemFree_v2(holding->pointer), CUDA_SUCCESS);
    else if (holding->kind == ORDERED)
        CHECK_EQUAL(cuMemFreeAsync(holding->pointer, NULL), CUDA_SUCCESS);
    else if (holding->kind == HANDLE)
        CHECK_EQUAL(cuMemRelease(holding->handle), CUDA_SUCCESS);
    holding->kind = NOTHING;
}

static void ask(void) {
    size_t free_bytes = 0, total = 0;
    CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    CHECK(free_bytes <= total && total == 64 * MIB);
    CHECK_EQUAL(cuDeviceTotalMem_v2(&total, 0), CUDA_SUCCESS);
}

/* A context of the thread's own, with memory that goes with it, and an array. */
static void make_and_destroy(void) {
    CUDA_ARRAY_DESCRIPTOR shape = {.Width = 64, .Height = 64, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
    CUcontext own = NULL;
    CUarray array = NULL;
    CUdeviceptr pointer = 0;
    CUresult result = cuCtxCreate_v2(&own, 0, 0);
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
    if (result == CUDA_SUCCESS) {
        result = cuMemAlloc_v2(&pointer, MIB);
        CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQUAL(cuCtxDestroy_v2(own), CUDA_SUCCESS);
        CHECK_EQUAL(vgi_cuda.cuCtxSetCurrent(context), CUDA_SUCCESS);
    }
    result = cuArrayCreate_v2(&array, &shape);
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
    if (result == CUDA_SUCCESS)
        CHECK_EQUAL(cuArrayDestroy(array), CUDA_SUCCESS);
}

static void *run_thread(void *argument) {
    struct holding holdings[HOLDINGS] = {{.kind = NOTHING}};
    uint64_t state = 1 + (uint64_t)(uintptr_t)argument * 7919;
    CHECK_EQUAL(vgi_cuda.cuCtxSetCurrent(context), CUDA_SUCCESS);
    for (int round = 0; round < ROUNDS; round++) {
        struct holding *holding = &holdings[check_random(&state) % HOLDINGS];
        if (holding->kind == NOTHING)
            take(holding, &state);
        else
            give(holding);
        if (round % 16 == 0)
            ask();
        if (round % 32 == 0)
            make_and_destroy();
        if (round % 8 == 0)
            CHECK_EQUAL(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
    }
    for (int i = 0; i < HOLDINGS; i++)
        give(&holdings[i]);
    return NULL;
}

int main(void) {
    struct sandbox sandbox = sandbox_make();
    char description[128];
    CUmodule module = NULL;
    CUmemoryPool pool = NULL;
    pthread_t threads[THREADS];
    snprintf(description, sizeof description, "%s/node.json", sandbox.directory);
    setenv("HAMI_SIM_DRIVER", description, 1);
    setenv("HAMI_SIM_KERNEL_MICROSECONDS", "0", 1);
    setenv("CUDA_DEVICE_MEMORY_SHARED_CACHE", sandbox.region, 1);
    setenv("CUDA_DEVICE_MEMORY_LIMIT", "64m", 1);
    setenv("CUDA_DEVICE_SM_LIMIT", "90", 1);
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(vgi_cuda.cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_EQUAL(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
    CHECK_EQUAL(vgi_cuda.cuModuleGetFunction(&function, module, "kernel"), CUDA_SUCCESS);
    uint64_t before = sandbox_books_used(&sandbox, 0, 0);
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, run_thread, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQUAL(vgi_cuda.cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
    CHECK_EQUAL(sandbox_books_used(&sandbox, 0, 0), before);
    CHECK_EQUAL(vgi_region->slots[vgi_process->slot].used[0].total, before);
    CHECK_EQUAL(vg_card_used(vgi_region, 0), before);
    CHECK_EQUAL(cuModuleUnload(module), CUDA_SUCCESS);
    sandbox_remove(&sandbox);
    return check_done();
}
