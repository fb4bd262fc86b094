#include "share.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "reach.h"
#include "sim_clock.h"
#include "timeline.h"
#include "vgpu/shm_layout.h"

#define THREADS_PER_BLOCK 1024
#define GRAPH_KERNELS 5

const char *const share_kind_names[SHARE_KINDS] = {"kernel", "per-thread", "ex",           "cooperative",   "graph",
                                                   "grid",   "grid-async", "multi-device", "beside-capture"};

/* ---- in the program ---- */

static struct share_program program;
static CUcontext context;
static CUfunction functions[2];
static unsigned blocks;
static _Atomic uint64_t launches;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static void need(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS)
        return;
    printf("%s: %d\n", what, (int)result);
    fflush(stdout);
    _exit(1);
}

static CUgraphExec make_graph(CUfunction function) {
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    need(cuGraphCreate(&graph, 0), "cuGraphCreate");
    for (int i = 0; i < GRAPH_KERNELS; i++) {
        CUgraphNode node = NULL;
        CUDA_KERNEL_NODE_PARAMS_v2 p = {.func = function,
                                        .gridDimX = blocks,
                                        .gridDimY = 1,
                                        .gridDimZ = 1,
                                        .blockDimX = THREADS_PER_BLOCK,
                                        .blockDimY = 1,
                                        .blockDimZ = 1};
        need(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &p), "cuGraphAddKernelNode");
    }
    need(cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiateWithFlags");
    return exec;
}

static CUresult launch(CUfunction function, CUgraphExec exec, CUstream stream) {
    CUlaunchConfig config = {.gridDimX = blocks,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = THREADS_PER_BLOCK,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = stream};
    switch (program.kind) {
    case SHARE_PER_THREAD:
        return cuLaunchKernel_ptsz(function, blocks, 1, 1, THREADS_PER_BLOCK, 1, 1, 0, stream, NULL, NULL);
    case SHARE_EX:
        return cuLaunchKernelEx(&config, function, NULL, NULL);
    case SHARE_COOPERATIVE:
        return cuLaunchCooperativeKernel(function, blocks, 1, 1, THREADS_PER_BLOCK, 1, 1, 0, stream, NULL);
    case SHARE_GRAPH:
        return cuGraphLaunch(exec, stream);
    case SHARE_GRID:
        return cuLaunchGrid(function, (int)blocks, 1);
    case SHARE_GRID_ASYNC:
        return cuLaunchGridAsync(function, (int)blocks, 1, stream);
    case SHARE_MULTI_DEVICE:
        return cuLaunchCooperativeKernelMultiDevice(&(CUDA_LAUNCH_PARAMS){.function = function,
                                                                          .gridDimX = blocks,
                                                                          .gridDimY = 1,
                                                                          .gridDimZ = 1,
                                                                          .blockDimX = THREADS_PER_BLOCK,
                                                                          .blockDimY = 1,
                                                                          .blockDimZ = 1,
                                                                          .hStream = stream},
                                                    1, 0);
    default:
        return cuLaunchKernel(function, blocks, 1, 1, THREADS_PER_BLOCK, 1, 1, 0, stream, NULL, NULL);
    }
}

static void *work(void *number) {
    CUstream streams[16] = {NULL};
    CUgraphExec exec = NULL;
    need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    for (unsigned i = 0; i < program.streams; i++)
        need(cuStreamCreate(&streams[i], 0), "cuStreamCreate");
    if (program.kind == SHARE_GRAPH)
        exec = make_graph(functions[0]);
    sim_clock_enter((unsigned)(uintptr_t)number);
    for (unsigned i = 0;; i++) {
        CUstream stream = streams[program.streams == 0 ? 0 : i % program.streams];
        need(launch(functions[program.other_us == 0 ? 0 : i % 2], exec, stream), "launch");
        launches++;
        if (program.pause_us != 0)
            usleep(program.pause_us);
    }
    return NULL;
}

static uint64_t own_namespace(void) {
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? (uint64_t)status.st_ino : 0;
}

static uint64_t served_so_far(void) {
    char path[256], reason[256];
    uint64_t served = 0;
    const char *state = getenv("HAMI_SIM_STATE");
    snprintf(path, sizeof path, "%s%s", state != NULL ? state : getenv("HAMI_SIM_DRIVER"),
             state != NULL ? "" : ".state");
    struct sim_books *books = sim_books_open(path, reason, sizeof reason);
    if (books == NULL)
        return 0;
    sim_books_lock(books);
    sim_timeline_advance(books, 0, now_ns());
    for (int i = 0; i < SIM_MAX_PROCESSES; i++)
        if (books->processes[i].in_use && books->processes[i].pid == getpid() &&
            books->processes[i].pid_namespace == own_namespace())
            served = books->processes[i].cards[0].served_ns;
    sim_books_unlock(books);
    return served;
}

static struct vg_region *region;

/* False: a test with a limits page keeps it elsewhere. */
static bool map_region(void) {
    int file = open(getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"), O_RDWR | O_CLOEXEC);
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, VG_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    region = mapped == MAP_FAILED ? NULL : mapped;
    return region != NULL;
}

static uint64_t block_until(uint64_t end_ns) {
    while (now_ns() < end_ns) {
        if (atomic_load(&region->recent_kernel) >= 0)
            atomic_store(&region->recent_kernel, -1);
        usleep(5000000);
    }
    return end_ns;
}

static void act(const struct share_action *action, uint64_t end_ns) {
    struct vg_card_compute *compute = &vg_extension_of(region)->compute[0];
    switch (action->deed) {
    case SHARE_SET_LIMIT:
        atomic_store(&region->sm_limit[0], (uint64_t)action->value);
        break;
    case SHARE_SET_SWITCH:
        atomic_store(&region->utilisation_switch, action->value);
        break;
    case SHARE_BLOCK:
        atomic_store(&region->recent_kernel, action->value);
        break;
    case SHARE_KEEP_BLOCKED:
        (void)block_until(end_ns);
        break;
    case SHARE_NONSENSE:
        memset(compute, action->value, sizeof *compute);
        break;
    case SHARE_KILL_MEASURING:
        if (atomic_load(&compute->measuring_until_ns) <= now_ns() || served_so_far() == 0 || launches != 0)
            need(CUDA_ERROR_UNKNOWN, "this process measures nothing now");
        kill(getpid(), SIGKILL);
        break;
    case SHARE_KILL:
        kill(getpid(), SIGKILL);
        break;
    case SHARE_NOTHING:
        break;
    }
}

static void sleep_until(uint64_t ns) {
    struct timespec until = {.tv_sec = (time_t)(ns / 1000000000ull), .tv_nsec = (long)(ns % 1000000000ull)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

/* As the node's agent or monitor would: here the process's pid is the host's too. 0: as where nobody knows it. */
static void tell_host_pid(int32_t host_pid) {
    for (unsigned i = 0; i < vg_slot_count(region); i++)
        if (atomic_load(&region->slots[i].pid) == getpid())
            atomic_store(&region->slots[i].host_pid, host_pid);
}

/* Until a monitor has told this process's slot its pid on the host. The clock of those that take part stands still. */
static void await_host_pid(void) {
    for (;;) {
        for (unsigned i = 0; i < vg_slot_count(region); i++)
            if (atomic_load(&region->slots[i].pid) == getpid() && atomic_load(&region->slots[i].host_pid) > 0)
                return;
        usleep(10000);
    }
}

static CUfunction find_kernel(CUmodule module, unsigned microseconds) {
    char name[64];
    CUfunction function = NULL;
    snprintf(name, sizeof name, "busy_%uus", microseconds);
    need(cuModuleGetFunction(&function, module, name), "cuModuleGetFunction");
    need(cuFuncSetBlockShape(function, THREADS_PER_BLOCK, 1, 1), "cuFuncSetBlockShape");
    return function;
}

/* In the mode that lets any thread's unsafe call spoil it. */
static CUstream begin_capture(void) {
    CUstream stream = NULL;
    need(cuStreamCreate(&stream, 1), "cuStreamCreate");
    need(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
    return stream;
}

static void end_capture(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    need(cuStreamIsCapturing(stream, &status), "cuStreamIsCapturing");
    if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        need(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture was spoilt");
}

static void run_program(unsigned first_number, bool known_to_nvml, const struct share_action actions[SHARE_ACTIONS]) {
    CUmodule module = NULL;
    CUstream captured = NULL;
    int processors = 0;
    need(cuInit(0), "cuInit");
    need(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    need(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0), "cuDeviceGetAttribute");
    need(cuModuleLoadData(&module, "image"), "cuModuleLoadData");
    blocks = 2 * (unsigned)processors; /* of 1024 threads: one wave */
    functions[0] = find_kernel(module, program.kernel_us);
    functions[1] = find_kernel(module, program.other_us == 0 ? program.kernel_us : program.other_us);
    if (getenv("VGPU_TEST_AWAITS_HOST_PID") != NULL && map_region())
        await_host_pid();
    else if (map_region())
        tell_host_pid(known_to_nvml ? getpid() : 0);
    else if (known_to_nvml || actions[0].deed != SHARE_NOTHING)
        need(CUDA_ERROR_UNKNOWN, "the region cannot be mapped");
    if (program.kind == SHARE_BESIDE_CAPTURE)
        captured = begin_capture();
    for (unsigned i = 0; i < program.threads; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, work, (void *)(uintptr_t)(first_number + i));
    }
    sim_clock_enter(first_number + program.threads);
    uint64_t begun = now_ns(), end = begun + program.seconds * 1000000000ull;
    for (unsigned i = 0; i < SHARE_ACTIONS && actions[i].deed != SHARE_NOTHING; i++) {
        sleep_until(begun + actions[i].at_ms * 1000000ull);
        act(&actions[i], end);
    }
    sleep_until(end);
    if (captured != NULL)
        end_capture(captured);
    printf("served %llu launches %llu\n", (unsigned long long)served_so_far(), (unsigned long long)launches);
    fflush(stdout);
    _exit(0); /* its threads are in the middle of launches */
}

bool share_is_program(int argc, char **argv) {
    unsigned number = 0, known = 0, kind = 0;
    struct share_program *p = &program;
    struct share_action actions[SHARE_ACTIONS] = {{0}};
    if (argc < 3 || strcmp(argv[1], "share") != 0)
        return false;
    if (sscanf(argv[2], "%u %u %u %u %u %u %u %u %u", &number, &known, &kind, &p->kernel_us, &p->other_us, &p->threads,
               &p->streams, &p->pause_us, &p->seconds) != 9)
        _exit(2); /* never the test itself: it would start programs, and they others */
    for (unsigned i = 0; i < SHARE_ACTIONS && 3 + (int)i < argc; i++) {
        unsigned deed = 0;
        (void)sscanf(argv[3 + i], "%u %u %d", &actions[i].at_ms, &deed, &actions[i].value);
        actions[i].deed = (enum share_deed)deed;
    }
    p->kind = (enum share_kind)kind;
    run_program(number, known != 0, actions);
    return true;
}

/* ---- in the test ---- */

static void describe(const struct sandbox *sandbox, unsigned sm_count) {
    char path[128];
    snprintf(path, sizeof path, "%s/node.json", sandbox->directory);
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return;
    fprintf(file,
            "{\"cards\": [{\"uuid\": \"GPU-11111111-2222-3333-4444-000000000000\", \"name\": \"Simulated\", "
            "\"memory_mib\": 40960, \"sm_count\": %u}]}\n",
            sm_count);
    fclose(file);
}

static struct sandbox_process start(const struct sandbox *sandbox, const struct share_container *c, bool first,
                                    unsigned number, unsigned parties) {
    char limit[64], policy[64], together[64], argument[128], actions[SHARE_ACTIONS][64];
    const struct share_program *p = &c->program;
    snprintf(limit, sizeof limit, "CUDA_DEVICE_SM_LIMIT=%u", c->percent);
    snprintf(policy, sizeof policy, "GPU_CORE_UTILIZATION_POLICY=%s", c->policy == NULL ? "default" : c->policy);
    snprintf(together, sizeof together, SIM_CLOCK_PARTIES "=%u", parties);
    snprintf(argument, sizeof argument, "%u %u %u %u %u %u %u %u %u", number, c->known_to_nvml, p->kind, p->kernel_us,
             p->other_us, p->threads, p->streams, p->pause_us, p->seconds);
    const char *environment[] = {"LD_PRELOAD=" VGPU_BINARY_DIR "/lib/libvgpu.so " VGPU_BINARY_DIR "/sim/libsimclock.so",
                                 "HAMI_SIM_CLOCK=virtual",
                                 limit,
                                 policy,
                                 together,
                                 NULL};
    for (unsigned i = 0; i < SHARE_ACTIONS; i++)
        snprintf(actions[i], sizeof actions[i], "%u %u %d", c->actions[i].at_ms,
                 first ? c->actions[i].deed : SHARE_NOTHING, c->actions[i].value);
    const char *argv[] = {sandbox_self(), "share", argument, actions[0], actions[1], actions[2], NULL};
    return sandbox_start(sandbox, true, environment, argv);
}

#define MOST_PROCESSES 16

bool share_run(unsigned sm_count, struct share_container *containers, unsigned count) {
    struct sandbox machine = sandbox_make();
    struct sandbox_process processes[MOST_PROCESSES];
    unsigned parties = 0, started = 0, number = 0;
    bool good = true;
    describe(&machine, sm_count);
    for (unsigned c = 0; c < count; c++)
        parties += containers[c].processes * (containers[c].program.threads + 1);
    for (unsigned c = 0; c < count; c++) {
        struct sandbox container = machine;
        snprintf(container.region, sizeof container.region, "%.60s/slice/%u.cache", machine.directory, c);
        for (unsigned i = 0; i < containers[c].processes; i++) {
            processes[started++] = start(&container, &containers[c], i == 0, number, parties);
            number += containers[c].program.threads + 1;
        }
    }
    started = 0;
    for (unsigned c = 0; c < count; c++) {
        containers[c].served_ns = containers[c].launches = 0;
        for (unsigned i = 0; i < containers[c].processes; i++) {
            char output[SANDBOX_OUTPUT];
            unsigned long long served = 0, launched = 0;
            int status = sandbox_finish(&processes[started++], output);
            if (status == -SIGKILL && i == 0 && containers[c].actions[0].deed >= SHARE_KILL)
                continue;
            if (status != 0 || sscanf(output, "served %llu launches %llu", &served, &launched) != 2) {
                fprintf(stderr, "a program ended with %d and said: %s\n", status, output);
                good = false;
            }
            containers[c].served_ns += served;
            containers[c].launches += launched;
        }
    }
    sandbox_remove(&machine);
    return good;
}
