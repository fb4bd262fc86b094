/* case CMM-05: a pool costs what the driver has reserved for it, however often memory comes from it and goes back. */
#include <stdlib.h>

#include "check.h"
#include "reach.h"
#include "sandbox.h"

#define MIB (1024ull * 1024ull)
#define ROUNDS 1000

static uint64_t used_bytes(void) {
    size_t free_bytes = 0, total = 0;
    CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    CHECK_EQUAL(total, 1024 * MIB);
    return total - free_bytes;
}

static uint64_t reserved_bytes(CUmemoryPool pool) {
    uint64_t bytes = 0;
    CHECK_EQUAL(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes), CUDA_SUCCESS);
    return bytes;
}

static void body(uint64_t keeps) {
    CUcontext context = NULL;
    CUstream stream = NULL;
    CUmemoryPool pool = NULL;
    CUdeviceptr pointer = 0, first = 0, second = 0;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keeps), CUDA_SUCCESS);
    uint64_t before = used_bytes();
    for (int i = 0; i < ROUNDS && check_failures == 0; i++) {
        CHECK_EQUAL(cuMemAllocAsync(&pointer, 64 * MIB, stream), CUDA_SUCCESS);
        CHECK_EQUAL(used_bytes() - before, reserved_bytes(pool));
        CHECK_EQUAL(cuMemFreeAsync(pointer, stream), CUDA_SUCCESS);
        CHECK_EQUAL(cuStreamSynchronize(stream), CUDA_SUCCESS);
        CHECK_EQUAL(used_bytes() - before, reserved_bytes(pool));
    }
    CHECK(reserved_bytes(pool) <= 64 * MIB);
    CHECK_EQUAL(cuMemAllocAsync(&first, 600 * MIB, stream), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAllocAsync(&second, 600 * MIB, stream), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cuMemFreeAsync(first, stream), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAllocAsync(&second, 600 * MIB, stream), CUDA_SUCCESS);
    CHECK_EQUAL(used_bytes() - before, reserved_bytes(pool));
}

int main(int argc, char **argv) {
    static const char *const kept[] = {"0", "67108864", "18446744073709551615"};
    if (argc == 2) {
        body(strtoull(argv[1], NULL, 10));
        return check_done();
    }
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++) {
        struct sandbox sandbox = sandbox_make();
        char output[SANDBOX_OUTPUT];
        const char *environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=1024m", NULL};
        if (!CHECK_EQUAL_THAT(
                sandbox_run(&sandbox, true, environment, (const char *[]){sandbox_self(), kept[i], NULL}, output), 0,
                kept[i]))
            fputs(output, stderr);
        sandbox_remove(&sandbox);
    }
    return check_done();
}
