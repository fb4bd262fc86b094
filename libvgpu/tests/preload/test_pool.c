/* Pools are charged with what the driver has reserved for them: in a driver that reserves whole chunks and gives back
 * at synchronisations, the slice's use is the driver's own figure whenever no call is under way. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "reach.h"
#include "sandbox.h"
#include "vgpu/shm_layout.h"

#define MIB (1024ull * 1024ull)
#define LIMIT_MIB 1024

static const char machine[] = "{\"driver_version\": \"580.65.06\", \"cuda_version\": \"13.0\", \"cards\": [\n"
                              " {\"uuid\": \"GPU-11111111-2222-3333-4444-000000000000\", \"name\": \"A\", "
                              "\"memory_mib\": 40960, \"pool_chunk_mib\": 32},\n"
                              " {\"uuid\": \"GPU-11111111-2222-3333-4444-000000000001\", \"name\": \"B\", "
                              "\"memory_mib\": 40960, \"pool_chunk_mib\": 2}]}\n";

/* ---- in the process under test ---- */

static struct sandbox here; /* the machine that this process is in */
static CUcontext contexts[2];

static void start(void) {
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    for (int device = 0; device < 2; device++)
        CHECK_EQUAL(cuDevicePrimaryCtxRetain(&contexts[device], device), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(contexts[0]), CUDA_SUCCESS);
    snprintf(here.directory, sizeof here.directory, "%s", getenv("VGPU_TEST_DIRECTORY"));
}

static uint64_t in_books(unsigned card) {
    return sandbox_books_used(&here, card, getpid());
}

/* By the region, which shows what the account is without settling anything. */
static uint64_t in_slot(unsigned card) {
    static struct vg_region *region;
    uint64_t used = 0;
    if (region == NULL) {
        snprintf(here.region, sizeof here.region, "%s", getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"));
        region = sandbox_region(&here);
    }
    for (int s = 0; region != NULL && s < VG_MAX_SLOTS; s++)
        if (region->slots[s].pid == getpid())
            used += region->slots[s].used[card].total;
    return used;
}

static uint64_t seen_used(int device) {
    size_t free_bytes = 0, total = 0;
    cuCtxSetCurrent(contexts[device]);
    CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    cuCtxSetCurrent(contexts[0]);
    CHECK_EQUAL(total, LIMIT_MIB * MIB);
    return total - free_bytes;
}

static uint64_t reserved(CUmemoryPool pool) {
    cuuint64_t value = 0;
    CHECK_EQUAL(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value), CUDA_SUCCESS);
    return value;
}

static CUmemoryPool default_pool(int device) {
    CUmemoryPool pool = NULL;
    CHECK_EQUAL(cuDeviceGetDefaultMemPool(&pool, device), CUDA_SUCCESS);
    return pool;
}

static CUmemoryPool make_pool(CUmemLocationType location, int device, CUmemAllocationType type) {
    const CUmemPoolProps props = {.allocType = type, .location = {.type = location, .id = device}};
    CUmemoryPool pool = NULL;
    CHECK_EQUAL(cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
    return pool;
}

static CUmemoryPool device_pool(int device) {
    return make_pool(CU_MEM_LOCATION_TYPE_DEVICE, device, CU_MEM_ALLOCATION_TYPE_PINNED);
}

static void set_threshold(CUmemoryPool pool, cuuint64_t bytes) {
    CHECK_EQUAL(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes), CUDA_SUCCESS);
}

/* The account, the driver's books, and what the program sees. */
static void check_used(int device, uint64_t mib, const char *what) {
    CHECK_EQUAL_THAT(in_slot((unsigned)device), mib * MIB, what);
    CHECK_EQUAL_THAT(in_books((unsigned)device), mib * MIB, what);
    CHECK_EQUAL_THAT(seen_used(device), mib * MIB, what);
}

static CUresult synchronise(void) {
    return cuStreamSynchronize(NULL);
}

/* case CMM-05: growth is counted once, and what the pool keeps is what is counted. */
static void body_loop(void) {
    CUdeviceptr first = 0, second = 0;
    CUmemoryPool pool = default_pool(0);
    for (int keeps = 0; keeps < 2; keeps++) {
        set_threshold(pool, keeps ? UINT64_MAX : 0);
        for (int i = 0; i < 1000; i++) {
            CHECK_EQUAL(cuMemAllocAsync(&first, 64 * MIB, NULL), CUDA_SUCCESS);
            CHECK_EQUAL(cuMemFreeAsync(first, NULL), CUDA_SUCCESS);
            CHECK_EQUAL(synchronise(), CUDA_SUCCESS);
        }
        CHECK_EQUAL(reserved(pool), keeps ? 64 * MIB : 0);
        check_used(0, keeps ? 64 : 0, keeps ? "a pool that keeps" : "a pool that gives back");
    }
    CHECK_EQUAL(cuMemAllocAsync(&first, 600 * MIB, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAllocAsync(&second, 600 * MIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(in_slot(0), reserved(pool));
}

static void body_chunks(void) {
    CUdeviceptr a = 0, b = 0;
    CUmemoryPool pool = default_pool(0);
    CHECK_EQUAL(cuMemAllocAsync(&a, 1, NULL), CUDA_SUCCESS);
    check_used(0, 32, "one byte");
    CHECK_EQUAL(cuMemAllocAsync(&b, 31 * MIB, NULL), CUDA_SUCCESS);
    check_used(0, 32, "in the same chunk");
    CHECK_EQUAL(cuMemFreeAsync(b, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAllocAsync(&b, 100 * MIB, NULL), CUDA_SUCCESS);
    check_used(0, 128, "four chunks");
    set_threshold(pool, 64 * MIB);
    CHECK_EQUAL(cuMemFreeAsync(b, NULL), CUDA_SUCCESS);
    check_used(0, 128, "freed, and nothing waited");
    CHECK_EQUAL(synchronise(), CUDA_SUCCESS);
    check_used(0, 64, "down to the threshold");
    CHECK_EQUAL(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
    check_used(0, 32, "trimmed");
    CHECK_EQUAL(cuMemFree_v2(a), CUDA_SUCCESS); /* a free that waits */
    check_used(0, 32, "kept by the threshold");
    set_threshold(pool, 0);
    CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
    check_used(0, 0, "threshold lowered, then waited");
}

/* At the limit: unused memory of pools counts, can be used again, and makes room for other memory. */
static void body_limit(void) {
    CUdeviceptr a = 0, b = 0, c = 0;
    CUmemoryPool pool = default_pool(0);
    set_threshold(pool, UINT64_MAX);
    CHECK_EQUAL(cuMemAllocAsync(&a, 800 * MIB, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemFreeAsync(a, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(synchronise(), CUDA_SUCCESS);
    check_used(0, 800, "kept");
    CHECK_EQUAL(cuMemAllocAsync(&a, 600 * MIB, NULL), CUDA_SUCCESS); /* out of what it kept */
    check_used(0, 800, "used again");
    CHECK_EQUAL(cuMemAllocAsync(&b, 400 * MIB, NULL), CUDA_SUCCESS); /* out of what it kept, and 200 more */
    check_used(0, 1024 - 1024 % 32, "grown to the limit");
    CHECK_EQUAL(cuMemFreeAsync(b, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAlloc_v2(&c, 384 * MIB), CUDA_SUCCESS); /* the pool gives back what it does not use */
    check_used(0, 608 + 384, "linear memory in the pool's stead");
    CHECK_EQUAL(cuMemAllocAsync(&b, 41 * MIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(in_slot(0), in_books(0));
    CHECK_EQUAL(cuMemAllocAsync(&b, 40 * MIB, NULL), CUDA_SUCCESS); /* 8 of them it had */
    CHECK_EQUAL(cuMemFreeAsync(a, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemFreeAsync(b, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemFree_v2(c), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
    check_used(0, 0, "all gone");
}

/* A stream's device says whose pool it is, and a pool's location whose card; the current context neither. */
static void body_devices(void) {
    CUstream streams[2];
    CUdeviceptr pointer = 0;
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
    CUmemoryPool own = device_pool(1), told = NULL;
    cuCtxSetCurrent(contexts[1]);
    CHECK_EQUAL(cuStreamCreate(&streams[0], 1), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamCreateWithPriority(&streams[1], 1, 0), CUDA_SUCCESS);
    cuCtxSetCurrent(contexts[0]);
    for (int i = 0; i < 2; i++) {
        CHECK_EQUAL(cuMemAllocAsync_ptsz(&pointer, 3 * MIB, streams[i]), CUDA_SUCCESS);
        check_used(1, 4, "another device's stream");
        check_used(0, 0, "another device's stream");
        CHECK_EQUAL(cuMemFreeAsync_ptsz(pointer, streams[i]), CUDA_SUCCESS);
        CHECK_EQUAL(cuStreamSynchronize_ptsz(streams[i]), CUDA_SUCCESS);
        check_used(1, 0, "freed");
    }
    CHECK_EQUAL(cuMemAllocFromPoolAsync(&pointer, 3 * MIB, own, NULL), CUDA_SUCCESS);
    check_used(1, 4, "another device's pool");
    CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
    check_used(1, 0, "freed at once");
    for (int i = 0; i < 2; i++) { /* chosen by either call */
        CHECK_EQUAL(i == 0 ? cuDeviceSetMemPool(1, own)
                           : cuMemSetMemPool(&location, CU_MEM_ALLOCATION_TYPE_PINNED, own),
                    CUDA_SUCCESS);
        CHECK_EQUAL(cuMemGetMemPool(&told, &location, CU_MEM_ALLOCATION_TYPE_PINNED), CUDA_SUCCESS);
        CHECK(told == own);
        CHECK_EQUAL(cuMemAllocAsync(&pointer, MIB, streams[0]), CUDA_SUCCESS);
        CHECK_EQUAL(reserved(own), 2 * MIB);
        check_used(1, 2, "a chosen pool");
        CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
        CHECK_EQUAL(cuMemGetDefaultMemPool(&told, &location, CU_MEM_ALLOCATION_TYPE_PINNED), CUDA_SUCCESS);
        CHECK_EQUAL(cuDeviceSetMemPool(1, told), CUDA_SUCCESS);
    }
    CHECK_EQUAL(cuMemAllocAsync(&pointer, MIB, streams[0]), CUDA_SUCCESS);
    CHECK_EQUAL(reserved(own), 0);
    check_used(1, 2, "the default pool again");
    CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamDestroy_v2(streams[0]), CUDA_SUCCESS);
}

/* Host memory costs no card anything; managed memory may move to one, and counts. */
static void body_places(void) {
    CUdeviceptr pointer = 0;
    CUmemoryPool host = make_pool(CU_MEM_LOCATION_TYPE_HOST, 0, CU_MEM_ALLOCATION_TYPE_PINNED);
    CUmemoryPool managed = make_pool(CU_MEM_LOCATION_TYPE_INVALID, 0, CU_MEM_ALLOCATION_TYPE_MANAGED);
    CHECK_EQUAL(cuMemAllocFromPoolAsync(&pointer, 2048 * MIB, host, NULL), CUDA_SUCCESS); /* more than the limit */
    check_used(0, 0, "on the host");
    CHECK_EQUAL(cuMemFreeAsync(pointer, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAllocFromPoolAsync(&pointer, MIB, managed, NULL), CUDA_SUCCESS);
    check_used(0, 32, "managed, without a place");
    CHECK_EQUAL(cuMemFreeAsync(pointer, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(synchronise(), CUDA_SUCCESS);
    check_used(0, 0, "freed");
}

/* A pool that is destroyed lives until the last of its memory is freed. */
static void body_destroyed(void) {
    CUdeviceptr a = 0, b = 0;
    for (int at_once = 0; at_once < 2; at_once++) {
        CUmemoryPool pool = device_pool(0);
        CHECK_EQUAL(cuMemAllocFromPoolAsync(&a, 40 * MIB, pool, NULL), CUDA_SUCCESS);
        CHECK_EQUAL(cuMemAllocFromPoolAsync(&b, 24 * MIB, pool, NULL), CUDA_SUCCESS);
        check_used(0, 64, "before");
        CHECK_EQUAL(cuMemPoolDestroy(pool), CUDA_SUCCESS);
        check_used(0, 64, "destroyed, and nothing freed");
        CHECK_EQUAL(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
        CHECK_EQUAL(cuMemFreeAsync(a, NULL), CUDA_SUCCESS);
        CHECK(in_slot(0) >= in_books(0));
        CHECK_EQUAL(at_once ? cuMemFree_v2(b) : cuMemFreeAsync(b, NULL), CUDA_SUCCESS);
        CHECK_EQUAL(synchronise(), CUDA_SUCCESS);
        check_used(0, 0, "all freed");
    }
    CUmemoryPool unused = device_pool(0);
    set_threshold(unused, UINT64_MAX);
    CHECK_EQUAL(cuMemAllocFromPoolAsync(&a, MIB, unused, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemFreeAsync(a, NULL), CUDA_SUCCESS);
    check_used(0, 32, "kept");
    CHECK_EQUAL(cuMemPoolDestroy(unused), CUDA_SUCCESS);
    check_used(0, 0, "destroyed with nothing handed out");
}

/* The exporter is charged; the pointers that come of it elsewhere cost nothing, and are freed like others. */
static void body_shared(void) {
    CUmemoryPool pool = device_pool(0), imported = NULL;
    CUmemPoolPtrExportData data;
    CUdeviceptr pointer = 0, copy = 0, none = 0;
    int file = -1;
    CHECK_EQUAL(cuMemAllocFromPoolAsync(&pointer, MIB, pool, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemPoolExportToShareableHandle(&file, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                CUDA_SUCCESS);
    CHECK_EQUAL(cuMemPoolExportPointer(&data, pointer), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemPoolImportFromShareableHandle(&imported, (void *)(intptr_t)file,
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                CUDA_SUCCESS);
    CHECK_EQUAL(cuMemPoolImportPointer(&copy, imported, &data), CUDA_SUCCESS);
    check_used(0, 32, "the exporter's");
    CHECK_EQUAL(cuMemAllocFromPoolAsync(&none, MIB, imported, NULL),
                CUDA_ERROR_INVALID_VALUE); /* the driver's answer */
    CHECK_EQUAL(cuMemFreeAsync(copy, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemPoolDestroy(imported), CUDA_SUCCESS);
    check_used(0, 32, "still the exporter's");
    CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
    check_used(0, 0, "freed");
}

/* case CMM-06: a pool that cannot be looked at keeps what was claimed for it, until it can. */
static void body_unseen(void) {
    CUdeviceptr a = 0, b = 0;
    CHECK_EQUAL(cuMemAllocAsync(&a, MIB, NULL), CUDA_SUCCESS);
    sandbox_fail(NULL, "cuMemPoolGetAttribute", CUDA_ERROR_UNKNOWN, 0, 0);
    CHECK_EQUAL(cuMemAllocAsync(&b, 31 * MIB, NULL), CUDA_SUCCESS);
    CHECK(in_slot(0) >= in_books(0) && in_slot(0) <= 64 * MIB);
    sandbox_heal(NULL);
    CHECK_EQUAL(seen_used(0), 32 * MIB); /* which looks again */
    check_used(0, 32, "looked at again");
    CHECK_EQUAL(cuMemFreeAsync(a, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemFreeAsync(b, NULL), CUDA_SUCCESS);
    CHECK_EQUAL(synchronise(), CUDA_SUCCESS);
    check_used(0, 0, "freed");
}

/* ---- threads: looks overtake each other ---- */

#define THREADS 6
#define ROUNDS 12
#define CALLS 150

static pthread_barrier_t barrier;
static CUmemoryPool shared_pool;

static void *run_thread(void *number) {
    uint64_t state = (uint64_t)(uintptr_t)number * 131 + 7;
    CUdeviceptr held[8] = {0};
    CUmemoryPool own = device_pool(1);
    CHECK_EQUAL(cuCtxSetCurrent(contexts[1]), CUDA_SUCCESS);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < CALLS; i++) {
            CUdeviceptr *pointer = &held[check_random(&state) % 8];
            uint64_t choice = check_random(&state) % 8, bytes = 1 + check_random(&state) % (5 * MIB);
            if (*pointer == 0) {
                CUresult result = choice < 3   ? cuMemAllocAsync(pointer, bytes, NULL)
                                  : choice < 6 ? cuMemAllocFromPoolAsync(pointer, bytes, shared_pool, NULL)
                                               : cuMemAllocFromPoolAsync_ptsz(pointer, bytes, own, NULL);
                CHECK_EQUAL(result, CUDA_SUCCESS);
            } else {
                CHECK_EQUAL(choice < 6 ? cuMemFreeAsync(*pointer, NULL) : cuMemFree_v2(*pointer), CUDA_SUCCESS);
                *pointer = 0;
            }
            if (choice == 0)
                CHECK_EQUAL(synchronise(), CUDA_SUCCESS);
            if (choice == 1)
                CHECK_EQUAL(cuMemPoolTrimTo(shared_pool, 8 * MIB), CUDA_SUCCESS);
        }
        pthread_barrier_wait(&barrier);
        if ((uintptr_t)number == 0) {
            CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
            CHECK_EQUAL(in_slot(1), in_books(1));
        }
        pthread_barrier_wait(&barrier);
    }
    for (int i = 0; i < 8; i++)
        if (held[i] != 0)
            CHECK_EQUAL(cuMemFree_v2(held[i]), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemPoolDestroy(own), CUDA_SUCCESS);
    return NULL;
}

static void body_threads(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS);
    shared_pool = device_pool(1);
    set_threshold(shared_pool, 16 * MIB);
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, run_thread, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQUAL(cuMemPoolDestroy(shared_pool), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
    check_used(1, 0, "all freed");
}

static const struct {
    const char *name;
    void (*run)(void);
} bodies[] = {{"loop", body_loop},       {"chunks", body_chunks}, {"limit", body_limit},
              {"devices", body_devices}, {"places", body_places}, {"destroyed", body_destroyed},
              {"shared", body_shared},   {"unseen", body_unseen}, {"threads", body_threads}};

/* ---- the test ---- */

static void run_body(const char *name) {
    struct sandbox sandbox = sandbox_make();
    char path[128], directory[128], output[SANDBOX_OUTPUT];
    snprintf(path, sizeof path, "%s/node.json", sandbox.directory);
    snprintf(directory, sizeof directory, "VGPU_TEST_DIRECTORY=%s", sandbox.directory);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(machine, file) >= 0 && fclose(file) == 0);
    const char *environment[] = {directory, "CUDA_DEVICE_MEMORY_LIMIT=1g", NULL};
    const char *argv[] = {sandbox_self(), name, NULL};
    if (!CHECK_EQUAL_THAT(sandbox_run(&sandbox, true, environment, argv, output), 0, name))
        fputs(output, stderr);
    for (unsigned card = 0; card < 2; card++)
        CHECK_EQUAL_THAT(sandbox_books_used(&sandbox, card, 0), 0, name);
    sandbox_remove(&sandbox);
}

int main(int argc, char **argv) {
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++)
        if (argc == 1) {
            run_body(bodies[i].name);
        } else if (strcmp(bodies[i].name, argv[1]) == 0) {
            start();
            bodies[i].run();
        }
    return check_done();
}
