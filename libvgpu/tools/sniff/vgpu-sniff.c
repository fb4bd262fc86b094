/* vgpu-sniff: runs a program and tells which of the driver's symbols it reaches, and how. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "report.h"

static const char usage_text[] =
    "usage: vgpu-sniff [--json] [--output FILE] [--] PROGRAM [ARGUMENT...]\n"
    "\n"
    "Runs the program and tells which symbols of libcuda and libnvidia-ml it and its children reach, how (linked, "
    "dlsym,\n"
    "dlvsym, cuGetProcAddress with version and stream mode, export tables), how often, and what libvgpu does with "
    "them:\n"
    "  holds      a hook of libvgpu stands in front of it\n"
    "  forwards   libvgpu knows it and leaves it to the driver\n"
    "  unknown    libvgpu does not know it; it reaches the driver\n"
    "  not found  the driver has it not, or not at that version\n"
    "\n"
    "The report goes to stderr, or to FILE; with --json it is one object. libvgpu itself is taken out of LD_PRELOAD, "
    "so\n"
    "that what is seen is the program's. Static programs, and C libraries other than glibc, show nothing.\n"
    "\n"
    "exit status: the program's; 128 + the signal that ended it; 2 wrong use, 126 the program cannot be watched, 127 "
    "it\n"
    "cannot be run\n";

static int give_up(const char *what) {
    fprintf(stderr, "vgpu-sniff: %s: %s\n", what, strerror(errno));
    return 126;
}

/* A fresh file, as long as a log; `path` ends in XXXXXX. */
static struct sniff_log *make_log(char *path) {
    int file = mkostemp(path, O_CLOEXEC);
    if (file < 0)
        return NULL;
    void *mapped = MAP_FAILED;
    if (ftruncate(file, (off_t)sizeof(struct sniff_log)) == 0)
        mapped = mmap(NULL, sizeof(struct sniff_log), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return mapped == MAP_FAILED ? NULL : mapped;
}

/* Beside this program, in lib/ of the folder above it. */
static bool find_audit_library(char *path, size_t size) {
    char self[3072];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0)
        return false;
    self[length] = '\0';
    *strrchr(self, '/') = '\0';
    snprintf(path, size, "%s/libvgpu-sniff.so", self);
    if (access(path, R_OK) == 0)
        return true;
    snprintf(path, size, "%s/../lib/libvgpu-sniff.so", self);
    return access(path, R_OK) == 0;
}

static void drop_libvgpu_from_preload(void) {
    const char *preload = getenv("LD_PRELOAD");
    char kept[4096] = "";
    if (preload == NULL || strstr(preload, "libvgpu.so") == NULL)
        return;
    char *copy = strdup(preload), *rest = NULL;
    for (char *part = strtok_r(copy, ": ", &rest); part != NULL; part = strtok_r(NULL, ": ", &rest))
        if (strstr(part, "libvgpu.so") == NULL && strlen(kept) + strlen(part) + 2 < sizeof kept) {
            strcat(kept, *kept == '\0' ? "" : ":");
            strcat(kept, part);
        }
    free(copy);
    if (*kept == '\0')
        unsetenv("LD_PRELOAD");
    else
        setenv("LD_PRELOAD", kept, 1);
}

static void become(const char *audit, const char *log, char **argv) {
    const char *others = getenv("LD_AUDIT");
    char setting[8192];
    snprintf(setting, sizeof setting, "%s%s%s", audit, others == NULL ? "" : ":", others == NULL ? "" : others);
    setenv("LD_AUDIT", setting, 1);
    setenv(SNIFF_LOG_VARIABLE, log, 1);
    drop_libvgpu_from_preload();
    execvp(argv[0], argv);
    fprintf(stderr, "vgpu-sniff: %s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

static int run(const char *audit, const char *log, char **argv) {
    int status = 0;
    pid_t pid = fork();
    if (pid == 0)
        become(audit, log, argv);
    if (pid < 0)
        return give_up("fork");
    signal(SIGINT, SIG_IGN); /* the terminal sends it to both; the program decides */
    signal(SIGQUIT, SIG_IGN);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"json", no_argument, NULL, 'j'},
                                            {"output", required_argument, NULL, 'o'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    bool json = false;
    const char *output = NULL;
    char log_path[] = "/tmp/vgpu-sniff-XXXXXX", audit[4096];
    for (int option; (option = getopt_long(argc, argv, "+", options, NULL)) != -1;)
        switch (option) {
        case 'j':
            json = true;
            break;
        case 'o':
            output = optarg;
            break;
        case 'h':
            fputs(usage_text, stdout);
            return 0;
        default:
            fputs(usage_text, stderr);
            return 2;
        }
    if (optind == argc) {
        fputs(usage_text, stderr);
        return 2;
    }
    if (!find_audit_library(audit, sizeof audit))
        return give_up("libvgpu-sniff.so");
    FILE *out = output == NULL ? stderr : fopen(output, "we");
    if (out == NULL)
        return give_up(output);
    struct sniff_log *log = make_log(log_path);
    if (log == NULL)
        return give_up(log_path);
    struct sniff_ending ending = {.argv = argv + optind};
    ending.exit_status = run(audit, log_path, argv + optind);
    unlink(log_path);
    if (!sniff_report(out, log, &ending, json) || fflush(out) != 0)
        return give_up("report");
    return ending.exit_status;
}
