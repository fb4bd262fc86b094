#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vgpu/prim.h"

#define OPEN_TRIES 16           /* how often the file may be replaced under our hands */
#define OPEN_LOCK_MS 10000      /* laying a file out takes milliseconds; longer, and its maker is stopped */
#define MODE_FOR_ALL_USERS 0666 /* a container's processes may run as several users */

static bool explain(char *reason, size_t size, const char *path, const char *what) {
    snprintf(reason, size, "region file %s: %s", path, what);
    return false;
}

static bool explain_errno(char *reason, size_t size, const char *path, const char *doing) {
    snprintf(reason, size, "region file %s: cannot %s it: %s", path, doing, strerror(errno));
    return false;
}

#define SLOT_LOCKS_AT (1ll << 40) /* far behind any content */

/* On the first byte; the kernel drops it with the open file, so also when we are killed. */
static int set_lock(int descriptor, short type) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_len = 1};
    return fcntl(descriptor, F_OFD_SETLK, &lock);
}

static bool lock_descriptor(int descriptor, unsigned milliseconds) {
    for (unsigned waited_us = 0;; waited_us += 500) {
        if (set_lock(descriptor, F_WRLCK) == 0)
            return true;
        if ((errno != EAGAIN && errno != EACCES && errno != EINTR) || waited_us >= milliseconds * 1000u)
            return false;
        vgi_sleep_microseconds(500);
    }
}

/* Never left to close(): the mapping keeps the open file, and the lock with it, alive. */
static void unlock_descriptor(int descriptor) {
    (void)set_lock(descriptor, F_UNLCK);
}

static bool is_file(int descriptor, const struct vgi_region_file *file) {
    struct stat status;
    return fstat(descriptor, &status) == 0 && (uint64_t)status.st_dev == file->device &&
           (uint64_t)status.st_ino == file->inode;
}

/* Never one of the standard three: where a program was started without them, what it writes there, and we, would go
 * into the region. */
static int open_above_standard(const char *path, int flags) {
    int descriptor = open(path, flags | O_RDWR | O_CLOEXEC | O_NONBLOCK, MODE_FOR_ALL_USERS);
    if (descriptor < 0 || descriptor > STDERR_FILENO)
        return descriptor;
    int above = fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), cause = errno;
    close(descriptor);
    errno = cause;
    return above;
}

/* A daemon closes every descriptor it finds, ours too, and may have opened something else in its place. */
static bool ensure_own_descriptor(struct vgi_region_file *file) {
    if (is_file(file->descriptor, file))
        return true;
    int descriptor = open_above_standard(file->path, 0);
    if (descriptor >= 0 && is_file(descriptor, file)) {
        file->descriptor = descriptor;
        return true;
    }
    if (descriptor >= 0)
        close(descriptor);
    return false;
}

bool vgi_region_file_lock(struct vgi_region_file *file, unsigned milliseconds) {
    return ensure_own_descriptor(file) && lock_descriptor(file->descriptor, milliseconds);
}

void vgi_region_file_unlock(const struct vgi_region_file *file) {
    unlock_descriptor(file->descriptor);
}

/* Shared: a child of the slot's former owner may have inherited that one's. */
bool vgi_region_file_hold_slot(const struct vgi_region_file *file, unsigned slot) {
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = SLOT_LOCKS_AT + slot, .l_len = 1};
    return fcntl(file->descriptor, F_OFD_SETLK, &lock) == 0;
}

bool vgi_region_file_slot_is_let_go(const struct vgi_region_file *file, unsigned slot) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SLOT_LOCKS_AT + slot, .l_len = 1};
    return fcntl(file->descriptor, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

static void make_parent(const char *path) {
    char parent[4096];
    const char *slash = strrchr(path, '/');
    if (slash == NULL || slash == path || (size_t)(slash - path) >= sizeof parent)
        return;
    memcpy(parent, path, (size_t)(slash - path));
    parent[slash - path] = '\0';
    (void)mkdir(parent, 0777);
}

static int open_path(const char *path) {
    int descriptor = open_above_standard(path, O_CREAT);
    if (descriptor < 0 && errno == ENOENT) {
        make_parent(path);
        descriptor = open_above_standard(path, O_CREAT);
    }
    return descriptor;
}

/* The process's umask stays as it is; the file's mode does not depend on it. */
static void open_to_all_users(int descriptor) {
    struct stat status;
    if (fstat(descriptor, &status) == 0 && status.st_uid == geteuid() &&
        (status.st_mode & MODE_FOR_ALL_USERS) != MODE_FOR_ALL_USERS)
        (void)fchmod(descriptor, MODE_FOR_ALL_USERS);
}

static struct vg_region *map(int descriptor) {
    void *mapped = mmap(NULL, VG_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    return mapped == MAP_FAILED ? NULL : mapped;
}

/* Gives the file all of its blocks: a hole in it, met when the disk is full, would kill whoever touches it. Where a
 * file system cannot say so beforehand, it is hoped for. */
static bool fill_holes(int descriptor) {
    return fallocate(descriptor, 0, 0, (off_t)VG_FILE_BYTES) == 0 || errno == EOPNOTSUPP || errno == ENOSYS;
}

static struct vg_region *map_filled(int descriptor) {
    return fill_holes(descriptor) ? map(descriptor) : NULL;
}

/* Sizes an empty file and fills it. */
static struct vg_region *lay_out(int descriptor, const struct vgi_limits *limits) {
    if (!fill_holes(descriptor) || ftruncate(descriptor, (off_t)VG_FILE_BYTES) != 0) {
        int cause = errno;
        (void)ftruncate(descriptor, 0);
        errno = cause;
        return NULL;
    }
    struct vg_region *region = map(descriptor);
    if (region != NULL)
        vgi_region_lay_out(region, limits, vgi_now_seconds());
    return region;
}

static bool read_heads(int descriptor, struct vgi_region_heads *heads) {
    struct stat status;
    uint32_t first[3] = {0};
    uint64_t extension[2] = {0};
    if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size < 0)
        return false;
    /* Short reads leave zeroes, which are no magic. */
    if (pread(descriptor, first, sizeof first, 0) < 0 ||
        pread(descriptor, extension, sizeof extension, VG_EXTENSION_OFFSET) < 0)
        return false;
    *heads = (struct vgi_region_heads){.size = (uint64_t)status.st_size,
                                       .magic = (int32_t)first[0],
                                       .major = first[1],
                                       .minor = first[2],
                                       .extension_magic = extension[0],
                                       .extension_size = extension[1]};
    return true;
}

/* A process that has a slot in a file of another layout and uses it still, or 0. Pids of layouts 1.x lie where ours do.
 * A pid alone says little: after the container was started anew it is some other process's. */
static int32_t living_owner(int descriptor, const struct vgi_region_heads *heads) {
    struct stat status;
    uint64_t inode = fstat(descriptor, &status) == 0 ? (uint64_t)status.st_ino : 0;
    if (heads->magic != VG_REGION_MAGIC || heads->size < sizeof(struct vg_region))
        return 0;
    for (unsigned i = 0; i < VG_MAX_SLOTS; i++) {
        int32_t pid = 0;
        off_t at = (off_t)(offsetof(struct vg_region, slots) + i * sizeof(struct vg_slot));
        if (pread(descriptor, &pid, sizeof pid, at) == (ssize_t)sizeof pid && pid > 0 &&
            vgi_may_have_mapped(pid, inode))
            return pid;
    }
    return 0;
}

/* Puts a fresh file in the path's place. Those who have the old one open keep it; they notice at their next look. */
static bool replace(const char *path, const struct vgi_limits *limits) {
    char fresh[4096];
    if ((size_t)snprintf(fresh, sizeof fresh, "%s.new", path) >= sizeof fresh)
        return false;
    (void)unlink(fresh); /* of one who was killed here */
    int descriptor = open(fresh, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, MODE_FOR_ALL_USERS);
    if (descriptor < 0)
        return false;
    (void)fchmod(descriptor, MODE_FOR_ALL_USERS);
    struct vg_region *region = lay_out(descriptor, limits);
    bool replaced = region != NULL && rename(fresh, path) == 0;
    if (region != NULL)
        munmap(region, VG_FILE_BYTES);
    if (!replaced)
        (void)unlink(fresh);
    close(descriptor);
    return replaced;
}

static bool is_still_there(int descriptor, const char *path) {
    struct stat ours, present;
    return fstat(descriptor, &ours) == 0 && stat(path, &present) == 0 && ours.st_ino == present.st_ino &&
           ours.st_dev == present.st_dev;
}

enum attempt { OPENED, AGAIN, FAILED };

/* With the descriptor locked. */
static enum attempt use(int descriptor, const char *path, const struct vgi_limits *limits, struct vg_region **region,
                        char *reason, size_t reason_size) {
    struct vgi_region_heads heads;
    if (!is_still_there(descriptor, path))
        return AGAIN;
    if (!read_heads(descriptor, &heads)) {
        explain(reason, reason_size, path, "it is no regular readable file");
        return FAILED;
    }
    if (heads.size == 0) {
        *region = lay_out(descriptor, limits);
    } else {
        const char *fault = vgi_region_fault(&heads);
        if (fault != NULL) {
            int32_t owner = living_owner(descriptor, &heads);
            if (owner != 0) {
                snprintf(reason, reason_size, "region file %s: %s, and process %d uses it", path, fault, (int)owner);
                return FAILED;
            }
            vgi_say(VGI_WARNING, "region file %s: %s; nobody uses it, so it is replaced", path, fault);
            if (replace(path, limits))
                return AGAIN;
            explain_errno(reason, reason_size, path, "replace");
            return FAILED;
        }
        *region = map_filled(descriptor);
    }
    if (*region == NULL)
        explain_errno(reason, reason_size, path, "map");
    return *region != NULL ? OPENED : FAILED;
}

bool vgi_region_file_open(struct vgi_region_file *file, const char *path, const struct vgi_limits *limits, char *reason,
                          size_t reason_size) {
    for (int tries = 0; tries < OPEN_TRIES; tries++) {
        struct vg_region *region = NULL;
        int descriptor = open_path(path);
        if (descriptor < 0)
            return explain_errno(reason, reason_size, path, "open");
        if (!lock_descriptor(descriptor, OPEN_LOCK_MS)) {
            explain_errno(reason, reason_size, path, "lock");
            close(descriptor);
            return false;
        }
        enum attempt attempt = use(descriptor, path, limits, &region, reason, reason_size);
        unlock_descriptor(descriptor);
        if (attempt == OPENED) {
            open_to_all_users(descriptor); /* not before: the path may lead to any file */
            struct stat status = {0};
            (void)fstat(descriptor, &status);
            *file = (struct vgi_region_file){.descriptor = descriptor,
                                             .region = region,
                                             .opener_pid = vgi_own_pid(),
                                             .device = (uint64_t)status.st_dev,
                                             .inode = (uint64_t)status.st_ino};
            snprintf(file->path, sizeof file->path, "%s", path);
            return true;
        }
        close(descriptor);
        if (attempt == FAILED)
            return false;
    }
    return explain(reason, reason_size, path, "it is replaced again and again");
}

void vgi_region_file_close(struct vgi_region_file *file) {
    if (file->region != NULL)
        munmap(file->region, VG_FILE_BYTES);
    if (file->descriptor >= 0 && is_file(file->descriptor, file))
        close(file->descriptor);
    *file = (struct vgi_region_file){.descriptor = -1};
}
