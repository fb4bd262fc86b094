#include "core/limits_page.h"

#include <string.h>
#include <strings.h>

#include "vgpu/shm_layout.h"

_Static_assert(VG_LIMITS_MAX_CARDS == VG_MAX_CARDS && VG_LIMITS_UUID_BYTES == VG_UUID_BYTES,
               "the region and the page hold the same cards");

#define WORDS (sizeof(struct vg_limits_page) / sizeof(uint64_t))

bool vgi_limits_page_copy(const struct vg_limits_page *page, struct vg_limits_page *copy) {
    uint64_t before = atomic_load_explicit(&page->sequence, memory_order_acquire);
    for (size_t i = 0; i < WORDS; i++) {
        uint64_t word = __atomic_load_n((const uint64_t *)(const void *)page + i, __ATOMIC_RELAXED);
        memcpy((char *)copy + i * sizeof word, &word, sizeof word);
    }
    atomic_thread_fence(memory_order_acquire);
    return before % 2 == 0 && atomic_load_explicit(&page->sequence, memory_order_relaxed) == before;
}

static bool is_zero(const char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != 0)
            return false;
    return true;
}

/* A text is not empty, and zeroes follow it to the end of its field. */
static bool is_text(const char *bytes, size_t room) {
    size_t length = strnlen(bytes, room);
    return length > 0 && length < room && is_zero(bytes + length, room - length);
}

static bool is_printable(const char *text, size_t room) {
    for (size_t i = 0; i < room && text[i] != '\0'; i++)
        if (text[i] < ' ' || text[i] > '~')
            return false;
    return true;
}

static const char *card_fault(const struct vg_limits_card *card) {
    uint64_t percent = atomic_load_explicit(&card->cores_percent, memory_order_relaxed);
    if (!is_text(card->uuid, sizeof card->uuid) || !is_printable(card->uuid, sizeof card->uuid))
        return "a card's uuid is no text";
    if (percent == 0 || percent > 100)
        return "a card's percent of compute is not from 1 to 100";
    if ((atomic_load_explicit(&card->flags, memory_order_relaxed) & ~(uint64_t)VG_LIMITS_CARD_WITHHELD) != 0)
        return "a card has flags that mean nothing";
    return NULL;
}

static const char *cards_fault(const struct vg_limits_page *copy) {
    for (unsigned i = 0; i < copy->card_count; i++) {
        const char *fault = card_fault(&copy->cards[i]);
        if (fault != NULL)
            return fault;
        if (vgi_limits_page_card(copy, copy->cards[i].uuid) != &copy->cards[i])
            return "two cards have the same uuid";
    }
    const struct vg_limits_card *rest = &copy->cards[copy->card_count];
    if (!is_zero((const char *)rest, (VG_LIMITS_MAX_CARDS - copy->card_count) * sizeof *rest))
        return "a card beyond the count of cards is not zero";
    return NULL;
}

const char *vgi_limits_page_fault(const struct vg_limits_page *copy) {
    if (copy->magic != VG_LIMITS_MAGIC)
        return "it is no limits page";
    if (copy->version != VG_LIMITS_VERSION)
        return "it has another version";
    if (copy->size != VG_LIMITS_PAGE_BYTES)
        return "it says that it has another size";
    if (copy->card_count > VG_LIMITS_MAX_CARDS)
        return "it has more than 16 cards";
    if (!is_zero(copy->reserved, sizeof copy->reserved) || !is_zero(copy->reserved_tail, sizeof copy->reserved_tail))
        return "a reserved byte is not zero";
    if (!is_text(copy->region_file, sizeof copy->region_file) || copy->region_file[0] != '/')
        return "its region file is no absolute path";
    if (atomic_load_explicit(&copy->policy, memory_order_relaxed) > VG_LIMITS_POLICY_DISABLE)
        return "its policy means nothing";
    if (atomic_load_explicit(&copy->control, memory_order_relaxed) > VG_LIMITS_CONTROL_DISABLED)
        return "its control word means nothing";
    return cards_fault(copy);
}

const struct vg_limits_card *vgi_limits_page_card(const struct vg_limits_page *page, const char *uuid) {
    for (unsigned i = 0; i < page->card_count && i < VG_LIMITS_MAX_CARDS; i++)
        if (strncasecmp(page->cards[i].uuid, uuid, sizeof page->cards[i].uuid) == 0)
            return &page->cards[i];
    return NULL;
}
