#include "region_repair.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/quota.h"
#include "core/region.h"
#include "vgpu/prim.h"

#define LOCK_MS 2000

struct owners {
    const struct vgi_region_file *file;
    uint64_t own_namespace;
    unsigned alive;
    int32_t first_alive;
};

/* As the library judges: an owner's lock tells it anywhere, its pid in its own PID namespace only. */
static bool is_gone(void *context, unsigned slot, const struct vgi_identity *owner) {
    struct owners *owners = context;
    bool gone = (owner->holds_lock && vgi_region_file_slot_is_let_go(owners->file, slot)) ||
                vgi_is_gone(owner, owners->own_namespace);
    if (!gone && owners->alive++ == 0)
        owners->first_alive = owner->pid;
    return gone;
}

/* Looks without changing anything. */
static void look_at_owners(struct vg_region *region, struct owners *owners) {
    for (unsigned i = 0; i < vg_slot_count(region); i++) {
        struct vgi_identity owner = vgi_region_owner(region, i);
        if (owner.pid != 0)
            (void)is_gone(owners, i, &owner);
    }
}

struct changes {
    unsigned slots_cleared, sums_corrected, words_corrected;
};

/* Slots that nobody owns hold nothing, and numbers lie within their bounds. */
static void correct_words(struct vg_region *region, struct changes *changes) {
    int32_t count = atomic_load(&region->slot_count);
    if (count != (int32_t)vg_slot_count(region)) {
        atomic_store(&region->slot_count, VG_MAX_SLOTS); /* all are looked at */
        changes->words_corrected++;
    }
    if (atomic_load(&region->device_count) > VG_MAX_CARDS) {
        atomic_store(&region->device_count, VG_MAX_CARDS);
        changes->words_corrected++;
    }
    for (unsigned card = 0; card < VG_MAX_CARDS; card++)
        if (region->uuids[card][VG_UUID_BYTES - 1] != '\0') {
            region->uuids[card][VG_UUID_BYTES - 1] = '\0';
            changes->words_corrected++;
        }
}

static void make_sums_anew(struct vg_region *region, struct changes *changes) {
    uint64_t ticket = (uint64_t)VG_MAX_SLOTS << 36 | (uint64_t)getpid();
    for (unsigned card = 0; card < VG_MAX_CARDS; card++) {
        uint64_t word = vgi_quota_word(region, card);
        if (!vgi_quota_recompute(region, card, ticket))
            (void)vgi_quota_take_over(region, card, ticket, word);
        changes->sums_corrected +=
            (word & (VG_SUM_UNDER_WAY | VG_SUM_INEXACT)) != 0 || (word & VG_USED_MAX) != vgi_quota_used(region, card);
    }
}

static enum repair_outcome repair_mapped(struct vgi_region_file *file, const char *path, bool json) {
    struct owners owners = {.file = file, .own_namespace = vgi_pid_namespace()};
    struct vgi_judge judge = {&owners, is_gone};
    struct changes changes = {.slots_cleared = 0};
    look_at_owners(file->region, &owners);
    if (owners.alive > 0) {
        fprintf(stderr, "vgpu-region: %s: %u processes use it (%d is one): they keep it right themselves\n", path,
                owners.alive, (int)owners.first_alive);
        return IN_USE;
    }
    correct_words(file->region, &changes);
    uint32_t cards = 0;
    changes.slots_cleared = vgi_region_clear_unowned(file->region, &judge, &cards);
    make_sums_anew(file->region, &changes);
    printf(json ? "{\"slots_cleared\": %u, \"sums_corrected\": %u, \"words_corrected\": %u}\n"
                : "%u slots cleared, %u sums corrected, %u other words corrected\n",
           changes.slots_cleared, changes.sums_corrected, changes.words_corrected);
    return REPAIRED;
}

static const char *fault_of(int descriptor, uint64_t size) {
    struct vgi_region_heads heads = {.size = size};
    uint32_t first[3] = {0};
    uint64_t extension[2] = {0};
    if (pread(descriptor, first, sizeof first, 0) < 0 ||
        pread(descriptor, extension, sizeof extension, VG_EXTENSION_OFFSET) < 0)
        return strerror(errno);
    heads.magic = (int32_t)first[0];
    heads.major = first[1];
    heads.minor = first[2];
    heads.extension_magic = extension[0];
    heads.extension_size = extension[1];
    return vgi_region_fault(&heads);
}

enum repair_outcome repair_region(const char *path, bool json) {
    struct stat status;
    int descriptor = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0 || fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
        fprintf(stderr, "vgpu-region: %s: %s\n", path, descriptor < 0 ? strerror(errno) : "no regular file");
        if (descriptor >= 0)
            close(descriptor);
        return CANNOT_OPEN;
    }
    struct vgi_region_file file = {
        .descriptor = descriptor, .device = (uint64_t)status.st_dev, .inode = (uint64_t)status.st_ino};
    snprintf(file.path, sizeof file.path, "%s", path);
    const char *fault = fault_of(descriptor, (uint64_t)status.st_size);
    enum repair_outcome outcome = CANNOT_OPEN;
    if (fault != NULL) {
        fprintf(stderr, "vgpu-region: %s: %s; the next process that uses the slice replaces it\n", path, fault);
        outcome = NOT_REPAIRABLE;
    } else if (!vgi_region_file_lock(&file, LOCK_MS)) {
        fprintf(stderr, "vgpu-region: %s: a process holds its lock\n", path);
        outcome = IN_USE;
    } else {
        void *mapped = mmap(NULL, VG_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        if (mapped != MAP_FAILED) {
            file.region = mapped;
            outcome = repair_mapped(&file, path, json);
            munmap(mapped, VG_FILE_BYTES);
        } else {
            fprintf(stderr, "vgpu-region: %s: %s\n", path, strerror(errno));
        }
        vgi_region_file_unlock(&file);
    }
    close(descriptor);
    return outcome;
}
