#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vgpu/prim.h"

const char *vgi_getenv(const char *name) {
    return getenv(name);
}

int32_t vgi_own_pid(void) {
    return (int32_t)getpid();
}

static ssize_t read_file(const char *path, char *out, size_t size) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    ssize_t length = read(file, out, size - 1);
    close(file);
    if (length >= 0)
        out[length] = '\0';
    return length;
}

struct process_stat {
    char state;
    unsigned threads;
    uint64_t start_time;
};

/* False when it cannot be read. The name in the second field may hold blanks and parentheses: fields count from the
 * last one. */
static bool read_stat(int32_t pid, struct process_stat *stat) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (read_file(path, text, sizeof text) <= 0)
        return false;
    const char *third = strrchr(text, ')');
    return third != NULL &&
           sscanf(third + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %u %*s %lu",
                  &stat->state, &stat->threads, &stat->start_time) == 3;
}

uint64_t vgi_pid_namespace(void) {
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? (uint64_t)status.st_ino : 0;
}

#define FIRST_PID_NAMESPACE 0xEFFFFFFCull /* its inode on every Linux: PROC_PID_INIT_INO of linux/proc_ns.h */

/* Our own pid in the machine's first namespace; else the outermost that this /proc tells of; 0 when it tells only our
 * own, which is not the host's. */
static int32_t own_host_pid(uint64_t pid_namespace) {
    char text[4096];
    if (pid_namespace == FIRST_PID_NAMESPACE)
        return vgi_own_pid();
    if (read_file("/proc/self/status", text, sizeof text) <= 0)
        return 0;
    char *line = strstr(text, "\nNSpid:");
    int outer = 0, inner = 0;
    return line != NULL && sscanf(line + 7, "%d %d", &outer, &inner) == 2 ? (int32_t)outer : 0;
}

struct vgi_identity vgi_identify_self(void) {
    struct vgi_identity self = {.pid = vgi_own_pid()};
    struct process_stat stat;
    if (read_stat(self.pid, &stat)) /* else /proc is not mounted */
        self.start_time = stat.start_time;
    self.pid_namespace = vgi_pid_namespace();
    self.host_pid = own_host_pid(self.pid_namespace);
    return self;
}

bool vgi_is_gone(const struct vgi_identity *owner, uint64_t own_namespace) {
    struct process_stat stat;
    /* A pid of another namespace names some other process here. */
    if (owner->pid_namespace != 0 && own_namespace != 0 && owner->pid_namespace != own_namespace)
        return false;
    if (owner->pid <= 0)
        return true;
    if (kill(owner->pid, 0) != 0 && errno == ESRCH)
        return true;
    if (!read_stat(owner->pid, &stat))
        return false;
    bool reused = owner->start_time != 0 && stat.start_time != owner->start_time;
    /* A zombie with threads is a process whose first thread ended before the others. */
    return reused || ((stat.state == 'Z' || stat.state == 'X') && stat.threads <= 1);
}

/* A line of /proc/<pid>/maps: addresses, permissions, offset, device, inode, path. */
static bool is_line_of(const char *line, uint64_t inode) {
    unsigned long found = 0;
    return sscanf(line, "%*s %*s %*s %*s %lu", &found) == 1 && found == inode;
}

bool vgi_may_have_mapped(int32_t pid, uint64_t inode) {
    char path[64], text[4096];
    size_t kept = 0;
    bool found = false;
    if (kill(pid, 0) != 0 && errno == ESRCH)
        return false;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return true;
    for (ssize_t got; !found && (got = read(file, text + kept, sizeof text - 1 - kept)) > 0;) {
        char *line = text, *end;
        text[kept + (size_t)got] = '\0';
        while (!found && (end = strchr(line, '\n')) != NULL) {
            *end = '\0';
            found = is_line_of(line, inode);
            line = end + 1;
        }
        kept = strlen(line);
        if (kept == sizeof text - 1)
            kept = 0; /* no such line is that long */
        memmove(text, line, kept);
    }
    close(file);
    return found;
}

void *vgi_page_wiped_on_fork(void) {
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return NULL;
    if (madvise(page, size, MADV_WIPEONFORK) == 0)
        return page;
    munmap(page, size);
    return NULL;
}
