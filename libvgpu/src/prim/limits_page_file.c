/* The limits page: beside this library, wherever that was loaded from, and mapped for reading only. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/limits_page.h"
#include "vgpu/prim.h"

/* ---- where this library lies ----
 * The kernel is asked: what a program passed to the loader may be a link that it made itself, or relative to a
 * directory that it left. */

extern const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden"))); /* from the linker: our own first byte */

/* What the kernel calls the file behind our code, by one link. Its name is the mapping's bounds, which are those of the
 * program header unless somebody changed the protection of a part. */
static bool path_by_link(char path[PATH_MAX]) {
    char link[80];
    uintptr_t base = (uintptr_t)&__ehdr_start, page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const ElfW(Phdr) *header = (const void *)(base + __ehdr_start.e_phoff);
    for (unsigned i = 0; i < __ehdr_start.e_phnum; i++, header++) {
        if (header->p_type != PT_LOAD || (header->p_flags & PF_X) == 0)
            continue;
        uintptr_t from = (base + header->p_vaddr) & ~(page - 1);
        uintptr_t to = (base + header->p_vaddr + header->p_filesz + page - 1) & ~(page - 1);
        snprintf(link, sizeof link, "/proc/self/map_files/%lx-%lx", (unsigned long)from, (unsigned long)to);
        ssize_t length = readlink(link, path, PATH_MAX);
        if (length <= 0 || length >= PATH_MAX || path[0] != '/')
            return false;
        path[length] = '\0';
        return true;
    }
    return false;
}

/* One line of /proc/self/maps: the path of the mapping that holds the address, if this is it. */
static bool path_of_line(char *line, uintptr_t address, char path[PATH_MAX]) {
    unsigned long from = 0, to = 0;
    int path_at = 0;
    if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %n", &from, &to, &path_at) < 2 || path_at == 0)
        return false;
    if (address < from || address >= to || line[path_at] != '/')
        return false;
    return snprintf(path, PATH_MAX, "%s", line + path_at) < PATH_MAX;
}

/* The same, by a walk over all mappings. */
__attribute__((noinline)) static bool path_in_maps(uintptr_t address, char path[PATH_MAX]) {
    char text[2 * PATH_MAX];
    size_t held = 0;
    bool found = false;
    int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (maps < 0)
        return false;
    for (;;) {
        ssize_t got = read(maps, text + held, sizeof text - 1 - held);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        held += (size_t)got;
        text[held] = '\0';
        char *line = text, *end;
        while (!found && (end = strchr(line, '\n')) != NULL) {
            *end = '\0';
            found = path_of_line(line, address, path);
            line = end + 1;
        }
        held = (size_t)(text + held - line);
        memmove(text, line, held);
        if (found || held == sizeof text - 1)
            break;
    }
    close(maps);
    return found;
}

static bool path_by_loader(const void *address, char path[PATH_MAX]) {
    Dl_info info;
    return dladdr(address, &info) != 0 && info.dli_fname != NULL && realpath(info.dli_fname, path) != NULL;
}

/* The kernel marks a file that was replaced since. */
static void cut_suffix(char *path, const char *suffix) {
    size_t length = strlen(path), cut = strlen(suffix);
    if (length > cut && strcmp(path + length - cut, suffix) == 0)
        path[length - cut] = '\0';
}

static bool find_page_path(char out[PATH_MAX]) {
    static const char here, page[] = "/" VG_LIMITS_DIRECTORY "/" VG_LIMITS_FILE;
    if (!path_by_link(out) && !path_in_maps((uintptr_t)&here, out) && !path_by_loader(&here, out))
        return false;
    cut_suffix(out, " (deleted)");
    cut_suffix(out, "//deleted");
    char *slash = strrchr(out, '/');
    if (slash == NULL || slash + sizeof page > out + PATH_MAX)
        return false;
    memcpy(slash, page, sizeof page);
    return true;
}

/* Remembered by whoever is first; those who come meanwhile find it themselves, so that nobody waits. */
static bool page_path(char out[PATH_MAX]) {
    enum { UNKNOWN, WRITING, KNOWN };
    static char known[PATH_MAX];
    static int state;
    int expected = UNKNOWN;
    if (__atomic_load_n(&state, __ATOMIC_ACQUIRE) == KNOWN) {
        memcpy(out, known, sizeof known);
        return true;
    }
    if (!find_page_path(out))
        return false;
    if (__atomic_compare_exchange_n(&state, &expected, WRITING, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        memcpy(known, out, sizeof known);
        __atomic_store_n(&state, KNOWN, __ATOMIC_RELEASE);
    }
    return true;
}

/* ---- the page ---- */

#define COPY_TRIES 100 /* of 100 us: how long a writer may take */
#define COPY_PAUSE_US 100

static bool copy_when_settled(const struct vg_limits_page *page, struct vg_limits_page *copy) {
    for (int tries = 0; tries < COPY_TRIES; tries++) {
        if (vgi_limits_page_copy(page, copy))
            return true;
        vgi_sleep_microseconds(COPY_PAUSE_US);
    }
    return false;
}

static const char *file_fault(const struct stat *status) {
    if (!S_ISREG(status->st_mode))
        return "it is no regular file";
    if ((status->st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return "others than its owner may write it";
    if (status->st_size != (off_t)VG_LIMITS_PAGE_BYTES)
        return "it has another size";
    return NULL;
}

/* Apart, as the path has as much of the stack. */
__attribute__((noinline)) static const char *map_page(int descriptor, const struct vg_limits_page **page) {
    struct stat status;
    struct vg_limits_page copy;
    if (fstat(descriptor, &status) != 0)
        return strerror(errno);
    const char *fault = file_fault(&status);
    if (fault != NULL)
        return fault;
    void *mapped = mmap(NULL, VG_LIMITS_PAGE_BYTES, PROT_READ, MAP_SHARED, descriptor, 0);
    if (mapped == MAP_FAILED)
        return strerror(errno);
    if (!copy_when_settled(mapped, &copy))
        vgi_say(VGI_WARNING, "the limits page is in the middle of a change that does not end");
    fault = vgi_limits_page_fault(&copy);
    if (fault != NULL)
        munmap(mapped, VG_LIMITS_PAGE_BYTES);
    else
        *page = mapped;
    return fault;
}

void vgi_limits_page_close(const struct vg_limits_page *page) {
    munmap((void *)(uintptr_t)page, VG_LIMITS_PAGE_BYTES);
}

enum vgi_page_state vgi_limits_page_open(const struct vg_limits_page **page, char *reason, size_t reason_size) {
    char path[PATH_MAX];
    if (!page_path(path)) {
        snprintf(reason, reason_size, "limits page: this library cannot find its own path");
        return VGI_PAGE_BAD;
    }
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0 && (errno == ENOENT || errno == ENOTDIR))
        return VGI_PAGE_ABSENT;
    const char *fault = descriptor < 0 ? strerror(errno) : map_page(descriptor, page);
    if (descriptor >= 0)
        close(descriptor);
    if (fault == NULL)
        return VGI_PAGE_SOUND;
    snprintf(reason, reason_size, "limits page %.200s: %s", path, fault);
    return VGI_PAGE_BAD;
}
