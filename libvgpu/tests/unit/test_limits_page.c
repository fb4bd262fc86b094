/* The limits page's rules: each field broken in turn, changes under way, and a fuzzer. */
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

#include "check.h"
#include "core/limits_page.h"

#define UUID_0 "GPU-11111111-2222-3333-4444-000000000000"
#define UUID_1 "GPU-11111111-2222-3333-4444-000000000001"

static struct vg_limits_page sound_page(void) {
    struct vg_limits_page page = {.magic = VG_LIMITS_MAGIC,
                                  .version = VG_LIMITS_VERSION,
                                  .size = VG_LIMITS_PAGE_BYTES,
                                  .sequence = 8,
                                  .priority = 1,
                                  .card_count = 2,
                                  .region_file = "/usr/local/vgpu/slice.cache",
                                  .cards = {{.uuid = UUID_0, .memory_limit_bytes = 1000, .cores_percent = 30},
                                            {.uuid = UUID_1, .memory_limit_bytes = 2000, .cores_percent = 100}}};
    return page;
}

static void test_a_sound_page(void) {
    struct vg_limits_page page = sound_page(), copy;
    CHECK(vgi_limits_page_copy(&page, &copy));
    CHECK(memcmp(&page, &copy, sizeof page) == 0);
    CHECK(vgi_limits_page_fault(&copy) == NULL);
    CHECK(vgi_limits_page_card(&copy, UUID_0) == &copy.cards[0]);
    CHECK(vgi_limits_page_card(&copy, "gpu-11111111-2222-3333-4444-000000000001") == &copy.cards[1]);
    CHECK(vgi_limits_page_card(&copy, "GPU-11111111-2222-3333-4444-00000000000") == NULL);
    CHECK(vgi_limits_page_card(&copy, "") == NULL);
    page.card_count = 0;
    memset(page.cards, 0, sizeof page.cards);
    CHECK(vgi_limits_page_fault(&page) == NULL); /* names no card: gives nothing on any */
    CHECK(vgi_limits_page_card(&page, "") == NULL);
}

/* One byte of a sound page set to a value that its field cannot have. */
static const struct {
    const char *what;
    size_t offset;
    unsigned char value;
} broken[] = {
    {"magic", offsetof(struct vg_limits_page, magic), 'X'},
    {"magic's end", offsetof(struct vg_limits_page, magic) + 7, '2'},
    {"version", offsetof(struct vg_limits_page, version), 2},
    {"size", offsetof(struct vg_limits_page, size) + 1, 0x20},
    {"control", offsetof(struct vg_limits_page, control), 2},
    {"control's end", offsetof(struct vg_limits_page, control) + 3, 1},
    {"policy", offsetof(struct vg_limits_page, policy), 3},
    {"card_count of 17", offsetof(struct vg_limits_page, card_count), 17},
    {"card_count of four billion", offsetof(struct vg_limits_page, card_count) + 3, 0xff},
    {"card_count that leaves one out", offsetof(struct vg_limits_page, card_count), 1},
    {"card_count that counts one too many", offsetof(struct vg_limits_page, card_count), 3},
    {"reserved", offsetof(struct vg_limits_page, reserved) + 15, 1},
    {"reserved_tail", offsetof(struct vg_limits_page, reserved_tail), 1},
    {"reserved_tail's end", VG_LIMITS_PAGE_BYTES - 1, 1},
    {"a relative region file", offsetof(struct vg_limits_page, region_file), 'u'},
    {"no region file", offsetof(struct vg_limits_page, region_file), 0},
    {"bytes after the region file", offsetof(struct vg_limits_page, region_file) + 100, 'x'},
    {"a card without uuid", offsetof(struct vg_limits_page, cards), 0},
    {"a uuid with a control character", offsetof(struct vg_limits_page, cards), '\n'},
    {"a uuid beyond ASCII", offsetof(struct vg_limits_page, cards), 0xe9},
    {"a uuid without end", offsetof(struct vg_limits_page, cards) + 95, 'x'},
    {"two cards alike", offsetof(struct vg_limits_page, cards) + 39, '1'},
    {"0 percent", offsetof(struct vg_limits_page, cards[0].cores_percent), 0},
    {"101 percent", offsetof(struct vg_limits_page, cards[0].cores_percent), 101},
    {"256 percent more", offsetof(struct vg_limits_page, cards[0].cores_percent) + 1, 1},
    {"unknown flag", offsetof(struct vg_limits_page, cards[1].flags), 2},
    {"unknown high flag", offsetof(struct vg_limits_page, cards[1].flags) + 7, 0x80},
    {"a card beyond the count", offsetof(struct vg_limits_page, cards[15].context_bytes), 1},
};

static void test_each_field_broken(void) {
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        struct vg_limits_page page = sound_page();
        ((unsigned char *)&page)[broken[i].offset] = broken[i].value;
        const char *fault = vgi_limits_page_fault(&page);
        CHECK_THAT(fault != NULL && *fault != '\0', broken[i].what);
    }
    struct vg_limits_page page = sound_page();
    memset(page.region_file, 'x', sizeof page.region_file);
    page.region_file[0] = '/';
    CHECK(vgi_limits_page_fault(&page) != NULL); /* no end */
    page.region_file[511] = '\0';
    CHECK(vgi_limits_page_fault(&page) == NULL);
    memset(&page, 0, sizeof page);
    CHECK(vgi_limits_page_fault(&page) != NULL);
    memset(&page, 0xff, sizeof page);
    CHECK(vgi_limits_page_fault(&page) != NULL);
}

static void test_a_change_under_way(void) {
    struct vg_limits_page page = sound_page(), copy;
    page.sequence = 9;
    page.cards[0].memory_limit_bytes = 5;
    CHECK(!vgi_limits_page_copy(&page, &copy)); /* also for ever: who asks decides how long to wait */
    CHECK(vgi_limits_page_fault(&copy) == NULL);
    CHECK_EQUAL(copy.cards[0].memory_limit_bytes, 5);
}

/* A writer changes both limits and the context bytes to one number over and over. */
static struct vg_limits_page shared;
static _Atomic bool stop_writing;

static void *write_on(void *unused) {
    for (uint64_t round = 1; !atomic_load(&stop_writing); round++) {
        atomic_fetch_add(&shared.sequence, 1);
        for (int i = 0; i < 2; i++) {
            atomic_store_explicit(&shared.cards[i].memory_limit_bytes, round, memory_order_release);
            atomic_store_explicit(&shared.cards[1 - i].context_bytes, round, memory_order_release);
        }
        atomic_fetch_add(&shared.sequence, 1);
    }
    return unused;
}

static void test_copies_are_never_torn(void) {
    struct vg_limits_page copy;
    pthread_t writer;
    unsigned settled = 0;
    shared = sound_page();
    for (int i = 0; i < 2; i++) {
        shared.cards[i].memory_limit_bytes = 0;
        shared.cards[i].context_bytes = 0;
    }
    if (!CHECK(pthread_create(&writer, NULL, write_on, NULL) == 0))
        return;
    while (settled < 2000) {
        if (!vgi_limits_page_copy(&shared, &copy))
            continue;
        settled++;
        uint64_t round = copy.cards[0].memory_limit_bytes;
        CHECK(copy.cards[1].memory_limit_bytes == round && copy.cards[0].context_bytes == round &&
              copy.cards[1].context_bytes == round);
    }
    atomic_store(&stop_writing, true);
    pthread_join(writer, NULL);
}

/* Whatever the bytes: a fault, or a page whose every value is in range. */
static void check_any(const struct vg_limits_page *page) {
    struct vg_limits_page copy;
    (void)vgi_limits_page_copy(page, &copy);
    (void)vgi_limits_page_card(&copy, UUID_0);
    if (vgi_limits_page_fault(&copy) != NULL)
        return;
    CHECK(copy.card_count <= VG_LIMITS_MAX_CARDS && copy.region_file[0] == '/');
    CHECK(strnlen(copy.region_file, sizeof copy.region_file) < sizeof copy.region_file);
    for (unsigned i = 0; i < copy.card_count; i++)
        CHECK(copy.cards[i].cores_percent >= 1 && copy.cards[i].cores_percent <= 100 &&
              vgi_limits_page_card(&copy, copy.cards[i].uuid) == &copy.cards[i]);
}

static void fuzz(void) {
    uint64_t state = 20261130;
    for (int round = 0; round < 60000; round++) {
        struct vg_limits_page page = sound_page();
        unsigned char *bytes = (unsigned char *)&page;
        for (uint64_t changes = 1 + check_random(&state) % 6; changes > 0; changes--) {
            size_t reach = check_random(&state) % 2 ? 832 : sizeof page; /* mostly where there is something */
            size_t offset = check_random(&state) % reach;
            bytes[offset] = (unsigned char)(check_random(&state) >> (check_random(&state) % 2 ? 56 : 63));
        }
        check_any(&page);
    }
    for (int round = 0; round < 3000; round++) { /* any bytes at all, some behind a sound head */
        struct vg_limits_page page;
        for (size_t i = 0; i < sizeof page / 8; i++) {
            uint64_t word = check_random(&state);
            memcpy((char *)&page + i * 8, &word, 8);
        }
        if (round % 2 == 0) {
            struct vg_limits_page sound = sound_page();
            memcpy(&page, &sound, offsetof(struct vg_limits_page, cards));
        }
        check_any(&page);
    }
}

int main(void) {
    test_a_sound_page();
    test_each_field_broken();
    test_a_change_under_way();
    test_copies_are_never_torn();
    fuzz();
    return check_done();
}
