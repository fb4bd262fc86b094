/* Random calls in several processes, some of them killed: the region's accounts equal the driver's own books, for every
 * process and every card, whenever nobody is in the middle of a call. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "reach.h"
#include "sandbox.h"
#include "vgpu/shm_layout.h"

#define PROCESSES 6
#define ROUNDS 25
#define CALLS_A_ROUND 800 /* in each process: 120,000 in all */
#define HOLDINGS 300
#define KIB 1024ull
#define LIMIT (260ull * 1024 * KIB)
#define UNIT (2048ull * KIB) /* granularity of virtual memory management */

/* ---- a process that allocates and frees at random, a round for every byte on its stdin ---- */

enum kind {
    NOTHING,
    LINEAR,
    MANAGED,
    PITCHED,
    LOW,
    ASYNC,
    OWN_POOL,
    GRAPH,
    ARRAY,
    MIPMAP,
    IMPORTED,
    CONTEXT,
    VMM_HANDLE,
    VMM_MAPPED
};

struct holding {
    enum kind kind;
    CUdeviceptr pointer;
    CUmemGenericAllocationHandle handle;
    uint64_t bytes;
};

static struct holding holdings[HOLDINGS];
static CUcontext contexts[2]; /* of the two cards */
static CUmemoryPool pools[2];
static uint64_t state;
static unsigned refusals;

static bool is_refusal(CUresult result) {
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
    refusals += result != CUDA_SUCCESS;
    return result != CUDA_SUCCESS;
}

static void make_mapped(struct holding *h, int card) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = card}};
    h->bytes = UNIT * (1 + check_random(&state) % 3);
    if (is_refusal(cuMemCreate(&h->handle, h->bytes, &prop, 0)))
        return;
    h->kind = VMM_HANDLE;
    if (check_random(&state) % 2 == 0)
        return;
    CHECK_EQUAL(cuMemAddressReserve(&h->pointer, h->bytes, 0, 0, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemMap(h->pointer, h->bytes, 0, h->handle, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemRelease(h->handle), CUDA_SUCCESS); /* the usual way: mapped memory stays counted */
    h->kind = VMM_MAPPED;
}

/* What the driver has handles for. */
static CUresult take_object(struct holding *h, enum kind kind, size_t bytes, int card) {
    CUDA_ARRAY3D_DESCRIPTOR image = {.Width = 1 + bytes % 3000,
                                     .Height = bytes % 100,
                                     .Format = CU_AD_FORMAT_HALF,
                                     .NumChannels = bytes % 2 == 0 ? 1 : 4};
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = bytes};
    CUarray inside = NULL;
    CUresult result = CUDA_SUCCESS;
    switch (kind) {
    case ARRAY:
        return cuArray3DCreate_v2((CUarray *)(void *)&h->handle, &image);
    case MIPMAP:
        return cuMipmappedArrayCreate((CUmipmappedArray *)(void *)&h->handle, &image, (unsigned)(1 + bytes % 12));
    case IMPORTED:
        from.handle.fd = open("/dev/null", O_RDWR);
        result = cuImportExternalMemory((CUexternalMemory *)(void *)&h->handle, &from);
        if (result != CUDA_SUCCESS)
            close(from.handle.fd);
        return result;
    default: /* a context, with something in it that goes with it */
        result = cuCtxCreate_v2((CUcontext *)(void *)&h->handle, 0, card);
        if (result == CUDA_SUCCESS) {
            (void)is_refusal(cuArray3DCreate_v2(&inside, &image));
            CHECK_EQUAL(cuCtxPopCurrent_v2(NULL), CUDA_SUCCESS);
        }
        return result;
    }
}

/* By a graph that is launched once, and needs no more than it allocates. */
static CUresult take_by_graph(CUdeviceptr *pointer, size_t bytes, int card) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                       .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = card}},
                                         .bytesize = bytes};
    CUgraph graph = NULL;
    CUgraphNode node = NULL;
    CUgraphExec exec = NULL;
    CHECK_EQUAL(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    CUresult result = cuGraphLaunch(exec, NULL);
    CHECK_EQUAL(cuGraphExecDestroy(exec), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
    *pointer = params.dptr;
    return result;
}

static void take(struct holding *h) {
    size_t bytes = 1 + check_random(&state) % (600 * KIB), pitch = 0;
    int card = (int)(check_random(&state) % 2);
    enum kind kind = (enum kind)(1 + check_random(&state) % VMM_HANDLE);
    CUdeviceptr_v1 low = 0;
    CUresult result = CUDA_SUCCESS;
    cuCtxSetCurrent(contexts[card]);
    switch (kind) {
    case LINEAR:
        result = cuMemAlloc_v2(&h->pointer, bytes);
        break;
    case MANAGED:
        result = cuMemAllocManaged(&h->pointer, bytes, 1);
        break;
    case PITCHED:
        result = cuMemAllocPitch_v2(&h->pointer, &pitch, 1 + bytes % 5000, 1 + bytes % 60, 4);
        break;
    case LOW:
        result = cuMemAlloc(&low, (unsigned)bytes);
        h->pointer = low;
        break;
    case ASYNC:
        result = cuMemAllocAsync(&h->pointer, bytes, NULL);
        break;
    case OWN_POOL:
        result = cuMemAllocFromPoolAsync_ptsz(&h->pointer, bytes, pools[check_random(&state) % 2], NULL);
        break;
    case GRAPH:
        result = take_by_graph(&h->pointer, bytes, card);
        break;
    case ARRAY:
    case MIPMAP:
    case IMPORTED:
    case CONTEXT:
        result = take_object(h, kind, bytes, card);
        break;
    default:
        make_mapped(h, card);
        return;
    }
    if (!is_refusal(result))
        h->kind = kind;
}

static void give(struct holding *h) {
    cuCtxSetCurrent(contexts[check_random(&state) % 2]); /* whichever is current, the right card is credited */
    switch (h->kind) {
    case NOTHING:
        break;
    case ARRAY:
        CHECK_EQUAL(cuArrayDestroy((CUarray)(uintptr_t)h->handle), CUDA_SUCCESS);
        break;
    case MIPMAP:
        CHECK_EQUAL(cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)h->handle), CUDA_SUCCESS);
        break;
    case IMPORTED:
        CHECK_EQUAL(cuDestroyExternalMemory((CUexternalMemory)(uintptr_t)h->handle), CUDA_SUCCESS);
        break;
    case CONTEXT:
        CHECK_EQUAL(cuCtxDestroy_v2((CUcontext)(uintptr_t)h->handle), CUDA_SUCCESS);
        break;
    case VMM_HANDLE:
        CHECK_EQUAL(cuMemRelease(h->handle), CUDA_SUCCESS);
        break;
    case VMM_MAPPED:
        CHECK_EQUAL(cuMemUnmap(h->pointer, h->bytes), CUDA_SUCCESS);
        CHECK_EQUAL(cuMemAddressFree(h->pointer, h->bytes), CUDA_SUCCESS);
        break;
    default: /* either call frees either kind */
        if (check_random(&state) % 2 == 0)
            CHECK_EQUAL(cuMemFree_v2(h->pointer), CUDA_SUCCESS);
        else
            CHECK_EQUAL(cuMemFreeAsync(h->pointer, NULL), CUDA_SUCCESS);
        break;
    }
    *h = (struct holding){.kind = NOTHING};
    /* Whatever makes pools and graphs give back: also nothing at all. */
    switch (check_random(&state) % 40) {
    case 0:
        CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
        break;
    case 1:
        CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
        break;
    case 2:
        CHECK_EQUAL(cuMemPoolTrimTo(pools[check_random(&state) % 2], 300 * KIB), CUDA_SUCCESS);
        break;
    case 3:
        CHECK_EQUAL(cuDeviceGraphMemTrim((int)(check_random(&state) % 2)), CUDA_SUCCESS);
        break;
    default:
        break;
    }
}

static void make_pools(void) {
    cuuint64_t threshold = 500 * KIB;
    for (int card = 0; card < 2; card++) {
        const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = card}};
        CHECK_EQUAL(cuMemPoolCreate(&pools[card], &props), CUDA_SUCCESS);
        CHECK_EQUAL(cuMemPoolSetAttribute(pools[card], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), CUDA_SUCCESS);
    }
}

static int run_child(uint64_t seed) {
    char command = 0;
    size_t free_bytes = 0, total = 0;
    state = seed * 7919 + 1;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    for (int card = 0; card < 2; card++)
        CHECK_EQUAL(cuDevicePrimaryCtxRetain(&contexts[card], card), CUDA_SUCCESS);
    cuCtxSetCurrent(contexts[0]);
    make_pools();
    CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS); /* whoever asks takes the dead out */
    printf("ready\n");
    fflush(stdout);
    while (read(STDIN_FILENO, &command, 1) == 1) {
        for (int i = 0; i < CALLS_A_ROUND; i++) {
            struct holding *h = &holdings[check_random(&state) % HOLDINGS];
            if (h->kind == NOTHING)
                take(h);
            else
                give(h);
        }
        printf("%s\n", check_failures == 0 ? "done" : "wrong");
        fflush(stdout);
    }
    for (int i = 0; i < HOLDINGS; i++)
        give(&holdings[i]);
    printf("refused %u\n", refusals);
    return check_done();
}

/* ---- the test ---- */

struct member {
    struct sandbox_process process;
    int input;
};

static struct member start_member(const struct sandbox *sandbox, unsigned seed) {
    int ends[2];
    char text[16];
    struct member member;
    if (pipe2(ends, O_CLOEXEC) != 0)
        exit(1);
    int saved = dup(STDIN_FILENO);
    dup2(ends[0], STDIN_FILENO);
    snprintf(text, sizeof text, "%u", seed);
    const char *environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=260m", NULL};
    const char *argv[] = {sandbox_self(), text, NULL};
    member.process = sandbox_start(sandbox, true, environment, argv);
    member.input = ends[1];
    dup2(saved, STDIN_FILENO);
    close(saved);
    close(ends[0]);
    CHECK(sandbox_await(&member.process, "ready\n"));
    return member;
}

static void compare(const struct sandbox *sandbox, struct vg_region *region, const struct member *members) {
    for (unsigned card = 0; card < 2; card++) {
        uint64_t sum = 0, data = 0;
        for (int i = 0; i < PROCESSES; i++) {
            uint64_t booked = sandbox_books_used(sandbox, card, members[i].process.pid), counted = 0;
            for (int s = 0; s < VG_MAX_SLOTS; s++)
                if (region->slots[s].pid == members[i].process.pid) {
                    counted += region->slots[s].used[card].total;
                    data += region->slots[s].used[card].data;
                }
            CHECK_EQUAL(counted, booked);
            sum += booked;
        }
        CHECK_EQUAL(vg_card_used(region, card), sum);
        CHECK(data <= LIMIT); /* contexts come along all the same */
    }
}

/* Cards whose contexts take a MiB each. */
static void describe(const struct sandbox *sandbox) {
    char path[128];
    snprintf(path, sizeof path, "%s/node.json", sandbox->directory);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    fputs("{\"cards\": [", file);
    for (int card = 0; card < 2; card++)
        fprintf(file,
                "%s{\"uuid\": \"GPU-11111111-2222-3333-4444-00000000000%d\", \"name\": \"A\", "
                "\"memory_mib\": 40960, \"context_mib\": 1}",
                card == 0 ? "" : ", ", card);
    fputs("]}", file);
    fclose(file);
}

static void run_test(void) {
    struct sandbox sandbox = sandbox_make();
    describe(&sandbox);
    struct member members[PROCESSES];
    unsigned seed = 1;
    uint64_t choice = 5;
    for (int i = 0; i < PROCESSES; i++)
        members[i] = start_member(&sandbox, seed++);
    struct vg_region *region = sandbox_region(&sandbox);
    for (int round = 0; round < ROUNDS && check_failures == 0; round++) {
        for (int i = 0; i < PROCESSES; i++)
            CHECK_EQUAL(write(members[i].input, "x", 1), 1);
        for (int i = 0; i < PROCESSES; i++)
            CHECK(sandbox_await(&members[i].process, "done\n"));
        compare(&sandbox, region, members);
        if (round % 3 != 2)
            continue;
        /* One dies holding much, perhaps within a call; who comes next finds its memory free. */
        struct member *victim = &members[check_random(&choice) % PROCESSES];
        CHECK_EQUAL(write(victim->input, "x", 1), 1);
        usleep((useconds_t)(check_random(&choice) % 2000));
        kill(victim->process.pid, SIGKILL);
        sandbox_finish(&victim->process, NULL);
        close(victim->input);
        *victim = start_member(&sandbox, seed++);
        compare(&sandbox, region, members);
    }
    for (int i = 0; i < PROCESSES; i++) {
        char output[SANDBOX_OUTPUT];
        close(members[i].input);
        if (!CHECK_EQUAL(sandbox_finish(&members[i].process, output), 0))
            fputs(output, stderr);
        const char *refused = strstr(output, "refused ");
        if (CHECK_THAT(refused != NULL, output))
            refusals += (unsigned)atoi(refused + 8);
    }
    CHECK_THAT(refusals > 0, "a limit that was never met proves little");
    for (unsigned card = 0; card < 2; card++) {
        CHECK_EQUAL(vg_card_used(region, card), 0);
        CHECK_EQUAL(sandbox_books_used(&sandbox, card, 0), 0);
    }
    for (int s = 0; s < VG_MAX_SLOTS; s++)
        CHECK(region->slots[s].pid == 0 && region->slots[s].status == VG_SLOT_FREE);
    sandbox_remove(&sandbox);
}

int main(int argc, char **argv) {
    if (argc == 2)
        return run_child((uint64_t)atoi(argv[1]));
    run_test();
    return check_done();
}
