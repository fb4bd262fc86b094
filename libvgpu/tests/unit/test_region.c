/* Layout, slots, reclaim, and a reader that no content of the file can harm. */
#include <stdlib.h>

#include "check.h"
#include "core/quota.h"
#include "core/region.h"

static struct vg_region *make_region(void) {
    struct vg_region *region = calloc(1, VG_FILE_BYTES);
    struct vgi_limits limits = {.memory_bytes = {1000, 2000}, .priority = 3};
    for (int card = 0; card < VG_MAX_CARDS; card++)
        limits.cores_percent[card] = 100;
    vgi_region_lay_out(region, &limits, 1234);
    return region;
}

static struct vgi_identity process(int32_t pid) {
    return (struct vgi_identity){.pid = pid, .start_time = (uint64_t)pid * 10, .pid_namespace = 1};
}

/* A judge with a list of pids that are gone; counts how often it is asked. */
struct graves {
    int32_t pids[8];
    int asked;
};

static bool is_gone(void *context, unsigned slot, const struct vgi_identity *owner) {
    struct graves *graves = context;
    (void)slot;
    graves->asked++;
    for (int i = 0; i < 8; i++)
        if (graves->pids[i] != 0 && graves->pids[i] == owner->pid)
            return true;
    return false;
}

static void add_up(struct vg_region *region, uint32_t cards) {
    static uint64_t ticket;
    for (unsigned card = 0; card < VG_MAX_CARDS; card++)
        if ((cards >> card & 1u) != 0 && !vgi_quota_recompute(region, card, ++ticket))
            CHECK(vgi_quota_take_over(region, card, ++ticket, vgi_quota_word(region, card)));
}

static void reclaim(struct vg_region *region, struct graves *graves) {
    struct vgi_judge judge = {graves, is_gone};
    add_up(region, vgi_region_reclaim(region, &judge, 0, VG_MAX_SLOTS));
}

static int claim(struct vg_region *region, const struct vgi_identity *self, struct graves *graves) {
    struct vgi_judge judge = {graves, is_gone};
    uint32_t cards = 0;
    int slot = vgi_region_claim(region, self, &judge, &cards);
    add_up(region, cards);
    return slot;
}

static void test_fresh(void) {
    struct vg_region *region = make_region();
    const unsigned char *bytes = (const unsigned char *)region;
    CHECK_EQUAL(region->magic, 19920718);
    CHECK(region->major == 1 && region->minor == 3);
    CHECK(region->limit[0] == 1000 && region->limit[1] == 2000 && region->limit[2] == 0);
    CHECK_EQUAL(region->utilisation_switch, 1);
    CHECK_EQUAL(region->recent_kernel, 2);
    CHECK_EQUAL(region->priority, 3);
    CHECK_EQUAL(region->last_kernel_time, 1234);
    CHECK_EQUAL(bytes[2008952], 0); /* files of layout 1.2 end with one zero byte */
    free(region);
}

static void test_faults(void) {
    static const struct vgi_region_heads sound = {
        VG_FILE_BYTES, VG_REGION_MAGIC, 1, 3, VG_EXTENSION_MAGIC, sizeof(struct vg_extension)};
    struct vgi_region_heads heads = sound;
    CHECK(vgi_region_fault(&heads) == NULL);
    heads.size = 2008951;
    CHECK(vgi_region_fault(&heads) != NULL);
    heads = sound, heads.size = 2008953;
    CHECK(vgi_region_fault(&heads) != NULL);
    heads = sound, heads.magic = 0;
    CHECK(vgi_region_fault(&heads) != NULL);
    heads = sound, heads.major = 2;
    CHECK(vgi_region_fault(&heads) != NULL);
    heads = sound, heads.minor = 1;
    CHECK(vgi_region_fault(&heads) != NULL);
    heads = sound, heads.extension_magic ^= 1;
    CHECK(vgi_region_fault(&heads) != NULL);
    heads = sound, heads.extension_size++;
    CHECK(vgi_region_fault(&heads) != NULL);
    heads = sound, heads.size = UINT64_MAX;
    CHECK(vgi_region_fault(&heads) == NULL);
}

static void test_slots_are_fixed_and_reused(void) {
    struct vg_region *region = make_region();
    struct graves nobody = {.asked = 0}, graves = {.pids = {101}};
    struct vgi_identity a = process(100), b = process(101), c = process(102), d = process(103);
    CHECK_EQUAL(claim(region, &a, &nobody), 0);
    CHECK_EQUAL(claim(region, &b, &nobody), 1);
    CHECK_EQUAL(claim(region, &c, &nobody), 2);
    CHECK_EQUAL(vgi_quota_charge(region, 1, 0, VGI_KIND_DATA, 600, 1000), VGI_CHARGED);
    CHECK_EQUAL(vgi_quota_charge(region, 2, 0, VGI_KIND_DATA, 100, 1000), VGI_CHARGED);
    region->slots[1].utilisation[0].sm = 55;
    reclaim(region, &graves);
    CHECK_EQUAL(region->slots[1].pid, 0);
    CHECK_EQUAL(region->slots[1].status, VG_SLOT_FREE);
    CHECK_EQUAL(region->slots[1].used[0].total, 0);
    CHECK_EQUAL(region->slots[1].used[0].data, 0);
    CHECK_EQUAL(region->slots[1].utilisation[0].sm, 0);
    CHECK_EQUAL(region->slots[2].pid, 102); /* nobody moved */
    CHECK_EQUAL(vgi_quota_used(region, 0), 100);
    CHECK(!vgi_quota_is_inexact(region, 0));
    CHECK_EQUAL(vg_slot_count(region), 3);
    CHECK_EQUAL(claim(region, &d, &nobody), 1);
    CHECK_EQUAL(region->slots[1].status, VG_SLOT_RUNNING);
    CHECK_EQUAL(vgi_region_owner(region, 1).start_time, 1030);
    free(region);
}

/* Who leaves is shown nowhere, but what it holds stays charged, and its slot is nobody else's, until it is gone. */
static void test_leaving(void) {
    struct vg_region *region = make_region();
    struct graves nobody = {.asked = 0}, graves = {.pids = {100}};
    struct vgi_identity a = process(100), b = process(101);
    CHECK_EQUAL(claim(region, &a, &nobody), 0);
    CHECK_EQUAL(vgi_quota_charge(region, 0, 1, VGI_KIND_DATA, 600, 2000), VGI_CHARGED);
    CHECK_EQUAL(vgi_quota_charge(region, 0, 1, VGI_KIND_CONTEXT, 60, 2000), VGI_CHARGED);
    for (unsigned card = 0; card < VG_MAX_CARDS; card++)
        vgi_quota_leave(region, 0, card);
    vgi_region_leave(region, 0);
    CHECK_EQUAL(vg_card_used(region, 1), 0);
    CHECK_EQUAL(vgi_quota_charge(region, 0, 1, VGI_KIND_DATA, 1341, 2000), VGI_UNSURE);
    CHECK(vgi_quota_recompute(region, 1, 1));
    CHECK_EQUAL(vgi_quota_charge(region, 0, 1, VGI_KIND_DATA, 1341, 2000), VGI_REFUSED);
    CHECK(region->slots[0].pid == 0 && region->slots[0].status == VG_SLOT_FREE);
    const struct vg_usage *used = &region->slots[0].used[1];
    CHECK(used->total == 0 && used->data == 0 && used->context == 0);
    CHECK_EQUAL(vgi_quota_charge(region, 0, 1, VGI_KIND_DATA, 5, 2000), VGI_CHARGED); /* a late thread */
    CHECK_EQUAL(claim(region, &b, &nobody), 1);
    reclaim(region, &graves);
    CHECK_EQUAL(vgi_quota_used(region, 1), 0);
    CHECK_EQUAL(region->slots[1].pid, 101);
    b = process(102);
    CHECK_EQUAL(claim(region, &b, &nobody), 0);
    free(region);
}

/* A pid names one process: whoever had ours before is gone, be it by exec (same start time) or long ago. */
static void test_former_selves_go(void) {
    struct vg_region *region = make_region();
    struct graves nobody = {.asked = 0};
    struct vgi_identity self = process(100), later = self, other = process(100);
    later.start_time++;
    other.pid_namespace++;
    CHECK_EQUAL(claim(region, &self, &nobody), 0);
    CHECK_EQUAL(vgi_quota_charge(region, 0, 0, VGI_KIND_DATA, 1000, 1000), VGI_CHARGED);
    CHECK_EQUAL(claim(region, &other, &nobody), 1); /* the same number in another namespace is someone else */
    CHECK_EQUAL(vgi_quota_used(region, 0), 1000);
    CHECK_EQUAL(claim(region, &self, &nobody), 0);
    CHECK_EQUAL(vgi_quota_used(region, 0), 0);
    CHECK_EQUAL(claim(region, &later, &nobody), 0);
    CHECK_EQUAL(vgi_region_owner(region, 0).start_time, later.start_time);
    free(region);
}

/* case SCL-02: joining asks about a few, however many there are; only a full table is looked through. */
static void test_full_table(void) {
    struct vg_region *region = make_region();
    struct graves nobody = {.asked = 0};
    for (int32_t i = 0; i < VG_MAX_SLOTS; i++) {
        struct vgi_identity self = process(1000 + i);
        int before = nobody.asked;
        CHECK_EQUAL(claim(region, &self, &nobody), i);
        CHECK(nobody.asked - before <= 4);
    }
    struct vgi_identity late = process(5);
    CHECK_EQUAL(claim(region, &late, &nobody), -1);
    struct graves graves = {.pids = {1500}};
    CHECK_EQUAL(claim(region, &late, &graves), 500);
    free(region);
}

/* The dead are found by those who join, a few at a time, without anybody's being refused. */
static void test_joining_sweeps_in_turn(void) {
    struct vg_region *region = make_region();
    struct graves graves = {.pids = {1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007}};
    struct graves nobody = {.asked = 0};
    for (int32_t i = 0; i < 20; i++) {
        struct vgi_identity self = process(1000 + i);
        CHECK_EQUAL(claim(region, &self, &nobody), i);
        CHECK_EQUAL(vgi_quota_charge(region, (unsigned)i, 0, VGI_KIND_DATA, 10, 1000), VGI_CHARGED);
    }
    for (int32_t i = 0; i < 6; i++) {
        struct vgi_identity self = process(2000 + i);
        CHECK(claim(region, &self, &graves) < 22);
    }
    CHECK_EQUAL(vgi_quota_used(region, 0), 120);
    free(region);
}

/* Killed between slot and sum, or between sum and slot: after the reclaim the sum is what the living hold. */
static void test_killed_between_counters(void) {
    for (int step = 0; step < 4; step++) {
        struct vg_region *region = make_region();
        struct vgi_identity alive = process(100), dead = process(200);
        struct graves nobody = {.asked = 0}, graves = {.pids = {200}};
        CHECK(claim(region, &alive, &nobody) == 0 && claim(region, &dead, &nobody) == 1);
        CHECK_EQUAL(vgi_quota_charge(region, 0, 0, VGI_KIND_DATA, 300, 1000), VGI_CHARGED);
        if (step >= 1)
            region->slots[1].used[0].total += 500;
        if (step >= 2)
            vg_extension_of(region)->sums[0].word += 500;
        if (step >= 3)
            region->slots[1].used[0].data += 500;
        reclaim(region, &graves);
        CHECK_EQUAL(vgi_quota_used(region, 0), 300);
        free(region);
    }
}

/* Who cleared a dead slot was killed before it added up: the mark stands until somebody does. */
static void test_killed_while_reclaiming(void) {
    struct vg_region *region = make_region();
    struct vgi_identity dead = process(200);
    struct graves nobody = {.asked = 0}, graves = {.pids = {200}};
    struct vgi_judge judge = {&graves, is_gone};
    CHECK_EQUAL(claim(region, &dead, &nobody), 0);
    CHECK_EQUAL(vgi_quota_charge(region, 0, 0, VGI_KIND_DATA, 300, 1000), VGI_CHARGED);
    CHECK_EQUAL(vgi_region_reclaim(region, &judge, 0, VG_MAX_SLOTS), 1);
    CHECK(vgi_quota_is_inexact(region, 0));
    CHECK_EQUAL(vgi_quota_used(region, 0), 300); /* too much, never too little */
    add_up(region, 1);
    CHECK(!vgi_quota_is_inexact(region, 0));
    CHECK_EQUAL(vgi_quota_used(region, 0), 0);
    free(region);
}

static void test_limits_are_adopted_only_where_none_is(void) {
    struct vg_region *region = make_region();
    struct vgi_limits limits = {.memory_bytes = {5, 5, 5}, .cores_percent = {20, 100}};
    vgi_region_adopt_limits(region, &limits);
    CHECK_EQUAL(region->limit[0], 1000);
    CHECK_EQUAL(region->limit[1], 2000);
    CHECK_EQUAL(region->limit[2], 5);
    CHECK_EQUAL(region->sm_limit[0], 20);
    CHECK_EQUAL(region->sm_limit[1], 100);
    free(region);
}

static void test_cards(void) {
    struct vg_region *region = make_region();
    char name[32];
    CHECK_EQUAL(vgi_region_find_card(region, "GPU-a"), -1);
    for (int i = 0; i < VG_MAX_CARDS; i++) {
        snprintf(name, sizeof name, "GPU-%c", 'a' + i);
        CHECK_EQUAL(vgi_region_add_card(region, name), i);
    }
    CHECK_EQUAL(vgi_region_add_card(region, "GPU-z"), -1);
    CHECK_EQUAL(vgi_region_find_card(region, "gpu-C"), 2);
    CHECK_EQUAL(region->device_count, 16);
    free(region);
}

/* Any bytes in the file: no crash, no hang, and the sums never make room that nonsense claims to use. */
static void fuzz(void) {
    uint64_t state = 42;
    struct graves nobody = {.asked = 0};
    struct vg_region *pristine = make_region(), *region = malloc(VG_FILE_BYTES);
    for (int i = 0; i < 20; i++) {
        struct vgi_identity self = process(100 + i);
        (void)claim(pristine, &self, &nobody);
        (void)vgi_quota_charge(pristine, (unsigned)i, 0, VGI_KIND_DATA, 10, 1000);
    }
    for (int round = 0; round < 400; round++) {
        struct graves graves = {.pids = {103, 107}};
        unsigned char *bytes = (unsigned char *)region;
        memcpy(region, pristine, VG_FILE_BYTES);
        for (int change = 0; change < 64; change++) {
            uint64_t where =
                check_random(&state) % 4 == 0 ? 2008890 + check_random(&state) % 20000 : check_random(&state) % 60000;
            bytes[where % VG_FILE_BYTES] = (unsigned char)check_random(&state);
        }
        CHECK(vg_slot_count(region) <= VG_MAX_SLOTS);
        struct vgi_identity self = process(999);
        reclaim(region, &graves);
        int slot = claim(region, &self, &graves);
        add_up(region, 1);
        CHECK(slot >= -1 && slot < VG_MAX_SLOTS);
        if (slot >= 0) {
            uint64_t limit = region->limit[0], before = vgi_quota_used(region, 0);
            enum vgi_charge charged = vgi_quota_charge(region, (unsigned)slot, 0, VGI_KIND_DATA, 10, limit);
            CHECK(charged != VGI_CHARGED || limit == 0 || before + 10 <= limit);
        }
        region->uuids[15][VG_UUID_BYTES - 1] = 'x'; /* not terminated */
        (void)vgi_region_find_card(region, "GPU-none");
        (void)vgi_region_add_card(region, "GPU-none");
    }
    free(pristine);
    free(region);
}

int main(void) {
    test_fresh();
    test_faults();
    test_slots_are_fixed_and_reused();
    test_leaving();
    test_former_selves_go();
    test_full_table();
    test_joining_sweeps_in_turn();
    test_killed_between_counters();
    test_killed_while_reclaiming();
    test_limits_are_adopted_only_where_none_is();
    test_cards();
    fuzz();
    return check_done();
}
