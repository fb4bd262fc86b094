/* vgpu-workload: small CUDA programs over the driver ABI, for simulated and real cards. */
#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "driver_calls.h"

#define MIB (1024ull * 1024ull)

enum exit_status { DONE = 0, WRONG_USE = 2, NO_CUDA = 3, REFUSED = 4, DRIVER_ERROR = 5 };

static const char usage_text[] =
    "usage: vgpu-workload COMMAND [options]\n"
    "\n"
    "  info         print what the process sees: one line for the process, one per device\n"
    "  alloc        allocate --mib N MiB in one piece and hold it\n"
    "  over-alloc   grow in steps until refused; prints how much was granted and the error\n"
    "  launch       launch kernels for a time or a number of times\n"
    "\n"
    "  --reach link|dlsym|getproc   how the driver's calls are found (default link)\n"
    "  --device N                   CUDA ordinal (default 0)\n"
    "  --mib N                      alloc: how much\n"
    "  --hold-seconds S             alloc, over-alloc: how long to hold (default 0)\n"
    "  --hold-until-signal          alloc, over-alloc: hold until SIGTERM or SIGINT\n"
    "  --step-mib N                 over-alloc: size of a step (default 1)\n"
    "  --max-mib N                  over-alloc: stop there, granted (default: no end)\n"
    "  --count N | --seconds S      launch: how many launches, or for how long (default 1000 launches)\n"
    "  --blocks N, --threads N      launch: the grid (default 108 blocks of 1024 threads)\n"
    "\n"
    "Every line on stdout is a JSON object with \"event\":\n"
    "  process {pid, driver_version, device_count}\n"
    "  device {ordinal, uuid, name, total_bytes, free_bytes, memory_total_bytes, nvml_total_bytes, nvml_used_bytes,\n"
    "    nvml_free_bytes}: total_bytes is cuDeviceTotalMem's, memory_total_bytes cuMemGetInfo's; nvml fields need "
    "NVML\n"
    "  allocated {pid, mib}, released {pid}\n"
    "  refused {pid, code, name, granted_mib, step_mib}: the driver refused\n"
    "  granted {pid, granted_mib}: over-alloc reached --max-mib unrefused\n"
    "  launched {pid, launches, seconds}\n"
    "  error {pid, call, code, name}\n"
    "\n"
    "exit status: 0 done (over-alloc: refused with out of memory), 2 wrong use, 3 CUDA cannot be started or has no "
    "such\n"
    "device, 4 alloc was refused for lack of memory (over-alloc: --max-mib reached unrefused), 5 another driver "
    "error\n";

struct options {
    const char *command;
    enum reach reach;
    int device;
    unsigned long long mib, step_mib, max_mib, hold_seconds, count, seconds, blocks, threads;
    bool hold_until_signal;
};

static struct driver_calls cu;
static volatile sig_atomic_t told_to_stop;

static void stop(int signal_number) {
    (void)signal_number;
    told_to_stop = 1;
}

static const char *name_of(CUresult code) {
    const char *name = NULL;
    return cu.error_name != NULL && cu.error_name(code, &name) == CUDA_SUCCESS && name != NULL ? name : "unknown";
}

static int report(const char *call, CUresult code, enum exit_status status) {
    printf("{\"event\": \"error\", \"pid\": %d, \"call\": \"%s\", \"code\": %d, \"name\": \"%s\"}\n", (int)getpid(),
           call, (int)code, name_of(code));
    return status;
}

/* Starts CUDA and makes the device's primary context current. */
static int start(const struct options *o) {
    CUdevice device = 0;
    CUcontext context = NULL;
    CUresult code = cu.init(0);
    if (code != CUDA_SUCCESS)
        return report("cuInit", code, NO_CUDA);
    code = cu.device_get(&device, o->device);
    if (code != CUDA_SUCCESS)
        return report("cuDeviceGet", code, NO_CUDA);
    code = cu.primary_retain(&context, device);
    if (code != CUDA_SUCCESS)
        return report("cuDevicePrimaryCtxRetain", code, DRIVER_ERROR);
    code = cu.set_current(context);
    return code == CUDA_SUCCESS ? DONE : report("cuCtxSetCurrent", code, DRIVER_ERROR);
}

static void hold(const struct options *o) {
    struct timespec now, end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += (time_t)o->hold_seconds;
    while (!told_to_stop) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (!o->hold_until_signal &&
            (now.tv_sec > end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec >= end.tv_nsec)))
            return;
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
}

static int run_alloc(const struct options *o) {
    CUdeviceptr memory = 0;
    int status = start(o);
    if (status != DONE)
        return status;
    CUresult code = cu.mem_alloc(&memory, (size_t)(o->mib * MIB));
    if (code == CUDA_ERROR_OUT_OF_MEMORY) {
        printf("{\"event\": \"refused\", \"pid\": %d, \"code\": %d, \"name\": \"%s\", \"granted_mib\": 0, "
               "\"step_mib\": %llu}\n",
               (int)getpid(), (int)code, name_of(code), o->mib);
        return REFUSED;
    }
    if (code != CUDA_SUCCESS)
        return report("cuMemAlloc", code, DRIVER_ERROR);
    printf("{\"event\": \"allocated\", \"pid\": %d, \"mib\": %llu}\n", (int)getpid(), o->mib);
    hold(o);
    code = cu.mem_free(memory);
    if (code != CUDA_SUCCESS)
        return report("cuMemFree", code, DRIVER_ERROR);
    printf("{\"event\": \"released\", \"pid\": %d}\n", (int)getpid());
    return DONE;
}

static int run_over_alloc(const struct options *o) {
    unsigned long long granted = 0;
    int status = start(o);
    if (status != DONE)
        return status;
    CUresult code = CUDA_SUCCESS;
    while (o->max_mib == 0 || granted + o->step_mib <= o->max_mib) {
        CUdeviceptr memory = 0;
        code = cu.mem_alloc(&memory, (size_t)(o->step_mib * MIB));
        if (code != CUDA_SUCCESS)
            break;
        granted += o->step_mib;
    }
    if (code == CUDA_SUCCESS)
        printf("{\"event\": \"granted\", \"pid\": %d, \"granted_mib\": %llu}\n", (int)getpid(), granted);
    else
        printf("{\"event\": \"refused\", \"pid\": %d, \"code\": %d, \"name\": \"%s\", \"granted_mib\": %llu, "
               "\"step_mib\": %llu}\n",
               (int)getpid(), (int)code, name_of(code), granted, o->step_mib);
    hold(o);
    return code == CUDA_ERROR_OUT_OF_MEMORY ? DONE : code == CUDA_SUCCESS ? REFUSED : DRIVER_ERROR;
}

static double seconds_since(const struct timespec *start_time) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start_time->tv_sec) + (double)(now.tv_nsec - start_time->tv_nsec) / 1e9;
}

/* A kernel that returns at once, for a real card's compiler; simulated ones take any image. */
static const char kernel_source[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                                    ".visible .entry idle() { ret; }\n";

static int run_launch(const struct options *o) {
    CUmodule module = NULL;
    CUfunction function = NULL;
    struct timespec begun;
    int status = start(o);
    if (status != DONE)
        return status;
    CUresult code = cu.module_load(&module, kernel_source);
    if (code == CUDA_SUCCESS)
        code = cu.get_function(&function, module, "idle");
    if (code != CUDA_SUCCESS)
        return report("cuModuleGetFunction", code, DRIVER_ERROR);
    unsigned long long launches = 0;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    while (!told_to_stop && (o->seconds > 0 ? seconds_since(&begun) < (double)o->seconds : launches < o->count)) {
        code = cu.launch(function, (unsigned)o->blocks, 1, 1, (unsigned)o->threads, 1, 1, 0, NULL, NULL, NULL);
        if (code != CUDA_SUCCESS)
            return report("cuLaunchKernel", code, DRIVER_ERROR);
        launches++;
    }
    code = cu.synchronize();
    if (code != CUDA_SUCCESS)
        return report("cuCtxSynchronize", code, DRIVER_ERROR);
    printf("{\"event\": \"launched\", \"pid\": %d, \"launches\": %llu, \"seconds\": %.3f}\n", (int)getpid(), launches,
           seconds_since(&begun));
    return DONE;
}

static void format_uuid(const CUuuid *uuid, char text[64]) {
    char *out = text + sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++)
        out += sprintf(out, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", (unsigned char)uuid->bytes[i]);
}

/* NVML's view of the device with that UUID, as members to append; empty where there is no NVML. */
static void describe_nvml(const char *uuid, char *out, size_t size) {
    PFN_nvmlInit_v2 init = NULL;
    PFN_nvmlDeviceGetHandleByUUID by_uuid = NULL;
    PFN_nvmlDeviceGetMemoryInfo memory_info = NULL;
    nvmlDevice_t device = NULL;
    nvmlMemory_t memory;
    *out = '\0';
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (nvml == NULL)
        return;
    memcpy(&init, &(void *){dlsym(nvml, "nvmlInit_v2")}, sizeof(void *));
    memcpy(&by_uuid, &(void *){dlsym(nvml, "nvmlDeviceGetHandleByUUID")}, sizeof(void *));
    memcpy(&memory_info, &(void *){dlsym(nvml, "nvmlDeviceGetMemoryInfo")}, sizeof(void *));
    if (init == NULL || by_uuid == NULL || memory_info == NULL || init() != NVML_SUCCESS ||
        by_uuid(uuid, &device) != NVML_SUCCESS || memory_info(device, &memory) != NVML_SUCCESS)
        return;
    snprintf(out, size, ", \"nvml_total_bytes\": %llu, \"nvml_used_bytes\": %llu, \"nvml_free_bytes\": %llu",
             memory.total, memory.used, memory.free);
}

static int describe_device(const struct options *o, int ordinal) {
    char name[256] = "", uuid_text[64] = "", nvml[256];
    CUuuid uuid;
    size_t total = 0, free_bytes = 0, memory_total = 0;
    struct options chosen = *o;
    chosen.device = ordinal;
    int status = start(&chosen);
    if (status != DONE)
        return status;
    CUresult code = cu.device_name(name, sizeof name, ordinal);
    if (code == CUDA_SUCCESS)
        code = cu.device_uuid(&uuid, ordinal);
    if (code == CUDA_SUCCESS)
        code = cu.device_total(&total, ordinal);
    if (code == CUDA_SUCCESS)
        code = cu.mem_info(&free_bytes, &memory_total);
    if (code != CUDA_SUCCESS)
        return report("device query", code, DRIVER_ERROR);
    format_uuid(&uuid, uuid_text);
    describe_nvml(uuid_text, nvml, sizeof nvml);
    printf("{\"event\": \"device\", \"ordinal\": %d, \"uuid\": \"%s\", \"name\": \"%s\", \"total_bytes\": %zu, "
           "\"free_bytes\": %zu, \"memory_total_bytes\": %zu%s}\n",
           ordinal, uuid_text, name, total, free_bytes, memory_total, nvml);
    return DONE;
}

static int run_info(const struct options *o) {
    int version = 0, count = 0, status = DONE;
    CUresult code = cu.init(0);
    if (code != CUDA_SUCCESS)
        return report("cuInit", code, NO_CUDA);
    code = cu.driver_version(&version);
    if (code == CUDA_SUCCESS)
        code = cu.device_count(&count);
    if (code != CUDA_SUCCESS)
        return report("cuDeviceGetCount", code, DRIVER_ERROR);
    printf("{\"event\": \"process\", \"pid\": %d, \"driver_version\": %d, \"device_count\": %d}\n", (int)getpid(),
           version, count);
    for (int i = 0; i < count && status == DONE; i++)
        status = describe_device(o, i);
    return status;
}

static bool parse_number(const char *text, unsigned long long least, unsigned long long *number) {
    char *end = NULL;
    errno = 0;
    *number = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && *end == '\0' && errno == 0 && *number >= least && *number <= INT_MAX;
}

enum {
    OPT_REACH = 1,
    OPT_DEVICE,
    OPT_MIB,
    OPT_HOLD,
    OPT_UNTIL,
    OPT_STEP,
    OPT_MAX,
    OPT_COUNT,
    OPT_SECONDS,
    OPT_BLOCKS,
    OPT_THREADS,
    OPT_HELP
};

static const struct option long_options[] = {
    {"reach", required_argument, NULL, OPT_REACH},
    {"device", required_argument, NULL, OPT_DEVICE},
    {"mib", required_argument, NULL, OPT_MIB},
    {"hold-seconds", required_argument, NULL, OPT_HOLD},
    {"hold-until-signal", no_argument, NULL, OPT_UNTIL},
    {"step-mib", required_argument, NULL, OPT_STEP},
    {"max-mib", required_argument, NULL, OPT_MAX},
    {"count", required_argument, NULL, OPT_COUNT},
    {"seconds", required_argument, NULL, OPT_SECONDS},
    {"blocks", required_argument, NULL, OPT_BLOCKS},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"help", no_argument, NULL, OPT_HELP},
    {0},
};

static bool parse_reach(const char *text, enum reach *reach) {
    static const char *const names[] = {"link", "dlsym", "getproc"};
    for (int i = 0; i < 3; i++)
        if (strcmp(text, names[i]) == 0) {
            *reach = (enum reach)i;
            return true;
        }
    return false;
}

static bool parse_option(int option, struct options *o) {
    unsigned long long device = 0;
    bool valid = true;
    switch (option) {
    case OPT_REACH:
        return parse_reach(optarg, &o->reach);
    case OPT_DEVICE:
        valid = parse_number(optarg, 0, &device);
        o->device = (int)device;
        return valid;
    case OPT_MIB:
        return parse_number(optarg, 1, &o->mib);
    case OPT_HOLD:
        return parse_number(optarg, 0, &o->hold_seconds);
    case OPT_UNTIL:
        o->hold_until_signal = true;
        return true;
    case OPT_STEP:
        return parse_number(optarg, 1, &o->step_mib);
    case OPT_MAX:
        return parse_number(optarg, 1, &o->max_mib);
    case OPT_COUNT:
        return parse_number(optarg, 1, &o->count);
    case OPT_SECONDS:
        return parse_number(optarg, 1, &o->seconds);
    case OPT_BLOCKS:
        return parse_number(optarg, 1, &o->blocks);
    case OPT_THREADS:
        return parse_number(optarg, 1, &o->threads);
    default:
        return false;
    }
}

/* Says what was wrong after the usage, so that a terminal shows it. */
static int wrong_use(const char *what, const char *name) {
    fputs(usage_text, stderr);
    fprintf(stderr, "\nvgpu-workload: %s%s\n", what, name);
    return WRONG_USE;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(const struct options *);
    } commands[] = {{"info", run_info}, {"alloc", run_alloc}, {"over-alloc", run_over_alloc}, {"launch", run_launch}};
    struct options o = {.step_mib = 1, .count = 1000, .blocks = 108, .threads = 1024};
    int option, index = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    opterr = 0; /* wrong_use says it */
    while ((option = getopt_long(argc, argv, "", long_options, &index)) != -1) {
        if (option == OPT_HELP) {
            fputs(usage_text, stdout);
            return DONE;
        }
        if (option == '?')
            return wrong_use("no such option, or its value is missing: ", argv[optind - 1]);
        if (!parse_option(option, &o))
            return wrong_use("not a value that can be used: --", long_options[index].name);
    }
    if (optind == argc)
        return wrong_use("a command is missing", "");
    if (optind != argc - 1)
        return wrong_use("more than one command: ", argv[optind + 1]);
    o.command = argv[optind];
    if (strcmp(o.command, "alloc") == 0 && o.mib == 0)
        return wrong_use("alloc needs --mib N", "");
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(o.command, commands[i].name) == 0)
            return driver_calls_resolve(&cu, o.reach) ? commands[i].run(&o) : NO_CUDA;
    return wrong_use("no such command: ", o.command);
}
