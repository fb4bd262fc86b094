/* A call may claim more than it keeps: the chunk a pool may grow by, the pitch a driver may choose. Who asks meanwhile
 * for what will fit, in the same process or in another one, waits for it and is not refused. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "account/account.h"
#include "check.h"
#include "sandbox.h"

#define MIB (1024ull * 1024ull)
#define CHUNK (4 * MIB)
#define ROWS 8192
#define PAUSE_US 1000
#define PAUSES 100 /* that the other one is given to be refused in */

static struct sandbox sandbox;

static void start_cuda(void) {
    CUcontext context = NULL;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(vgi_cuda.cuCtxSetCurrent(context), CUDA_SUCCESS);
}

/* ---- the other one, who asks while our call is at the driver ---- */

enum where { IN_A_THREAD, IN_A_PROCESS };
static enum where where;
static size_t wanted_bytes;
static pthread_t thread;
static pid_t process;
static _Atomic int answer = -1; /* a CUresult */

static CUresult ask(size_t bytes) {
    CUdeviceptr pointer = 0;
    CUresult result = cuMemAlloc_v2(&pointer, bytes);
    if (result == CUDA_SUCCESS)
        CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
    return result;
}

static void *ask_in_thread(void *unused) {
    CUcontext context = NULL;
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(vgi_cuda.cuCtxSetCurrent(context), CUDA_SUCCESS);
    answer = (int)ask(wanted_bytes);
    return unused;
}

static void start_other(void) {
    char bytes[32];
    if (where == IN_A_THREAD) {
        CHECK_EQUAL(pthread_create(&thread, NULL, ask_in_thread, NULL), 0);
        return;
    }
    snprintf(bytes, sizeof bytes, "%zu", wanted_bytes);
    process = fork();
    if (process == 0) {
        execl(sandbox_self(), sandbox_self(), bytes, NULL);
        _exit(127);
    }
}

static bool other_has_answered(int options) {
    int status = 0;
    if (where == IN_A_PROCESS && process > 0 && waitpid(process, &status, options) == process) {
        CHECK(WIFEXITED(status));
        answer = WEXITSTATUS(status);
        process = 0;
    }
    return answer >= 0;
}

/* Inside our driver call. Refused at once it would have answered by the end; waiting for us it does afterwards. */
static void let_other_ask(void) {
    answer = -1;
    start_other();
    for (int i = 0; i < PAUSES && !other_has_answered(WNOHANG); i++)
        usleep(PAUSE_US);
}

static void check_other(const char *what) {
    if (where == IN_A_THREAD)
        pthread_join(thread, NULL);
    (void)other_has_answered(0);
    CHECK_EQUAL_THAT(answer, CUDA_SUCCESS, what);
}

/* ---- calls that claim more than they keep ---- */

static __typeof__(vgi_cuda.cuMemAllocFromPoolAsync) real_alloc_from_pool;
static __typeof__(vgi_cuda.cuMemAllocPitch_v2) real_alloc_pitch;

static CUresult slow_alloc_from_pool(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    let_other_ask();
    return real_alloc_from_pool(pointer, bytes, pool, stream);
}

/* A driver whose rows need no rounding. */
static CUresult slow_alloc_pitch(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
    let_other_ask();
    CUresult result = real_alloc_pitch(pointer, pitch, width, height, element);
    *pitch = width;
    return result;
}

/* The pool was seen with 4 MiB, which then may be its chunk: for 2 MiB more it claims 4. */
static void pool_grows(void) {
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemoryPool pool = NULL;
    CUdeviceptr first = 0, second = 0;
    CHECK_EQUAL(cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAllocFromPoolAsync(&first, CHUNK, pool, NULL), CUDA_SUCCESS);
    wanted_bytes = 4 * MIB;
    vgi_cuda.cuMemAllocFromPoolAsync = slow_alloc_from_pool;
    CHECK_EQUAL(cuMemAllocFromPoolAsync(&second, CHUNK / 2, pool, NULL), CUDA_SUCCESS);
    vgi_cuda.cuMemAllocFromPoolAsync = real_alloc_from_pool;
    check_other(where == IN_A_THREAD ? "pool, thread" : "pool, process");
    CHECK_EQUAL(cuMemFreeAsync(first, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemFreeAsync(second, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemPoolDestroy(pool), CUDA_SUCCESS);
}

/* Rows of 260 bytes, for which 512 are claimed: 4 MiB instead of 2. */
static void pitch_is_narrow(void) {
    CUdeviceptr rows = 0;
    size_t pitch = 0;
    wanted_bytes = 7 * MIB;
    vgi_cuda.cuMemAllocPitch_v2 = slow_alloc_pitch;
    CHECK_EQUAL(cuMemAllocPitch_v2(&rows, &pitch, 260, ROWS, 4), CUDA_SUCCESS);
    vgi_cuda.cuMemAllocPitch_v2 = real_alloc_pitch;
    check_other(where == IN_A_THREAD ? "pitch, thread" : "pitch, process");
    CHECK_EQUAL(cuMemFree_v2(rows), CUDA_SUCCESS);
}

int main(int argc, char **argv) {
    char description[128];
    if (argc == 2) { /* the other process */
        start_cuda();
        CUresult result = ask(strtoull(argv[1], NULL, 10));
        return check_failures > 0 ? 126 : (int)result;
    }
    sandbox = sandbox_make();
    snprintf(description, sizeof description, "%s/node.json", sandbox.directory);
    setenv("HAMI_SIM_DRIVER", description, 1);
    setenv("CUDA_DEVICE_MEMORY_SHARED_CACHE", sandbox.region, 1);
    setenv("CUDA_DEVICE_MEMORY_LIMIT", "10m", 1);
    real_alloc_from_pool = vgi_cuda.cuMemAllocFromPoolAsync;
    real_alloc_pitch = vgi_cuda.cuMemAllocPitch_v2;
    start_cuda();
    for (where = IN_A_THREAD; where <= IN_A_PROCESS; where++) {
        pool_grows();
        pitch_is_narrow();
    }
    CHECK_EQUAL(vg_card_used(vgi_region, 0), 0);
    sandbox_remove(&sandbox);
    return check_done();
}
