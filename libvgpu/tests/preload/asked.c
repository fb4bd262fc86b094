#include "asked.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "reach.h"
#include "vgpu/abi/nvml_fn.h"

#define LINE 512
#define QUESTIONS "VGPU_TEST_QUESTIONS" /* the descriptor they come from */

/* ---- the test's side ---- */

struct asked asked_start(const struct sandbox *sandbox, const char *const *environment, const char *const *argv) {
    const char *variables[32];
    char descriptor[64];
    int ends[2];
    size_t count = 0;
    if (pipe(ends) != 0 || fcntl(ends[1], F_SETFD, FD_CLOEXEC) != 0) {
        perror("pipe");
        exit(1);
    }
    snprintf(descriptor, sizeof descriptor, QUESTIONS "=%d", ends[0]);
    for (; environment != NULL && environment[count] != NULL && count < 30; count++)
        variables[count] = environment[count];
    variables[count++] = descriptor;
    variables[count] = NULL;
    struct asked asked = {.questions = ends[1]};
    asked.process = sandbox_start(sandbox, false, variables, argv);
    close(ends[0]);
    return asked;
}

static bool read_line(int file, char line[LINE]) {
    size_t length = 0;
    while (length + 1 < LINE) {
        if (read(file, line + length, 1) != 1)
            return false;
        if (line[length] == '\n')
            break;
        length++;
    }
    line[length] = '\0';
    return true;
}

static const char *answer_to(struct asked *asked, const char *question) {
    static char line[LINE];
    if (dprintf(asked->questions, "%s\n", question) < 0)
        return "gone";
    while (read_line(asked->process.output, line)) {
        if (strncmp(line, "= ", 2) == 0)
            return line + 2;
        size_t used = strlen(asked->said);
        snprintf(asked->said + used, sizeof asked->said - used, "%s\n", line);
    }
    return "gone";
}

const char *asked_question(struct asked *asked, const char *format, ...) {
    char question[LINE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(question, sizeof question, format, arguments);
    va_end(arguments);
    return answer_to(asked, question);
}

long long asked_number(struct asked *asked, const char *format, ...) {
    char question[LINE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(question, sizeof question, format, arguments);
    va_end(arguments);
    char *end = NULL;
    const char *answer = answer_to(asked, question);
    long long number = strtoll(answer, &end, 10);
    if (end == answer || *end != '\0') {
        fprintf(stderr, "asked \"%s\", it answered \"%s\"\n%s", question, answer, asked->said);
        return -1;
    }
    return number;
}

int asked_finish(struct asked *asked) {
    close(asked->questions);
    return sandbox_finish(&asked->process, NULL);
}

/* ---- the process's side ---- */

static CUresult use(int device) {
    CUcontext context = NULL;
    CUresult result = cuDevicePrimaryCtxRetain(&context, device);
    return result == CUDA_SUCCESS ? cuCtxSetCurrent(context) : result;
}

static void answer_alloc(int device, unsigned long long bytes, bool keep) {
    CUdeviceptr pointer = 0;
    CUresult result = use(device);
    if (result == CUDA_SUCCESS)
        result = cuMemAlloc_v2(&pointer, (size_t)bytes);
    printf("= %d\n", (int)result);
    if (result == CUDA_SUCCESS && !keep)
        (void)cuMemFree_v2(pointer);
}

static void answer_info(int device) {
    size_t free_bytes = 0, total = 0;
    CUresult result = use(device);
    if (result == CUDA_SUCCESS)
        result = cuMemGetInfo_v2(&free_bytes, &total);
    if (result == CUDA_SUCCESS)
        printf("= %zu %zu\n", free_bytes, total);
    else
        printf("= code %d\n", (int)result);
}

static void answer_uuid(int device) {
    PFN_cuDeviceGetUuid_v11040 get = (PFN_cuDeviceGetUuid_v11040)(uintptr_t)dlsym(RTLD_DEFAULT, "cuDeviceGetUuid_v2");
    CUuuid uuid = {.bytes = ""};
    (void)get(&uuid, device);
    printf("= GPU-");
    for (int i = 0; i < 16; i++)
        printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", (unsigned char)uuid.bytes[i]);
    printf("\n");
}

static void answer_nvml(const char *uuid) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    nvmlDevice_t device = NULL;
    nvmlMemory_t memory = {.total = 0};
    PFN_nvmlInit_v2 init = (PFN_nvmlInit_v2)(uintptr_t)dlsym(library, "nvmlInit_v2");
    PFN_nvmlDeviceGetHandleByUUID by_uuid =
        (PFN_nvmlDeviceGetHandleByUUID)(uintptr_t)dlsym(library, "nvmlDeviceGetHandleByUUID");
    PFN_nvmlDeviceGetMemoryInfo info =
        (PFN_nvmlDeviceGetMemoryInfo)(uintptr_t)dlsym(library, "nvmlDeviceGetMemoryInfo");
    nvmlReturn_t result = init();
    if (result == NVML_SUCCESS)
        result = by_uuid(uuid, &device);
    if (result == NVML_SUCCESS)
        result = info(device, &memory);
    printf("= %d %llu %llu %llu\n", (int)result, memory.total, memory.used, memory.free);
}

static int unprotect(void) {
    uintptr_t code = (uintptr_t)dlsym(RTLD_DEFAULT, "cuInit"), page = (uintptr_t)sysconf(_SC_PAGESIZE);
    return mprotect((void *)(code & ~(page - 1)), page, PROT_READ | PROT_WRITE | PROT_EXEC);
}

static void answer(const char *question);

static void answer_in_child(const char *question) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        (void)cuInit(0);
        answer(question);
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

static void answer(const char *question) {
    int device = 0;
    unsigned long long bytes = 0;
    char word[LINE] = "";
    if (strcmp(question, "init") == 0) {
        printf("= %d\n", (int)cuInit(0));
    } else if (strcmp(question, "count") == 0) {
        int count = -1;
        (void)cuDeviceGetCount(&count);
        printf("= %d\n", count);
    } else if (sscanf(question, "alloc %d %llu", &device, &bytes) == 2) {
        answer_alloc(device, bytes, false);
    } else if (sscanf(question, "keep %d %llu", &device, &bytes) == 2) {
        answer_alloc(device, bytes, true);
    } else if (sscanf(question, "info %d", &device) == 1) {
        answer_info(device);
    } else if (sscanf(question, "total %d", &device) == 1) {
        size_t total = 0;
        (void)cuDeviceTotalMem_v2(&total, device);
        printf("= %zu\n", total);
    } else if (sscanf(question, "uuid %d", &device) == 1) {
        answer_uuid(device);
    } else if (sscanf(question, "nvml %511s", word) == 1) {
        answer_nvml(word);
    } else if (sscanf(question, "chdir %511s", word) == 1) {
        printf("= %d\n", chdir(word));
    } else if (strcmp(question, "unprotect") == 0) {
        printf("= %d\n", unprotect());
    } else if (strncmp(question, "fork ", 5) == 0) {
        answer_in_child(question + 5);
    } else {
        printf("= not understood: %s\n", question);
    }
}

int asked_answer(void) {
    const char *descriptor = getenv(QUESTIONS);
    char question[LINE];
    while (descriptor != NULL && read_line(atoi(descriptor), question)) {
        answer(question);
        fflush(stdout);
    }
    return 0;
}
