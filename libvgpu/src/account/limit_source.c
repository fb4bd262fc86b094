#include "limit_source.h"

#include <stdio.h>
#include <string.h>

#include "account.h"
#include "env_names.h"
#include "vgpu/prim.h"

#define DEFAULT_REGION_PATH "/tmp/cudevshr.cache"

_Static_assert((int)VGI_POLICY_DEFAULT == (int)VG_LIMITS_POLICY_DEFAULT &&
                   (int)VGI_POLICY_FORCE == (int)VG_LIMITS_POLICY_FORCE &&
                   (int)VGI_POLICY_DISABLE == (int)VG_LIMITS_POLICY_DISABLE,
               "the page's policies are ours");

static const struct vg_limits_card unlimited = {.cores_percent = 100};

/* What a card gives that the page does not name. */
static const struct vg_limits_card nothing = {
    .memory_limit_bytes = 1, .cores_percent = 1, .flags = VG_LIMITS_CARD_WITHHELD};

/* What the environment says. */
static struct vg_limits_card environment_cards[VG_MAX_CARDS];
static _Atomic uint32_t environment_policy = VGI_POLICY_DEFAULT;
static _Atomic int32_t environment_priority = 1;

struct vgi_limit_words vgi_limit_words = {
    .memory_bytes = {[0 ... VG_MAX_CARDS - 1] = &unlimited.memory_limit_bytes},
    .cores_percent = {[0 ... VG_MAX_CARDS - 1] = &unlimited.cores_percent},
    .context_bytes = {[0 ... VG_MAX_CARDS - 1] = &unlimited.context_bytes},
    .flags = {[0 ... VG_MAX_CARDS - 1] = &unlimited.flags},
    .policy = &environment_policy,
    .priority = &environment_priority,
};

/* Mapped once and kept: the page is changed in place. */
static _Atomic(const struct vg_limits_page *) mapped_page;

static void follow_card(unsigned card, const struct vg_limits_card *words) {
    atomic_store(&vgi_limit_words.memory_bytes[card], &words->memory_limit_bytes);
    atomic_store(&vgi_limit_words.cores_percent[card], &words->cores_percent);
    atomic_store(&vgi_limit_words.context_bytes[card], &words->context_bytes);
    atomic_store(&vgi_limit_words.flags[card], &words->flags);
}

void vgi_limits_follow_region(struct vg_region *region, const struct vgi_limits *environment) {
    atomic_store(&environment_policy, (uint32_t)environment->policy);
    atomic_store(&environment_priority, environment->priority);
    atomic_store(&vgi_limit_words.policy, &environment_policy);
    atomic_store(&vgi_limit_words.priority, &environment_priority);
    for (unsigned card = 0; card < VG_MAX_CARDS; card++) {
        atomic_store(&environment_cards[card].memory_limit_bytes, environment->memory_bytes[card]);
        atomic_store(&environment_cards[card].cores_percent, environment->cores_percent[card]);
        follow_card(card, &environment_cards[card]);
        if (region != NULL) {
            atomic_store(&vgi_limit_words.memory_bytes[card], &region->limit[card]);
            atomic_store(&vgi_limit_words.cores_percent[card], &region->sm_limit[card]);
        }
    }
}

static void show_in_region(struct vg_region *region) {
    for (unsigned card = 0; card < VG_MAX_CARDS && card < atomic_load(&region->device_count); card++) {
        atomic_store(&region->limit[card], vgi_shown_limit(card));
        atomic_store(&region->sm_limit[card], vgi_cores_limit(card));
    }
    __atomic_store_n(&region->priority, vgi_priority(), __ATOMIC_RELAXED);
}

void vgi_limits_follow_page(const struct vg_limits_page *page, const char *const uuids[VG_MAX_CARDS],
                            struct vg_region *region) {
    atomic_store(&vgi_limit_words.policy, &page->policy);
    atomic_store(&vgi_limit_words.priority, &page->priority);
    for (unsigned card = 0; card < VG_MAX_CARDS; card++) {
        const struct vg_limits_card *words = uuids[card] == NULL ? NULL : vgi_limits_page_card(page, uuids[card]);
        follow_card(card, words != NULL ? words : &nothing);
    }
    if (region != NULL)
        show_in_region(region);
}

static bool is_disabled(const struct vg_limits_page *page) {
    return atomic_load(&page->control) == VG_LIMITS_CONTROL_DISABLED;
}

static void take_from_page(const struct vg_limits_page *page, struct vgi_found_limits *found) {
    found->page = page;
    found->disabled = is_disabled(page);
    vgi_read_settings(vgi_getenv, &found->limits);
    found->limits.policy = (enum vgi_policy)atomic_load(&page->policy);
    found->limits.priority = atomic_load(&page->priority);
}

bool vgi_find_limits(struct vgi_found_limits *found, char *reason, size_t reason_size) {
    const struct vg_limits_page *page = atomic_load(&mapped_page);
    *found = (struct vgi_found_limits){.page = NULL};
    if (page == NULL) {
        switch (vgi_limits_page_open(&page, reason, reason_size)) {
        case VGI_PAGE_BAD:
            return false;
        case VGI_PAGE_ABSENT:
            return vgi_read_limits(vgi_getenv, &found->limits, reason, reason_size);
        case VGI_PAGE_SOUND:
            break;
        }
        const struct vg_limits_page *first = NULL;
        if (!atomic_compare_exchange_strong(&mapped_page, &first, page)) {
            vgi_limits_page_close(page);
            page = first;
        }
    }
    take_from_page(page, found);
    return true;
}

const char *vgi_region_path(const struct vgi_found_limits *found) {
    if (found->page != NULL)
        return found->page->region_file;
    const char *path = vgi_getenv(VG_ENV_REGION_FILE);
    return path == NULL || *path == '\0' ? DEFAULT_REGION_PATH : path;
}

bool vgi_limits_are_valid(void) {
    static int32_t complained_pid;
    struct vgi_found_limits found;
    char reason[384];
    if (vgi_state() == VGI_ATTACHED)
        return true;
    int before = vgi_hold_off_cancel();
    bool valid = vgi_find_limits(&found, reason, sizeof reason);
    vgi_let_cancel(before);
    if (valid)
        return true;
    int32_t pid = vgi_own_pid();
    if (__atomic_exchange_n(&complained_pid, pid, __ATOMIC_RELAXED) != pid)
        vgi_say(VGI_ERROR, "CUDA is refused: %s", reason);
    return false;
}

uint64_t vgi_shown_limit_of(const char *uuid, unsigned index) {
    const struct vg_limits_page *page = atomic_load(&mapped_page);
    if (page == NULL)
        return vgi_shown_limit(index);
    if (is_disabled(page))
        return 0;
    const struct vg_limits_card *words = vgi_limits_page_card(page, uuid);
    if (words == NULL || (atomic_load(&words->flags) & VG_LIMITS_CARD_WITHHELD) != 0)
        return nothing.memory_limit_bytes;
    return atomic_load(&words->memory_limit_bytes);
}
