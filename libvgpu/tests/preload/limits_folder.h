/* A folder with the library and, beside it, the limits page: the test is the page's writer. */
#ifndef VGPU_TEST_LIMITS_FOLDER_H
#define VGPU_TEST_LIMITS_FOLDER_H

#include "limits_page_layout.h"
#include "sandbox.h"

#define CARD_0 "GPU-11111111-2222-3333-4444-000000000000"
#define CARD_1 "GPU-11111111-2222-3333-4444-000000000001"

struct limits_folder {
    char path[96];     /* holds a copy of libvgpu.so */
    char page[160];    /* path of the page; the file is not there until it is written */
    char preload[160]; /* LD_PRELOAD=... of the copy */
};

struct limits_folder limits_folder_make(const struct sandbox *sandbox);

/* A page for the sandbox's two cards and its region file. 0 MiB = no limit. */
struct vg_limits_page limits_page_of(const struct sandbox *sandbox, uint64_t mib_0, uint64_t mib_1);

/* Puts bytes in the page's place, under a new inode. */
void limits_page_write(const struct limits_folder *folder, const void *bytes, size_t size);

/* The page mapped for changes in place, and one such change. */
struct vg_limits_page *limits_page_open(const struct limits_folder *folder);
void limits_page_set_memory(struct vg_limits_page *page, unsigned card, uint64_t bytes);

#endif
