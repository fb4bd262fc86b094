/* A region whose every byte a tenant may have written: records of an offset (4 bytes) and a word (8) lie over a region
 * as it is laid out. Whatever stands there, nothing reads or writes outside of it and everything comes to an end; and
 * what is charged within a limit is charged. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/quota.h"
#include "core/region.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define RECORD 12
#define HEADS 32
#define TRIES 64

static bool gone_if_even(void *context, unsigned slot, const struct vgi_identity *owner) {
    (void)context, (void)slot;
    return owner->pid % 2 == 0;
}

static void judge_heads(const uint8_t *data, size_t size) {
    struct vgi_region_heads heads = {.size = 0};
    if (size >= HEADS) {
        memcpy(&heads.size, data, 8);
        memcpy(&heads.magic, data + 8, 4);
        memcpy(&heads.major, data + 12, 4);
        memcpy(&heads.minor, data + 16, 4);
        memcpy(&heads.extension_magic, data + 16, 8);
        memcpy(&heads.extension_size, data + 24, 8);
    }
    if (vgi_region_fault(&heads) == NULL && heads.size < VG_FILE_BYTES)
        abort();
}

static struct vg_region *make_region(const uint8_t *data, size_t size) {
    static struct vg_region *laid_out, *region;
    struct vgi_limits limits = {.any_memory = false};
    if (laid_out == NULL) {
        laid_out = calloc(1, VG_FILE_BYTES);
        region = malloc(VG_FILE_BYTES);
        if (laid_out == NULL || region == NULL)
            abort();
        vgi_region_lay_out(laid_out, &limits, 1);
    }
    memcpy(region, laid_out, VG_FILE_BYTES);
    for (size_t at = 0; at + RECORD <= size; at += RECORD) {
        uint32_t offset = 0;
        memcpy(&offset, data + at, 4);
        memcpy((unsigned char *)region + offset % (VG_FILE_BYTES - 8), data + at + 4, 8);
    }
    return region;
}

/* As a process does it: waits are tries here. */
static void charge_and_give_back(struct vg_region *region, unsigned slot, unsigned card) {
    static uint64_t ticket;
    uint64_t own = (uint64_t)slot << 36 | (++ticket & 0xfffffff);
    enum vgi_charge result = VGI_RECOMPUTING;
    for (int i = 0; i < TRIES && !vgi_quota_recompute(region, card, own); i++)
        (void)vgi_quota_take_over(region, card, own, vgi_quota_word(region, card));
    for (int i = 0; i < TRIES && result == VGI_RECOMPUTING; i++)
        result = vgi_quota_charge(region, slot, card, VGI_KIND_DATA, 4096, (uint64_t)1 << 40);
    if (result == VGI_CHARGED)
        (void)vgi_quota_give_back(region, slot, card, VGI_KIND_DATA, 4096);
    (void)vgi_quota_used(region, card);
    (void)vgi_quota_is_inexact(region, card);
    vgi_quota_leave(region, slot, card);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct vgi_judge judge = {NULL, gone_if_even};
    struct vgi_identity self = {.pid = 4711, .start_time = 3, .pid_namespace = 5};
    struct vgi_limits limits = {.memory_bytes = {1}, .any_memory = true};
    uint32_t cards = 0;
    judge_heads(data, size);
    struct vg_region *region = make_region(data, size);
    if (vgi_region_find_card(region, "GPU-11111111-2222-3333-4444-000000000000") >= VG_MAX_CARDS ||
        vgi_region_add_card(region, "GPU-11111111-2222-3333-4444-000000000000") >= VG_MAX_CARDS)
        abort();
    vgi_region_adopt_limits(region, &limits);
    int slot = vgi_region_claim(region, &self, &judge, &cards);
    if (slot >= VG_MAX_SLOTS)
        abort();
    for (unsigned card = 0; slot >= 0 && card < VG_MAX_CARDS; card++)
        charge_and_give_back(region, (unsigned)slot, card);
    (void)vgi_region_reclaim(region, &judge, 0, VG_MAX_SLOTS);
    if (slot >= 0)
        vgi_region_leave(region, (unsigned)slot);
    return 0;
}
