#include "limits_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (1024ull * 1024ull)

static void give_up(const char *what) {
    perror(what);
    exit(1);
}

static void copy_file(const char *from, const char *to) {
    char bytes[65536];
    ssize_t got;
    int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    if (in < 0 || out < 0)
        give_up(from);
    while ((got = read(in, bytes, sizeof bytes)) > 0)
        if (write(out, bytes, (size_t)got) != got)
            give_up(to);
    close(in);
    close(out);
}

struct limits_folder limits_folder_make(const struct sandbox *sandbox) {
    struct limits_folder made;
    char path[160];
    snprintf(made.path, sizeof made.path, "%s/vgpu", sandbox->directory);
    snprintf(made.page, sizeof made.page, "%s/" VG_LIMITS_DIRECTORY "/" VG_LIMITS_FILE, made.path);
    snprintf(made.preload, sizeof made.preload, "LD_PRELOAD=%s/libvgpu.so", made.path);
    snprintf(path, sizeof path, "%s/" VG_LIMITS_DIRECTORY, made.path);
    if (mkdir(made.path, 0755) != 0 || mkdir(path, 0755) != 0)
        give_up(path);
    snprintf(path, sizeof path, "%s/libvgpu.so", made.path);
    copy_file(VGPU_BINARY_DIR "/lib/libvgpu.so", path);
    return made;
}

struct vg_limits_page limits_page_of(const struct sandbox *sandbox, uint64_t mib_0, uint64_t mib_1) {
    struct vg_limits_page page = {
        .magic = VG_LIMITS_MAGIC,
        .version = VG_LIMITS_VERSION,
        .size = VG_LIMITS_PAGE_BYTES,
        .priority = 1,
        .card_count = 2,
        .cards = {{.uuid = CARD_0, .memory_limit_bytes = mib_0 * MIB, .cores_percent = 100},
                  {.uuid = CARD_1, .memory_limit_bytes = mib_1 * MIB, .cores_percent = 100}},
    };
    snprintf(page.region_file, sizeof page.region_file, "%s", sandbox->region);
    return page;
}

void limits_page_write(const struct limits_folder *folder, const void *bytes, size_t size) {
    char fresh[200];
    snprintf(fresh, sizeof fresh, "%s.new", folder->page);
    int file = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0 || write(file, bytes, size) != (ssize_t)size || fchmod(file, 0644) != 0 || close(file) != 0 ||
        rename(fresh, folder->page) != 0)
        give_up(fresh);
}

struct vg_limits_page *limits_page_open(const struct limits_folder *folder) {
    int file = open(folder->page, O_RDWR | O_CLOEXEC);
    void *mapped = mmap(NULL, VG_LIMITS_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || mapped == MAP_FAILED)
        give_up(folder->page);
    close(file);
    return mapped;
}

void limits_page_set_memory(struct vg_limits_page *page, unsigned card, uint64_t bytes) {
    atomic_fetch_add(&page->sequence, 1);
    atomic_store(&page->cards[card].memory_limit_bytes, bytes);
    atomic_fetch_add(&page->sequence, 1);
}
