#include "sandbox.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "books.h"
#include "vgpu/shm_layout.h"

static const char description[] =
    "{\"driver_version\": \"580.65.06\", \"cuda_version\": \"13.0\", \"cards\": [\n"
    " {\"uuid\": \"GPU-11111111-2222-3333-4444-000000000000\", \"name\": \"Simulated A100\", \"memory_mib\": 40960},\n"
    " {\"uuid\": \"GPU-11111111-2222-3333-4444-000000000001\", \"name\": \"Simulated A100\", \"memory_mib\": "
    "40960}]}\n";

static void give_up(const char *what) {
    perror(what);
    exit(1);
}

struct sandbox sandbox_make(void) {
    struct sandbox made = {.directory = "/tmp/vgpu-test-XXXXXX"};
    char path[128];
    if (mkdtemp(made.directory) == NULL)
        give_up("mkdtemp");
    snprintf(made.region, sizeof made.region, "%s/slice/test.cache", made.directory);
    snprintf(path, sizeof path, "%s/node.json", made.directory);
    FILE *file = fopen(path, "w");
    if (file == NULL || fputs(description, file) < 0 || fclose(file) != 0)
        give_up(path);
    return made;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *where) {
    (void)status, (void)kind, (void)where;
    return remove(path);
}

void sandbox_remove(const struct sandbox *sandbox) {
    (void)nftw(sandbox->directory, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void become(const struct sandbox *sandbox, bool with_vgpu, const char *const *environment,
                   const char *const *argv) {
    char text[256];
    clearenv();
    setenv("LD_LIBRARY_PATH", VGPU_BINARY_DIR "/sim", 1);
    snprintf(text, sizeof text, "%s/node.json", sandbox->directory);
    setenv("HAMI_SIM_DRIVER", text, 1);
    setenv("HAMI_SIM_KERNEL_MICROSECONDS", "0", 1);
    setenv("CUDA_DEVICE_MEMORY_SHARED_CACHE", sandbox->region, 1);
    if (with_vgpu)
        setenv("LD_PRELOAD", VGPU_BINARY_DIR "/lib/libvgpu.so", 1);
    for (; environment != NULL && *environment != NULL; environment++)
        putenv((char *)(uintptr_t)*environment);
    execv(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
}

struct sandbox_process sandbox_start(const struct sandbox *sandbox, bool with_vgpu, const char *const *environment,
                                     const char *const *argv) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        give_up("pipe");
    pid_t pid = fork();
    if (pid < 0)
        give_up("fork");
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        become(sandbox, with_vgpu, environment, argv);
    }
    close(ends[1]);
    return (struct sandbox_process){.pid = pid, .output = ends[0]};
}

bool sandbox_await(const struct sandbox_process *process, const char *text) {
    char seen[SANDBOX_OUTPUT] = "";
    size_t length = 0;
    while (strstr(seen, text) == NULL) {
        ssize_t got = length + 1 < sizeof seen ? read(process->output, seen + length, 1) : 0;
        if (got <= 0) {
            fprintf(stderr, "the process ended without \"%s\"; it said: %s\n", text, seen);
            return false;
        }
        length += (size_t)got;
        seen[length] = '\0';
    }
    return true;
}

int sandbox_finish(const struct sandbox_process *process, char output[SANDBOX_OUTPUT]) {
    size_t length = 0;
    char rest[512];
    int status = 0;
    for (;;) {
        bool room = output != NULL && length + 1 < SANDBOX_OUTPUT;
        ssize_t got = room ? read(process->output, output + length, SANDBOX_OUTPUT - 1 - length)
                           : read(process->output, rest, sizeof rest);
        if (got <= 0)
            break;
        if (room)
            length += (size_t)got;
    }
    if (output != NULL)
        output[length] = '\0';
    close(process->output);
    waitpid(process->pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int sandbox_run(const struct sandbox *sandbox, bool with_vgpu, const char *const *environment, const char *const *argv,
                char output[SANDBOX_OUTPUT]) {
    struct sandbox_process process = sandbox_start(sandbox, with_vgpu, environment, argv);
    return sandbox_finish(&process, output);
}

const char *sandbox_self(void) {
    static char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0)
        give_up("/proc/self/exe");
    path[length] = '\0';
    return path;
}

uint64_t sandbox_books_used(const struct sandbox *sandbox, unsigned card, pid_t pid_or_0) {
    static struct sim_books *books;
    static char opened[sizeof sandbox->directory];
    char path[128], reason[256];
    uint64_t used = 0;
    if (books == NULL || strcmp(opened, sandbox->directory) != 0) {
        snprintf(path, sizeof path, "%s/node.json.state", sandbox->directory);
        books = sim_books_open(path, reason, sizeof reason);
        if (books == NULL) {
            fprintf(stderr, "%s\n", reason);
            exit(1);
        }
        snprintf(opened, sizeof opened, "%s", sandbox->directory);
    }
    sim_books_lock(books);
    sim_books_reclaim(books);
    if (pid_or_0 == 0)
        used = books->cards[card].used_bytes;
    for (int i = 0; pid_or_0 != 0 && i < SIM_MAX_PROCESSES; i++)
        if (books->processes[i].in_use && books->processes[i].pid == pid_or_0)
            used += books->processes[i].cards[card].used_bytes;
    sim_books_unlock(books);
    return used;
}

struct vg_region *sandbox_region(const struct sandbox *sandbox) {
    int file = open(sandbox->region, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return NULL;
    void *mapped = mmap(NULL, VG_FILE_BYTES, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    return mapped == MAP_FAILED ? NULL : mapped;
}
