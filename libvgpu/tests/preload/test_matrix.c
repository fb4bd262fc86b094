/* Each API that allocates × each way of reaching it × each situation it is called in: the limit holds to the byte, the
 * process sees its slice, and what is freed can be had again. */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "limits_folder.h"
#include "reach.h"
#include "sandbox.h"

#define MIB (1024ull * 1024ull)
#define LIMIT_MIB 10
#define VERSIONED_DRIVER "LD_LIBRARY_PATH=" VGPU_BINARY_DIR "/sim-versioned:" VGPU_BINARY_DIR "/sim"

enum api {
    API_LINEAR,
    API_MANAGED,
    API_PITCH,
    API_ASYNC,
    API_POOL,
    API_OWN_POOL,
    API_GRAPH,
    API_CAPTURED,
    API_VMM,
    API_LINEAR_V1,
    API_PITCH_V1,
    API_ARRAY_V1,
    API_ARRAY3D_V1,
    API_ARRAY,
    API_ARRAY3D,
    API_MIPMAP,
    API_EXTERNAL,
    API_COUNT
};
static const char *const api_names[API_COUNT] = {"linear",    "managed",  "pitch",   "async",    "pool",    "own-pool",
                                                 "graph",     "captured", "vmm",     "linear-1", "pitch-1", "array-1",
                                                 "array3d-1", "array",    "array3d", "mipmap",   "external"};

enum situation { IN_MAIN, IN_CONSTRUCTOR, AFTER_FORK, IN_THREADS, SITUATION_COUNT, ON_A_WITHHELD_CARD };
static const char *const situation_names[SITUATION_COUNT] = {"main", "constructor", "after-fork", "threads"};

/* ---- the process under test ---- */

static enum reach reach;
static enum api api;

static CUresult start_cuda(void) {
    CUcontext context = NULL;
    CUresult result = REACH(reach, cuInit, cuInit, 2000, PFN_cuInit_v2000)(0);
    if (result == CUDA_SUCCESS)
        result = REACH(reach, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000,
                       PFN_cuDevicePrimaryCtxRetain_v7000)(&context, 0);
    return result == CUDA_SUCCESS ? cuCtxSetCurrent(context) : result;
}

/* An array of that many bytes, in rows of which the driver makes 512. */
#define TEXELS .Width = 125, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1

static CUresult allocate_array(uint64_t bytes, uint64_t *handle) {
    const CUDA_ARRAY_DESCRIPTOR_v1 flat_v1 = {TEXELS, .Height = (unsigned)(bytes / 512)};
    const CUDA_ARRAY3D_DESCRIPTOR_v1 deep_v1 = {TEXELS, .Height = (unsigned)(bytes / 1024), .Depth = 2};
    const CUDA_ARRAY_DESCRIPTOR flat = {TEXELS, .Height = bytes / 512};
    const CUDA_ARRAY3D_DESCRIPTOR deep = {TEXELS, .Height = bytes / 1024, .Depth = 2};
    const CUDA_ARRAY3D_DESCRIPTOR faces = {TEXELS, .Height = bytes / 4096, .Depth = 8, .Flags = CUDA_ARRAY3D_LAYERED};
    CUarray *array = (CUarray *)(void *)handle;
    CUmipmappedArray *mipmap = (CUmipmappedArray *)(void *)handle;
    switch (api) {
    case API_ARRAY_V1:
        return REACH(reach, cuArrayCreate, cuArrayCreate, 2000, PFN_cuArrayCreate_v2000)(array, &flat_v1);
    case API_ARRAY3D_V1:
        return REACH(reach, cuArray3DCreate, cuArray3DCreate, 2000, PFN_cuArray3DCreate_v2000)(array, &deep_v1);
    case API_ARRAY:
        return REACH(reach, cuArrayCreate_v2, cuArrayCreate, 3020, PFN_cuArrayCreate_v3020)(array, &flat);
    case API_ARRAY3D:
        return REACH(reach, cuArray3DCreate_v2, cuArray3DCreate, 3020, PFN_cuArray3DCreate_v3020)(array, &deep);
    default:
        return REACH(reach, cuMipmappedArrayCreate, cuMipmappedArrayCreate, 5000,
                     PFN_cuMipmappedArrayCreate_v5000)(mipmap, &faces, 1);
    }
}

static CUresult import_external(uint64_t bytes, uint64_t *handle) {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = {
        .type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .handle.fd = open("/dev/null", O_RDWR), .size = bytes};
    CUresult result = REACH(reach, cuImportExternalMemory, cuImportExternalMemory, 10000,
                            PFN_cuImportExternalMemory_v10000)((CUexternalMemory *)(void *)handle, &from);
    if (result != CUDA_SUCCESS)
        close(from.handle.fd);
    return result;
}

/* A pool for each thread. */
static CUmemoryPool own_pool(void) {
    static _Thread_local CUmemoryPool pool;
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    if (pool == NULL)
        CHECK_EQUAL(REACH(reach, cuMemPoolCreate, cuMemPoolCreate, 11020, PFN_cuMemPoolCreate_v11020)(&pool, &props),
                    0);
    return pool;
}

/* Memory that a graph allocates when it is launched; its allocation node is added, or captured. */
static CUgraph make_graph(uint64_t bytes, CUdeviceptr *pointer) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                       .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}},
                                         .bytesize = bytes};
    CUgraph graph = NULL;
    CUgraphNode node = NULL;
    CUstream stream = NULL;
    if (api == API_GRAPH) {
        CHECK_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
        CHECK_EQUAL(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params), CUDA_SUCCESS);
        *pointer = params.dptr;
        return graph;
    }
    CHECK_EQUAL(cuStreamCreate(&stream, 1), CUDA_SUCCESS);
    CHECK_EQUAL(REACH(reach, cuStreamBeginCapture_v2, cuStreamBeginCapture, 10010,
                      PFN_cuStreamBeginCapture_v10010)(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                CUDA_SUCCESS);
    CHECK_EQUAL(
        REACH(reach, cuMemAllocAsync, cuMemAllocAsync, 11020, PFN_cuMemAllocAsync_v11020)(pointer, bytes, stream),
        CUDA_SUCCESS); /* whatever its size: nothing is allocated yet */
    CHECK_EQUAL(
        REACH(reach, cuStreamEndCapture, cuStreamEndCapture, 10000, PFN_cuStreamEndCapture_v10000)(stream, &graph),
        CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
    return graph;
}

static CUresult destroy_exec(CUgraphExec exec) {
    return REACH(reach, cuGraphExecDestroy, cuGraphExecDestroy, 10000, PFN_cuGraphExecDestroy_v10000)(exec);
}

/* The exec may go as soon as it was launched: what it allocated stays. */
static CUresult allocate_by_graph(uint64_t bytes, CUdeviceptr *pointer) {
    CUgraphExec exec = NULL;
    CUgraph graph = make_graph(bytes, pointer);
    CHECK_EQUAL(REACH(reach, cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040,
                      PFN_cuGraphInstantiateWithFlags_v11040)(&exec, graph, 0),
                CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
    CUresult result = REACH(reach, cuGraphLaunch, cuGraphLaunch, 10000, PFN_cuGraphLaunch_v10000)(exec, NULL);
    CHECK_EQUAL(destroy_exec(exec), CUDA_SUCCESS);
    return result;
}

/* What is freed comes back to the card with a synchronisation, or a trim. */
static CUresult free_in_order(uint64_t handle) {
    CUresult result = REACH(reach, cuMemFreeAsync, cuMemFreeAsync, 11020, PFN_cuMemFreeAsync_v11020)(handle, NULL);
    CHECK_EQUAL(REACH(reach, cuStreamSynchronize, cuStreamSynchronize, 2000, PFN_cuStreamSynchronize_v2000)(NULL), 0);
    if (api == API_GRAPH || api == API_CAPTURED)
        CHECK_EQUAL(REACH(reach, cuDeviceGraphMemTrim, cuDeviceGraphMemTrim, 11040, PFN_cuDeviceGraphMemTrim_v11040)(0),
                    0);
    return result;
}

/* Memory of any API, by one number. */
static CUresult allocate(uint64_t bytes, uint64_t *handle) {
    CUdeviceptr pointer = 0;
    CUdeviceptr_v1 low = 0;
    unsigned int narrow_pitch = 0;
    size_t pitch = 0;
    CUmemoryPool pool = NULL;
    CUresult result = CUDA_ERROR_UNKNOWN;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    switch (api) {
    case API_LINEAR:
        result = REACH(reach, cuMemAlloc_v2, cuMemAlloc, 3020, PFN_cuMemAlloc_v3020)(&pointer, bytes);
        break;
    case API_MANAGED:
        result =
            REACH(reach, cuMemAllocManaged, cuMemAllocManaged, 6000, PFN_cuMemAllocManaged_v6000)(&pointer, bytes, 1);
        break;
    case API_PITCH: /* 500 bytes a row, of which the driver makes 512 */
        result = REACH(reach, cuMemAllocPitch_v2, cuMemAllocPitch, 3020,
                       PFN_cuMemAllocPitch_v3020)(&pointer, &pitch, 500, bytes / 512, 4);
        break;
    case API_ASYNC:
        result =
            REACH(reach, cuMemAllocAsync, cuMemAllocAsync, 11020, PFN_cuMemAllocAsync_v11020)(&pointer, bytes, NULL);
        break;
    case API_POOL:
        cuDeviceGetDefaultMemPool(&pool, 0);
        result = REACH(reach, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020,
                       PFN_cuMemAllocFromPoolAsync_v11020)(&pointer, bytes, pool, NULL);
        break;
    case API_OWN_POOL:
        result = REACH(reach, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020,
                       PFN_cuMemAllocFromPoolAsync_v11020)(&pointer, bytes, own_pool(), NULL);
        break;
    case API_GRAPH:
    case API_CAPTURED:
        result = allocate_by_graph(bytes, &pointer);
        break;
    case API_VMM:
        return REACH(reach, cuMemCreate, cuMemCreate, 10020,
                     PFN_cuMemCreate_v10020)((CUmemGenericAllocationHandle *)handle, bytes, &prop, 0);
    case API_LINEAR_V1:
        result = REACH(reach, cuMemAlloc, cuMemAlloc, 2000, PFN_cuMemAlloc_v2000)(&low, (unsigned)bytes);
        pointer = low;
        break;
    case API_PITCH_V1:
        result = REACH(reach, cuMemAllocPitch, cuMemAllocPitch, 2000,
                       PFN_cuMemAllocPitch_v2000)(&low, &narrow_pitch, 500, (unsigned)(bytes / 512), 4);
        pointer = low;
        break;
    case API_EXTERNAL:
        return import_external(bytes, handle);
    default:
        return allocate_array(bytes, handle);
    }
    *handle = pointer;
    return result;
}

static CUresult release(uint64_t handle) {
    switch (api) {
    case API_ASYNC:
    case API_POOL:
    case API_OWN_POOL:
    case API_GRAPH:
    case API_CAPTURED:
        return free_in_order(handle);
    case API_VMM:
        return REACH(reach, cuMemRelease, cuMemRelease, 10020, PFN_cuMemRelease_v10020)(handle);
    case API_LINEAR_V1:
    case API_PITCH_V1:
        return REACH(reach, cuMemFree, cuMemFree, 2000, PFN_cuMemFree_v2000)((CUdeviceptr_v1)handle);
    case API_ARRAY_V1:
    case API_ARRAY3D_V1:
    case API_ARRAY:
    case API_ARRAY3D:
        return REACH(reach, cuArrayDestroy, cuArrayDestroy, 2000, PFN_cuArrayDestroy_v2000)((CUarray)(uintptr_t)handle);
    case API_MIPMAP:
        return REACH(reach, cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, 5000,
                     PFN_cuMipmappedArrayDestroy_v5000)((CUmipmappedArray)(uintptr_t)handle);
    case API_EXTERNAL:
        return REACH(reach, cuDestroyExternalMemory, cuDestroyExternalMemory, 10000,
                     PFN_cuDestroyExternalMemory_v10000)((CUexternalMemory)(uintptr_t)handle);
    default:
        return REACH(reach, cuMemFree_v2, cuMemFree, 3020, PFN_cuMemFree_v3020)(handle);
    }
}

static uint64_t seen_free(void) {
    size_t free_bytes = 0, total = 0;
    CHECK_EQUAL(REACH(reach, cuMemGetInfo_v2, cuMemGetInfo, 3020, PFN_cuMemGetInfo_v3020)(&free_bytes, &total), 0);
    CHECK_EQUAL(total, LIMIT_MIB * MIB);
    return free_bytes;
}

/* The driver's answer to a free of what is not there. */
static CUresult not_there(void) {
    return api >= API_ARRAY_V1 ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
}

static void run_sequence(void) {
    uint64_t first = 0, second = 0, unknown = 0xdead0000;
    size_t total = 0;
    CHECK_EQUAL(start_cuda(), CUDA_SUCCESS);
    CHECK_EQUAL(REACH(reach, cuDeviceTotalMem_v2, cuDeviceTotalMem, 3020, PFN_cuDeviceTotalMem_v3020)(&total, 0), 0);
    CHECK_EQUAL(total, LIMIT_MIB * MIB);
    CHECK_EQUAL(seen_free(), LIMIT_MIB * MIB);
    CHECK_EQUAL(allocate(6 * MIB, &first), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 4 * MIB);
    CHECK_EQUAL(allocate(6 * MIB, &second), CUDA_ERROR_OUT_OF_MEMORY); /* case CMM-10 */
    CHECK_EQUAL(allocate(4 * MIB, &second), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 0);
    CHECK_EQUAL(release(first), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 6 * MIB);
    CHECK_EQUAL(release(first), not_there()); /* the driver's answer, unchanged */
    CHECK_EQUAL(release(unknown), not_there());
    CHECK_EQUAL(allocate(6 * MIB, &first), CUDA_SUCCESS);
    CHECK_EQUAL(release(first), CUDA_SUCCESS);
    CHECK_EQUAL(release(second), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), LIMIT_MIB * MIB);
}

static pthread_barrier_t barrier;

/* Five threads, 2 MiB each: together the whole slice, and not a byte more. */
static void *run_thread(void *unused) {
    uint64_t mine = 0, more = 0;
    CHECK_EQUAL(start_cuda(), CUDA_SUCCESS);
    CHECK_EQUAL(allocate(2 * MIB, &mine), CUDA_SUCCESS);
    pthread_barrier_wait(&barrier);
    CHECK_EQUAL(allocate(2 * MIB, &more), CUDA_ERROR_OUT_OF_MEMORY);
    pthread_barrier_wait(&barrier);
    CHECK_EQUAL(release(mine), CUDA_SUCCESS);
    return unused;
}

static void run_threads(void) {
    pthread_t threads[LIMIT_MIB / 2];
    pthread_barrier_init(&barrier, NULL, LIMIT_MIB / 2);
    for (int i = 0; i < LIMIT_MIB / 2; i++)
        pthread_create(&threads[i], NULL, run_thread, NULL);
    for (int i = 0; i < LIMIT_MIB / 2; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQUAL(start_cuda(), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), LIMIT_MIB * MIB);
}

static void run_after_fork(void) {
    int status = 0;
    void *touched = REACH(reach, cuInit, cuInit, 2000, void *); /* looked up before, used after */
    CHECK(touched != NULL);
    pid_t pid = fork();
    if (pid == 0) {
        run_sequence();
        _exit(check_done());
    }
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* The limits page does not name the card: nothing is given, however it is asked for. */
static void run_withheld(void) {
    uint64_t nothing = 0;
    CHECK_EQUAL(start_cuda(), CUDA_SUCCESS);
    CHECK_EQUAL(allocate(4096, &nothing), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(allocate(MIB, &nothing), CUDA_ERROR_OUT_OF_MEMORY);
}

static bool is_child(char **api_text, char **reach_text, char **situation_text) {
    char *text = getenv("VGPU_TEST_ROW");
    return text != NULL && (*api_text = strtok(text, ",")) != NULL && (*reach_text = strtok(NULL, ",")) != NULL &&
           (*situation_text = strtok(NULL, ",")) != NULL;
}

static int child_status = -1;

/* Before main, where a constructor is the situation. */
__attribute__((constructor)) static void run_child(void) {
    char *api_text, *reach_text, *situation_text;
    if (!is_child(&api_text, &reach_text, &situation_text))
        return;
    api = (enum api)atoi(api_text);
    reach = (enum reach)atoi(reach_text);
    enum situation situation = (enum situation)atoi(situation_text);
    if (situation == IN_CONSTRUCTOR)
        run_sequence();
    else
        child_status = (int)situation;
    if (situation == IN_CONSTRUCTOR)
        _exit(check_done());
}

static int run_in_main(void) {
    switch ((enum situation)child_status) {
    case AFTER_FORK:
        run_after_fork();
        break;
    case IN_THREADS:
        run_threads();
        break;
    case ON_A_WITHHELD_CARD:
        run_withheld();
        break;
    default:
        run_sequence();
        break;
    }
    return check_done();
}

/* ---- the matrix ---- */

static void test_withheld(enum api which) {
    struct sandbox sandbox = sandbox_make();
    struct limits_folder folder = limits_folder_make(&sandbox);
    struct vg_limits_page page = limits_page_of(&sandbox, 0, 0);
    char row[64], output[SANDBOX_OUTPUT];
    page.card_count = 0;
    memset(page.cards, 0, sizeof page.cards);
    limits_page_write(&folder, &page, sizeof page);
    snprintf(row, sizeof row, "VGPU_TEST_ROW=%d,%d,%d", which, REACH_LINK, ON_A_WITHHELD_CARD);
    const char *environment[] = {row, folder.preload, NULL};
    if (!CHECK_EQUAL_THAT(sandbox_run(&sandbox, false, environment, (const char *[]){sandbox_self(), NULL}, output), 0,
                          api_names[which]))
        fputs(output, stderr);
    sandbox_remove(&sandbox);
}

int main(void) {
    if (child_status >= 0)
        return run_in_main();
    for (int a = 0; a < API_COUNT; a++)
        test_withheld((enum api)a);
    for (int a = 0; a < API_COUNT; a++)
        for (int r = 0; r < REACH_COUNT; r++)
            for (int s = 0; s < SITUATION_COUNT; s++) {
                struct sandbox sandbox = sandbox_make();
                char row[64], name[128], output[SANDBOX_OUTPUT];
                snprintf(row, sizeof row, "VGPU_TEST_ROW=%d,%d,%d", a, r, s);
                snprintf(name, sizeof name, "%s by %s in %s", api_names[a], reach_names[r], situation_names[s]);
                const char *environment[] = {row, "CUDA_DEVICE_MEMORY_LIMIT=10m",
                                             r == REACH_DLVSYM ? VERSIONED_DRIVER : NULL, NULL};
                const char *argv[] = {sandbox_self(), NULL};
                int status = sandbox_run(&sandbox, true, environment, argv, output);
                if (!CHECK_EQUAL_THAT(status, 0, name))
                    fputs(output, stderr);
                CHECK_EQUAL_THAT(sandbox_books_used(&sandbox, 0, 0), 0, name);
                sandbox_remove(&sandbox);
            }
    return check_done();
}
