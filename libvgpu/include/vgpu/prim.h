/* The port to the machine: time, pids, locks, files. Only src/prim/ calls libc for these. */
#ifndef VGPU_PRIM_H
#define VGPU_PRIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "core/limits.h"
#include "core/limits_page.h"
#include "core/region.h"

/* ---- src/prim/clock.c ---- */

/* Seconds since the epoch. One load where libc has it from the kernel's page: every launch asks. */
static inline uint64_t vgi_now_seconds(void) {
    return (uint64_t)time(NULL);
}
uint64_t vgi_now_realtime_us(void); /* as NVML stamps its samples */

/* The clock that never jumps, and that all processes of a machine share. */
uint64_t vgi_now_ns(void);

void vgi_sleep_ns(uint64_t nanoseconds);
void vgi_sleep_microseconds(unsigned microseconds);

/* ---- src/prim/cancel.c ---- */

/* Between these two the thread cannot be cancelled: wherever a lock is held, or the program waits for us. The driver's
 * calls are no places for it either, so a program need not reckon with it in ours. */
int vgi_hold_off_cancel(void);
void vgi_let_cancel(int before);

/* ---- src/prim/process.c ---- */

const char *vgi_getenv(const char *name);

int32_t vgi_own_pid(void);
struct vgi_identity vgi_identify_self(void);

/* Whether that process certainly ended. What cannot be told counts as alive. `own_namespace` is vgi_pid_namespace(). */
bool vgi_is_gone(const struct vgi_identity *owner, uint64_t own_namespace);
uint64_t vgi_pid_namespace(void); /* 0 = cannot be told */

/* False: that process does not exist here, or has no file of that inode mapped. What cannot be told is true. */
bool vgi_may_have_mapped(int32_t pid, uint64_t inode);

/* A zeroed page that every kind of fork (also raw clone) hands to the child zeroed again; NULL when the kernel has no
 * such thing. */
void *vgi_page_wiped_on_fork(void);

/* ---- src/prim/region_file.c ---- */

struct vgi_region_file {
    int descriptor; /* -1 = closed */
    struct vg_region *region;
    int32_t opener_pid;
    uint64_t device, inode; /* of the file: a program may close or reuse descriptors that are not its own */
    char path[1024];
};

/* Opens, makes or replaces the region file and maps it. False with the reason when that cannot be done. */
bool vgi_region_file_open(struct vgi_region_file *file, const char *path, const struct vgi_limits *limits, char *reason,
                          size_t reason_size);
void vgi_region_file_close(struct vgi_region_file *file);

/* The lock between processes: dropped by the kernel when its holder dies. False when it stays taken that long. */
bool vgi_region_file_lock(struct vgi_region_file *file, unsigned milliseconds);
void vgi_region_file_unlock(const struct vgi_region_file *file);

/* A byte for each slot, which its owner holds locked: the kernel drops it with the last descriptor and mapping of the
 * open file, so at the process's end or exec, in whatever PID namespace (children of a fork keep it a while). */
bool vgi_region_file_hold_slot(const struct vgi_region_file *file, unsigned slot);
bool vgi_region_file_slot_is_let_go(const struct vgi_region_file *file, unsigned slot);

/* ---- src/prim/limits_page_file.c ---- */

enum vgi_page_state { VGI_PAGE_ABSENT, VGI_PAGE_SOUND, VGI_PAGE_BAD /* `reason` says why */ };

/* Finds the limits page beside this library and maps it, read-only. */
enum vgi_page_state vgi_limits_page_open(const struct vg_limits_page **page, char *reason, size_t reason_size);
void vgi_limits_page_close(const struct vg_limits_page *page);

/* ---- src/prim/message.c ---- */

enum vgi_level { VGI_ERROR = 1, VGI_WARNING = 2, VGI_INFO = 3, VGI_DEBUG = 4 };

/* One line on stderr, as long as the level is wanted. Allocates nothing, takes no lock. */
void vgi_say(enum vgi_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
