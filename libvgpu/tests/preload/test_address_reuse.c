/* Threads of one process whose contexts end while others allocate: the driver gives an address out again, as memory of
 * another kind, before the call that ended the context has come back. In the end nothing is held, and nothing charged.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "reach.h"
#include "sandbox.h"
#include "vgpu/shm_layout.h"

#define MIB (1024ull * 1024ull)
#define THREADS 6
#define ROUNDS 2500
#define PLACES 64

static CUcontext shared;
static _Atomic CUdeviceptr places[PLACES]; /* of pools and linear alike; freed by whichever thread comes by */

static void need(CUresult result) {
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
}

static void swap_in(uint64_t *state, CUdeviceptr pointer, CUstream stream) {
    CUdeviceptr before = atomic_exchange(&places[check_random(state) % PLACES], pointer);
    if (before != 0)
        need(check_random(state) % 2 == 0 ? cuMemFree_v2(before) : cuMemFreeAsync(before, stream));
}

static void end_a_context(uint64_t *state) {
    CUcontext context = NULL;
    CUdeviceptr pointer = 0;
    need(cuCtxCreate_v2(&context, 0, 0));
    for (int i = 0; i < 3; i++)
        need(cuMemAlloc_v2(&pointer, 1 + check_random(state) % MIB));
    need(cuCtxDestroy_v2(context));
    need(cuCtxSetCurrent(shared));
}

static void end_a_pool(uint64_t *state, CUstream stream) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemoryPool pool = NULL;
    CUdeviceptr pointer = 0;
    need(cuMemPoolCreate(&pool, &props));
    CUresult result = cuMemAllocFromPoolAsync(&pointer, 1 + check_random(state) % MIB, pool, stream);
    need(result);
    if (result == CUDA_SUCCESS)
        swap_in(state, pointer, stream);
    need(cuMemPoolDestroy(pool));
}

static void *run(void *seed) {
    uint64_t state = (uint64_t)(uintptr_t)seed;
    CUstream stream = NULL;
    CUdeviceptr pointer = 0;
    need(cuCtxSetCurrent(shared));
    need(cuStreamCreate(&stream, 1 /* does not wait for the legacy stream */));
    for (int i = 0; i < ROUNDS; i++)
        switch (check_random(&state) % 3) {
        case 0:
            end_a_context(&state);
            break;
        case 1:
            end_a_pool(&state, stream);
            break;
        default:
            if (cuMemAlloc_v2(&pointer, 1 + check_random(&state) % MIB) == CUDA_SUCCESS)
                swap_in(&state, pointer, stream);
        }
    return NULL;
}

static int body(void) {
    struct sandbox here = {.directory = ""};
    pthread_t threads[THREADS];
    snprintf(here.region, sizeof here.region, "%s", getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"));
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&shared, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(shared), CUDA_SUCCESS);
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK_EQUAL(pthread_create(&threads[i], NULL, run, (void *)(i + 1)), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < PLACES; i++)
        if (places[i] != 0)
            CHECK_EQUAL(cuMemFree_v2(places[i]), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
    const struct vg_region *region = sandbox_region(&here);
    CHECK_EQUAL(region->slots[0].pid, getpid());
    CHECK_EQUAL(region->slots[0].used[0].total, 0);
    return check_done();
}

int main(int argc, char **argv) {
    const char *environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=30m", NULL};
    char output[SANDBOX_OUTPUT];
    (void)argv;
    if (argc == 2)
        return body();
    struct sandbox sandbox = sandbox_make();
    if (!CHECK_EQUAL(sandbox_run(&sandbox, true, environment, (const char *[]){sandbox_self(), "body", NULL}, output),
                     0))
        fputs(output, stderr);
    CHECK_EQUAL(sandbox_books_used(&sandbox, 0, 0), 0);
    sandbox_remove(&sandbox);
    return check_done();
}
