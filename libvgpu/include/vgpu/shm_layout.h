/* The shared region file: one per container, mapped by every process in it and read by the monitor on the host.
 *
 * Layout version 1.3: the first 2,008,952 bytes are version 1.2, kept byte for byte so that any monitor of that layout
 * reads it; a zero byte follows (files of that version end with it). Our extension comes after; nobody else reads it.
 * All fields have fixed width and native byte order. */
#ifndef VGPU_SHM_LAYOUT_H
#define VGPU_SHM_LAYOUT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define VG_REGION_MAGIC 19920718
#define VG_REGION_MAJOR 1u
#define VG_REGION_MINOR 3u

#define VG_MAX_CARDS 16
#define VG_MAX_SLOTS 1024
#define VG_UUID_BYTES 96

/* What a process holds on a card, in bytes. `total` is what monitors sum. */
struct vg_usage {
    _Atomic uint64_t context;
    _Atomic uint64_t module;
    _Atomic uint64_t data;
    _Atomic uint64_t offset;
    _Atomic uint64_t total;
    _Atomic uint64_t leaving; /* held, but shown no more: its process is in exit() (ours; unused in version 1.2) */
    _Atomic uint64_t provisional_made;    /* charges that may come back in part (ours, too): */
    _Atomic uint64_t provisional_settled; /* a refusal waits for those that are not settled */
};

struct vg_utilisation {
    _Atomic uint64_t decoder;
    _Atomic uint64_t encoder;
    _Atomic uint64_t sm;
    uint64_t unused[3];
};

enum vg_slot_status { VG_SLOT_FREE = 0, VG_SLOT_RUNNING = 1, VG_SLOT_SUSPENDED = 2 };

struct vg_slot {
    _Atomic int32_t pid; /* in the container's PID namespace; 0 = free */
    _Atomic int32_t host_pid;
    struct vg_usage used[VG_MAX_CARDS];
    _Atomic uint64_t monitor_used[VG_MAX_CARDS];
    struct vg_utilisation utilisation[VG_MAX_CARDS];
    _Atomic int32_t status; /* enum vg_slot_status */
    uint32_t padding;
    uint64_t unused[3];
};

struct vg_region {
    _Atomic int32_t magic;
    uint32_t major;
    uint32_t minor;
    int32_t sm_init_flag;
    uint64_t owner_pid;
    uint8_t lock_reserved[32]; /* a semaphore in other implementations; ours locks elsewhere */
    _Atomic uint64_t device_count;
    char uuids[VG_MAX_CARDS][VG_UUID_BYTES]; /* by NVML index, as `limit` and `used` */
    _Atomic uint64_t limit[VG_MAX_CARDS];    /* bytes; 0 = unlimited */
    _Atomic uint64_t sm_limit[VG_MAX_CARDS]; /* percent */
    struct vg_slot slots[VG_MAX_SLOTS];
    _Atomic int32_t slot_count; /* slots ever used: all in use lie below it */
    _Atomic int32_t utilisation_switch;
    _Atomic int32_t recent_kernel; /* 2 at a launch, counted down by the monitor; negative = wait */
    int32_t priority;
    _Atomic uint64_t last_kernel_time; /* seconds since the epoch */
    uint8_t postinit_reserved[32];
};

/* ---- our extension ---- */

#define VG_EXTENSION_OFFSET 2008960ull
#define VG_EXTENSION_MAGIC 0x3154584555504756ull /* "VGPUEXT1" */

/* Cached sum of the slots' totals on one card, alone on its cache line: every charge goes through it. The word is
 *   bits  0-47  bytes used; while the slots are added up anew, a ticket that names who does it
 *   bit   48    inexact: the bytes may be too many (never too few) until somebody adds up again
 *   bits 49-63  epoch; its lowest bit says that the slots are being added up: charges wait
 * src/core/quota.h says how it is used. */
struct vg_card_sum {
    _Atomic uint64_t word;
    uint64_t unused[7];
};

#define VG_USED_BITS 48
#define VG_USED_MAX ((1ull << VG_USED_BITS) - 1)
#define VG_SUM_INEXACT (1ull << VG_USED_BITS)
#define VG_SUM_UNDER_WAY (2ull << VG_USED_BITS)

/* What the processes of the container share for holding a card's share of compute: what launches write on one cache
 * line, what only the sampler writes on the next. */
struct vg_card_compute {
    _Atomic int64_t tokens_ns; /* device time that may still be granted; below zero = debt */
    _Atomic uint64_t refilled_at_ns;
    _Atomic uint64_t granted_until_ns;   /* when the work granted so far should be over */
    _Atomic uint64_t work_ns;            /* granted so far, as estimated */
    _Atomic uint64_t measuring_until_ns; /* someone runs a kernel that nobody knows yet, alone, at most until then */
    uint64_t unused_launch[3];
    _Atomic uint64_t scale; /* work costs this much / VGI_SCALE_ONE; 0 = 1 */
    _Atomic uint64_t
        mean_busy; /* means of the last seconds, parts per million of time: what NVML saw of the container */
    _Atomic uint64_t mean_work; /* and what was granted to it */
    uint64_t unused_sampler[5];
};

/* Who a slot belongs to. The slot's own pid goes to 0 when its process leaves; this one when the process is gone, so
 * that a thread that is late at exit does not meet another's account. */
struct vg_slot_owner {
    _Atomic uint64_t start_time; /* field 22 of /proc/<pid>/stat */
    _Atomic uint64_t pid_namespace;
    _Atomic int32_t pid;         /* 0 = free */
    _Atomic uint32_t holds_lock; /* 1: the owner holds the slot's byte of the file locked for as long as it lives */
    uint64_t unused;
};

struct vg_extension {
    uint64_t magic;
    uint64_t size;
    _Atomic uint64_t sampler_until_ns; /* the cards' load is sampled again after this: by whoever moves it on */
    _Atomic uint32_t sweep_cursor;     /* the slot that the next process to join looks at first */
    uint32_t unused_word;
    _Atomic uint64_t unblock_at_ns; /* a blocked container goes on then unless it is blocked again; 0 = never */
    uint64_t unused[3];
    struct vg_card_sum sums[VG_MAX_CARDS];
    struct vg_card_compute compute[VG_MAX_CARDS];
    struct vg_slot_owner owners[VG_MAX_SLOTS];
};

#define VG_FILE_BYTES (VG_EXTENSION_OFFSET + sizeof(struct vg_extension))

#define VG_AT(type, field, where) _Static_assert(offsetof(type, field) == (where), "layout 1.2: " #field)
VG_AT(struct vg_usage, total, 32);
VG_AT(struct vg_usage, leaving, 40);
_Static_assert(sizeof(struct vg_usage) == 64, "layout 1.2");
VG_AT(struct vg_utilisation, sm, 16);
_Static_assert(sizeof(struct vg_utilisation) == 48, "layout 1.2");
VG_AT(struct vg_slot, pid, 0);
VG_AT(struct vg_slot, host_pid, 4);
VG_AT(struct vg_slot, used, 8);
VG_AT(struct vg_slot, monitor_used, 1032);
VG_AT(struct vg_slot, utilisation, 1160);
VG_AT(struct vg_slot, status, 1928);
VG_AT(struct vg_slot, unused, 1936);
_Static_assert(sizeof(struct vg_slot) == 1960, "layout 1.2");
VG_AT(struct vg_region, magic, 0);
VG_AT(struct vg_region, major, 4);
VG_AT(struct vg_region, minor, 8);
VG_AT(struct vg_region, sm_init_flag, 12);
VG_AT(struct vg_region, owner_pid, 16);
VG_AT(struct vg_region, lock_reserved, 24);
VG_AT(struct vg_region, device_count, 56);
VG_AT(struct vg_region, uuids, 64);
VG_AT(struct vg_region, limit, 1600);
VG_AT(struct vg_region, sm_limit, 1728);
VG_AT(struct vg_region, slots, 1856);
VG_AT(struct vg_region, slot_count, 2008896);
VG_AT(struct vg_region, utilisation_switch, 2008900);
VG_AT(struct vg_region, recent_kernel, 2008904);
VG_AT(struct vg_region, priority, 2008908);
VG_AT(struct vg_region, last_kernel_time, 2008912);
VG_AT(struct vg_region, postinit_reserved, 2008920);
_Static_assert(sizeof(struct vg_region) == 2008952, "layout 1.2");
_Static_assert(VG_EXTENSION_OFFSET > sizeof(struct vg_region), "one zero byte follows layout 1.2");
_Static_assert(sizeof(struct vg_card_sum) == 64, "extension");
_Static_assert(sizeof(struct vg_card_compute) == 128, "extension");
_Static_assert(sizeof(struct vg_slot_owner) == 32, "extension");
VG_AT(struct vg_extension, sampler_until_ns, 16);
VG_AT(struct vg_extension, sweep_cursor, 24);
VG_AT(struct vg_slot_owner, pid, 16);
VG_AT(struct vg_card_compute, scale, 64);
VG_AT(struct vg_extension, sums, 64);
VG_AT(struct vg_extension, compute, 1088);
VG_AT(struct vg_extension, owners, 3136);
_Static_assert(sizeof(struct vg_extension) == 35904, "extension");
#undef VG_AT

static inline struct vg_extension *vg_extension_of(struct vg_region *region) {
    return (struct vg_extension *)((char *)region + VG_EXTENSION_OFFSET);
}

/* Slots that may be in use: never more than there are, whatever the file says. */
static inline unsigned vg_slot_count(const struct vg_region *region) {
    int32_t count = atomic_load_explicit(&region->slot_count, memory_order_acquire);
    return count < 0 ? 0 : count > VG_MAX_SLOTS ? VG_MAX_SLOTS : (unsigned)count;
}

/* As much as the sum can hold where nonsense in the file makes it more. */
static inline uint64_t vg_saturating_sum(uint64_t sum, uint64_t more) {
    return more > VG_USED_MAX - sum ? VG_USED_MAX : sum + more;
}

/* The slots' totals on a card. */
static inline uint64_t vg_add_up(const struct vg_region *region, unsigned card) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < vg_slot_count(region); i++)
        sum = vg_saturating_sum(sum, atomic_load(&region->slots[i].used[card].total));
    return sum;
}

/* Bytes that the container's processes hold on a card, for those who show it. An inexact sum may count processes that
 * are gone. */
static inline uint64_t vg_card_used(struct vg_region *region, unsigned card) {
    uint64_t word = atomic_load(&vg_extension_of(region)->sums[card].word);
    return (word & (VG_SUM_UNDER_WAY | VG_SUM_INEXACT)) != 0 ? vg_add_up(region, card) : word & VG_USED_MAX;
}

#endif
