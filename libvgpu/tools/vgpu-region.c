/* vgpu-region: prints, checks and repairs a region file. Printing and checking are plain reads: a file that shrinks or
 * lies harms nothing. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/region.h"
#include "region_repair.h"
#include "vgpu/shm_layout.h"

static const char usage_text[] =
    "usage: vgpu-region print|check|repair FILE [--json]\n"
    "\n"
    "  print   cards with limits and use, and the processes that hold them\n"
    "  check   say whether the file is sound: layout, clamps, sums\n"
    "  repair  clear the slots of processes that ended, make the sums anew, bring words within their bounds;\n"
    "          does nothing while a process uses the file: those who use it keep it right themselves\n"
    "\n"
    "With --json each prints one object on stdout; check then puts its faults on stderr.\n"
    "exit status: 0 done and sound, 1 the file is not sound (each fault on a line) or of another layout, 2 wrong use,\n"
    "3 it cannot be read or written, 4 not repaired: it is in use\n";

/* Reads what is there of the file; the rest stays zero. */
static bool read_file(const char *path, char *bytes, uint64_t *size) {
    struct stat status;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0 || fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
        fprintf(stderr, "vgpu-region: %s: %s\n", path, file < 0 ? strerror(errno) : "no regular file");
        if (file >= 0)
            close(file);
        return false;
    }
    size_t filled = 0;
    for (;;) {
        ssize_t got = pread(file, bytes + filled, VG_FILE_BYTES - filled, (off_t)filled);
        if (got <= 0 || (filled += (size_t)got) == VG_FILE_BYTES)
            break;
    }
    close(file);
    *size = (uint64_t)status.st_size;
    return true;
}

static struct vgi_region_heads heads_of(const char *bytes, uint64_t size) {
    struct vgi_region_heads heads = {.size = size};
    memcpy(&heads.magic, bytes, sizeof heads.magic);
    memcpy(&heads.major, bytes + 4, sizeof heads.major);
    memcpy(&heads.minor, bytes + 8, sizeof heads.minor);
    memcpy(&heads.extension_magic, bytes + VG_EXTENSION_OFFSET, sizeof heads.extension_magic);
    memcpy(&heads.extension_size, bytes + VG_EXTENSION_OFFSET + 8, sizeof heads.extension_size);
    return heads;
}

static void print_text(const char *text, size_t size) {
    putchar('"');
    for (size_t i = 0; i < size && text[i] != '\0'; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c >= 0x7f || c == '"' || c == '\\')
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static bool card_is_named(struct vg_region *region, unsigned card) {
    return region->uuids[card][0] != '\0' || vg_card_used(region, card) != 0;
}

static void print_json(struct vg_region *region, const char *fault, uint64_t size) {
    bool first = true;
    printf("{\"size\": %llu, \"version\": \"%u.%u\", \"fault\": ", (unsigned long long)size, region->major,
           region->minor);
    if (fault == NULL)
        printf("null");
    else
        print_text(fault, strlen(fault));
    printf(", \"priority\": %d, \"recent_kernel\": %d, \"utilisation_switch\": %d, \"last_kernel_time\": %llu, "
           "\"cards\": [",
           region->priority, region->recent_kernel, region->utilisation_switch,
           (unsigned long long)region->last_kernel_time);
    for (unsigned card = 0; card < VG_MAX_CARDS; card++) {
        if (!card_is_named(region, card))
            continue;
        printf("%s{\"index\": %u, \"uuid\": ", first ? "" : ", ", card);
        print_text(region->uuids[card], VG_UUID_BYTES);
        printf(", \"limit_bytes\": %llu, \"used_bytes\": %llu, \"cores_percent\": %llu}",
               (unsigned long long)region->limit[card], (unsigned long long)vg_card_used(region, card),
               (unsigned long long)region->sm_limit[card]);
        first = false;
    }
    printf("], \"processes\": [");
    first = true;
    for (unsigned i = 0; i < vg_slot_count(region); i++) {
        const struct vg_slot *slot = &region->slots[i];
        if (slot->pid == 0)
            continue;
        printf("%s{\"slot\": %u, \"pid\": %d, \"host_pid\": %d, \"status\": %d, \"used_bytes\": {", first ? "" : ", ",
               i, slot->pid, slot->host_pid, slot->status);
        bool first_card = true;
        for (unsigned card = 0; card < VG_MAX_CARDS; card++) {
            if (slot->used[card].total == 0)
                continue;
            printf("%s\"%u\": %llu", first_card ? "" : ", ", card, (unsigned long long)slot->used[card].total);
            first_card = false;
        }
        printf("}}");
        first = false;
    }
    printf("]}\n");
}

static void print_table(struct vg_region *region) {
    printf("layout %u.%u, priority %d, recent kernel %d\n", region->major, region->minor, region->priority,
           region->recent_kernel);
    for (unsigned card = 0; card < VG_MAX_CARDS; card++)
        if (card_is_named(region, card))
            printf("card %2u  %-40.40s  used %llu of %llu bytes, %llu%% of compute\n", card, region->uuids[card],
                   (unsigned long long)vg_card_used(region, card), (unsigned long long)region->limit[card],
                   (unsigned long long)region->sm_limit[card]);
    for (unsigned i = 0; i < vg_slot_count(region); i++) {
        const struct vg_slot *slot = &region->slots[i];
        if (slot->pid == 0)
            continue;
        printf("slot %4u  pid %d, status %d:", i, slot->pid, slot->status);
        for (unsigned card = 0; card < VG_MAX_CARDS; card++)
            if (slot->used[card].total != 0)
                printf(" card %u %llu", card, (unsigned long long)slot->used[card].total);
        printf("\n");
    }
}

static void complain(FILE *out, bool *sound, const char *format, long long value) {
    *sound = false;
    fprintf(out, format, value);
    fputc('\n', out);
}

static uint64_t leaving_on(const struct vg_region *region, unsigned card) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < vg_slot_count(region); i++)
        sum = vg_saturating_sum(sum, region->slots[i].used[card].leaving);
    return sum;
}

/* What no interrupted process can leave behind. Sums are compared unless they are marked. While processes
 * allocate, a difference may be of that moment. */
static bool check(struct vg_region *region, const char *fault, FILE *out) {
    bool sound = true;
    if (fault != NULL) {
        fprintf(out, "not to be used: %s\n", fault);
        return false;
    }
    for (unsigned card = 0; card < VG_MAX_CARDS; card++)
        if (region->uuids[card][VG_UUID_BYTES - 1] != '\0')
            complain(out, &sound, "the UUID of card %lld has no end", card);
    if (region->slot_count < 0 || region->slot_count > VG_MAX_SLOTS)
        complain(out, &sound, "slot count %lld is out of range", region->slot_count);
    bool busy = false;
    for (unsigned i = 0; i < vg_slot_count(region); i++) {
        if (region->slots[i].pid == 0 && region->slots[i].status != VG_SLOT_FREE)
            complain(out, &sound, "slot %lld has a status but no process", i);
    }
    for (unsigned card = 0; card < VG_MAX_CARDS; card++)
        busy = busy || (vg_extension_of(region)->sums[card].word & (VG_SUM_UNDER_WAY | VG_SUM_INEXACT)) != 0;
    for (unsigned card = 0; card < VG_MAX_CARDS && !busy; card++) {
        if (vg_add_up(region, card) + leaving_on(region, card) != vg_card_used(region, card))
            complain(out, &sound, "card %lld: its sum differs from its processes'", card);
    }
    if (busy)
        fprintf(out, "sums not compared: they may be too high until a process adds up again\n");
    return sound;
}

static const int exit_status[] = {[REPAIRED] = 0, [NOT_REPAIRABLE] = 1, [CANNOT_OPEN] = 3, [IN_USE] = 4};

int main(int argc, char **argv) {
    bool json = argc == 4 && strcmp(argv[3], "--json") == 0;
    bool repairing = argc > 1 && strcmp(argv[1], "repair") == 0;
    bool checking = argc > 1 && strcmp(argv[1], "check") == 0;
    uint64_t size = 0;
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        fputs(usage_text, stdout);
        return 0;
    }
    if ((argc != 3 && !json) || (!checking && !repairing && strcmp(argv[1], "print") != 0)) {
        fputs(usage_text, stderr);
        return 2;
    }
    if (repairing)
        return exit_status[repair_region(argv[2], json)];
    char *bytes = calloc(1, VG_FILE_BYTES);
    if (bytes == NULL || !read_file(argv[2], bytes, &size))
        return 3;
    struct vgi_region_heads heads = heads_of(bytes, size);
    struct vg_region *region = (struct vg_region *)bytes;
    const char *fault = vgi_region_fault(&heads);
    bool sound = fault == NULL;
    if (json)
        print_json(region, fault, size);
    if (checking)
        sound = check(region, fault, json ? stderr : stdout);
    if (!checking && !json && fault == NULL)
        print_table(region);
    if (!checking && fault != NULL)
        fprintf(stderr, "vgpu-region: %s: %s\n", argv[2], fault);
    if (checking && sound && !json)
        printf("sound\n");
    free(bytes);
    return sound ? 0 : 1;
}
