/* The limits page beside the library: it wins over environment and region, changes live, and refuses when it is bad. */
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "asked.h"
#include "check.h"
#include "limits_folder.h"
#include "vgpu/shm_layout.h"

#define MIB (1024ull * 1024ull)
#define CARD_MIB 40960
#define REFUSED 2
#define NOT_PERMITTED 800

static struct asked start(const struct sandbox *sandbox, const struct limits_folder *folder, const char *a,
                          const char *b) {
    const char *argv[] = {sandbox_self(), "answer", NULL};
    const char *environment[] = {folder->preload, a, b, NULL}; /* ends at the first that is not given */
    return asked_start(sandbox, environment, argv);
}

/* Whether the card gives exactly so much: not one byte more. */
static void check_gives(struct asked *asked, int device, uint64_t mib, const char *what) {
    CHECK_EQUAL_THAT(asked_number(asked, "alloc %d %llu", device, mib * MIB), 0, what);
    CHECK_EQUAL_THAT(asked_number(asked, "alloc %d %llu", device, mib * MIB + 1), REFUSED, what);
    CHECK_EQUAL_THAT(asked_number(asked, "total %d", device), mib * MIB, what);
}

static void check_finish(struct asked *asked, const char *what) {
    CHECK_EQUAL_THAT(asked_finish(asked), 0, what);
}

static struct vg_region *map_region_as_tenant(const struct sandbox *sandbox) {
    int file = open(sandbox->region, O_RDWR | O_CLOEXEC);
    void *mapped = mmap(NULL, VG_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return mapped == MAP_FAILED ? NULL : mapped;
}

/* ---- what wins ---- */

static void test_wins_over_the_environment(void) {
    static const char *const rows[][2] = {
        {NULL, NULL},
        {"CUDA_DEVICE_MEMORY_LIMIT=9000m", "CUDA_DEVICE_MEMORY_LIMIT_0=9000m"},
        {"CUDA_DEVICE_MEMORY_LIMIT_0=0", "CUDA_DEVICE_MEMORY_LIMIT_1=1m"},
        {"CUDA_DEVICE_MEMORY_LIMIT=nonsense", "CUDA_DEVICE_SM_LIMIT=many"},
        {"HAMI_HANDOFF=pending", "CUDA_DEVICE_MEMORY_SHARED_CACHE=/nowhere/at/all.cache"},
        {"CUDA_DISABLE_CONTROL=true", "GPU_CORE_UTILIZATION_POLICY=disable"},
        {"CUDA_DEVICE_MEMORY_SHARED_CACHE=", "CUDA_TASK_PRIORITY=7"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *what = rows[i][0] == NULL ? "nothing set" : rows[i][0];
        struct sandbox sandbox = sandbox_make();
        struct limits_folder folder = limits_folder_make(&sandbox);
        struct vg_limits_page page = limits_page_of(&sandbox, 100, 50);
        page.cards[1].cores_percent = 30;
        page.priority = 3;
        limits_page_write(&folder, &page, sizeof page);
        struct asked asked = start(&sandbox, &folder, rows[i][0], rows[i][1]);
        CHECK_EQUAL_THAT(asked_number(&asked, "init"), 0, what);
        check_gives(&asked, 0, 100, what);
        check_gives(&asked, 1, 50, what);
        struct vg_region *region = sandbox_region(&sandbox); /* where the page says, and it shows what holds */
        if (CHECK_THAT(region != NULL, what)) {
            CHECK_EQUAL_THAT(region->limit[0], 100 * MIB, what);
            CHECK_EQUAL_THAT(region->limit[1], 50 * MIB, what);
            CHECK_EQUAL_THAT(region->sm_limit[1], 30, what);
            CHECK_EQUAL_THAT(region->priority, 3, what);
            munmap(region, VG_FILE_BYTES);
        }
        check_finish(&asked, what);
        CHECK_THAT(asked.said[0] == '\0', asked.said);
        sandbox_remove(&sandbox);
    }
}

/* case CPR-10: which values keep the library out is asked where the pod's specification is read, by webhook and node
 * agent, which then write it into the page. Set inside the container none of them means anything to the library, or a
 * tenant could lift its own limits. */
static void test_disabling_inside_is_ignored(void) {
    static const char *const values[] = {"true", "1", "True", "TRUE", "t", "false", "0", "", "yes please", NULL};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        char setting[64] = "LIBCUDA_LOG_LEVEL=2";
        if (values[i] != NULL)
            snprintf(setting, sizeof setting, "CUDA_DISABLE_CONTROL=%s", values[i]);
        for (int with_page = 0; with_page < 2; with_page++) {
            struct sandbox sandbox = sandbox_make();
            struct limits_folder folder = limits_folder_make(&sandbox);
            struct vg_limits_page page = limits_page_of(&sandbox, 100, 100);
            if (with_page)
                limits_page_write(&folder, &page, sizeof page);
            struct asked asked = start(&sandbox, &folder, setting, "CUDA_DEVICE_MEMORY_LIMIT=100m");
            CHECK_EQUAL_THAT(asked_number(&asked, "init"), 0, setting);
            check_gives(&asked, 0, 100, setting);
            check_finish(&asked, setting);
            sandbox_remove(&sandbox);
        }
    }
}

static void test_disabled_by_the_page(void) {
    struct sandbox sandbox = sandbox_make();
    struct limits_folder folder = limits_folder_make(&sandbox);
    struct vg_limits_page page = limits_page_of(&sandbox, 100, 100);
    page.control = VG_LIMITS_CONTROL_DISABLED;
    limits_page_write(&folder, &page, sizeof page);
    struct asked asked = start(&sandbox, &folder, "CUDA_DEVICE_MEMORY_LIMIT=10m", "CUDA_DISABLE_CONTROL=false");
    char whole[64];
    snprintf(whole, sizeof whole, "0 %llu 0 %llu", CARD_MIB * MIB, CARD_MIB * MIB);
    CHECK_THAT(strcmp(asked_question(&asked, "nvml %s", CARD_0), whole) == 0, asked_question(&asked, "nvml " CARD_0));
    CHECK_EQUAL(asked_number(&asked, "init"), 0);
    check_gives(&asked, 0, CARD_MIB, "disabled");
    CHECK(access(sandbox.region, F_OK) != 0);
    check_finish(&asked, "disabled");
    CHECK_THAT(asked.said[0] == '\0', asked.said);
    sandbox_remove(&sandbox);
}

/* The tenant owns the region file and may write anything into it. */
static void test_limits_in_the_region_mean_nothing(void) {
    struct sandbox sandbox = sandbox_make();
    struct limits_folder folder = limits_folder_make(&sandbox);
    struct vg_limits_page page = limits_page_of(&sandbox, 100, 50);
    limits_page_write(&folder, &page, sizeof page);
    struct asked asked = start(&sandbox, &folder, NULL, NULL);
    CHECK_EQUAL(asked_number(&asked, "init"), 0);
    struct vg_region *region = map_region_as_tenant(&sandbox);
    static const uint64_t wishes[] = {0, 1ull << 40, UINT64_MAX, 1};
    for (size_t i = 0; region != NULL && i < sizeof wishes / sizeof wishes[0]; i++) {
        region->limit[0] = wishes[i];
        region->limit[1] = wishes[i];
        check_gives(&asked, 0, 100, "limits overwritten");
        check_gives(&asked, 1, 50, "limits overwritten");
    }
    /* Cards swapped: limits go by what the driver says a device is. */
    memcpy(region->uuids[0], CARD_1, sizeof CARD_1);
    memcpy(region->uuids[1], CARD_0, sizeof CARD_0);
    struct asked later = start(&sandbox, &folder, NULL, NULL);
    CHECK_EQUAL(asked_number(&later, "init"), 0);
    check_gives(&later, 0, 100, "uuids swapped");
    check_gives(&later, 1, 50, "uuids swapped");
    CHECK_EQUAL(region->limit[1], 100 * MIB); /* put right, for those who show it */
    check_finish(&later, "uuids swapped");
    check_finish(&asked, "limits overwritten");
    munmap(region, VG_FILE_BYTES);
    sandbox_remove(&sandbox);
}

static void test_without_a_page_as_ever(void) {
    struct sandbox sandbox = sandbox_make();
    struct limits_folder folder = limits_folder_make(&sandbox);
    struct asked asked = start(&sandbox, &folder, "CUDA_DEVICE_MEMORY_LIMIT_0=100m", "CUDA_DEVICE_MEMORY_LIMIT=60m");
    CHECK_EQUAL(asked_number(&asked, "init"), 0);
    check_gives(&asked, 0, 100, "environment");
    check_gives(&asked, 1, 60, "environment");
    struct vg_region *region = map_region_as_tenant(&sandbox);
    region->limit[0] = 70 * MIB; /* a monitor's change */
    check_gives(&asked, 0, 70, "region");
    check_finish(&asked, "environment");
    munmap(region, VG_FILE_BYTES);
    sandbox_remove(&sandbox);

    sandbox = sandbox_make();
    folder = limits_folder_make(&sandbox);
    asked = start(&sandbox, &folder, NULL, NULL);
    CHECK_EQUAL(asked_number(&asked, "init"), 0);
    check_gives(&asked, 0, CARD_MIB, "no limit anywhere");
    check_finish(&asked, "no limit anywhere");
    sandbox_remove(&sandbox);
}

/* ---- changes in place ---- */

static void test_live_changes(void) {
    struct sandbox sandbox = sandbox_make();
    struct limits_folder folder = limits_folder_make(&sandbox);
    struct vg_limits_page first = limits_page_of(&sandbox, 100, 100);
    limits_page_write(&folder, &first, sizeof first);
    struct vg_limits_page *page = limits_page_open(&folder);
    struct asked asked = start(&sandbox, &folder, NULL, NULL);
    CHECK_EQUAL(asked_number(&asked, "init"), 0);
    check_gives(&asked, 0, 100, "before");
    limits_page_set_memory(page, 0, 300 * MIB);
    check_gives(&asked, 0, 300, "raised");
    CHECK_EQUAL(asked_number(&asked, "keep 0 %llu", 200 * MIB), 0);
    limits_page_set_memory(page, 0, 150 * MIB);
    CHECK_EQUAL(asked_number(&asked, "alloc 0 1"), REFUSED); /* what it holds it keeps; it gets no more */
    char seen[64];
    snprintf(seen, sizeof seen, "0 %llu", 150 * MIB);
    CHECK_THAT(strcmp(asked_question(&asked, "info 0"), seen) == 0, asked_question(&asked, "info 0"));
    limits_page_set_memory(page, 0, 201 * MIB);
    CHECK_EQUAL(asked_number(&asked, "alloc 0 %llu", MIB), 0);
    CHECK_EQUAL(asked_number(&asked, "alloc 0 %llu", MIB + 1), REFUSED);
    limits_page_set_memory(page, 0, 0);
    CHECK_EQUAL(asked_number(&asked, "alloc 0 %llu", (CARD_MIB - 200) * MIB), 0); /* no limit any more */
    check_gives(&asked, 1, 100, "the other card");
    atomic_store(&page->cards[1].flags, VG_LIMITS_CARD_WITHHELD);
    CHECK_EQUAL(asked_number(&asked, "alloc 1 1"), REFUSED);
    atomic_store(&page->cards[1].flags, 0);
    check_gives(&asked, 1, 100, "given again");
    check_finish(&asked, "live");
    munmap(page, VG_LIMITS_PAGE_BYTES);
    sandbox_remove(&sandbox);
}

/* The writer was killed between two words: each word is whole and holds; its next start mends the rest. */
static void test_a_writer_that_died(void) {
    struct sandbox sandbox = sandbox_make();
    struct limits_folder folder = limits_folder_make(&sandbox);
    struct vg_limits_page first = limits_page_of(&sandbox, 100, 50);
    first.sequence = 7;
    limits_page_write(&folder, &first, sizeof first);
    struct asked asked = start(&sandbox, &folder, NULL, NULL);
    CHECK_EQUAL(asked_number(&asked, "init"), 0);
    check_gives(&asked, 0, 100, "half changed");
    check_gives(&asked, 1, 50, "half changed");
    struct vg_limits_page *page = limits_page_open(&folder);
    limits_page_set_memory(page, 0, 80 * MIB);
    check_gives(&asked, 0, 80, "changed again");
    check_finish(&asked, "half changed");
    CHECK_THAT(strstr(asked.said, "in the middle of a change") != NULL, asked.said);
    munmap(page, VG_LIMITS_PAGE_BYTES);
    sandbox_remove(&sandbox);
}

/* The contract is a change in place: who runs keeps the page it mapped, who starts finds the new one. */
static void test_replaced_under_a_process(void) {
    struct sandbox sandbox = sandbox_make();
    struct limits_folder folder = limits_folder_make(&sandbox);
    struct vg_limits_page page = limits_page_of(&sandbox, 100, 100);
    limits_page_write(&folder, &page, sizeof page);
    struct asked asked = start(&sandbox, &folder, NULL, NULL);
    CHECK_EQUAL(asked_number(&asked, "init"), 0);
    page.cards[0].memory_limit_bytes = 60 * MIB;
    limits_page_write(&folder, &page, sizeof page);
    check_gives(&asked, 0, 100, "mapped before");
    struct asked later = start(&sandbox, &folder, NULL, NULL);
    CHECK_EQUAL(asked_number(&later, "init"), 0);
    check_gives(&later, 0, 60, "started after");
    check_finish(&later, "started after");
    CHECK_EQUAL(unlink(folder.page), 0);
    check_gives(&asked, 0, 100, "page removed");
    check_finish(&asked, "page removed");
    sandbox_remove(&sandbox);
}

static void test_children_are_held(void) {
    struct sandbox sandbox = sandbox_make();
    struct limits_folder folder = limits_folder_make(&sandbox);
    struct vg_limits_page first = limits_page_of(&sandbox, 100, 100);
    limits_page_write(&folder, &first, sizeof first);
    struct vg_limits_page *page = limits_page_open(&folder);
    struct asked holder = start(&sandbox, &folder, NULL, NULL);
    CHECK_EQUAL(asked_number(&holder, "init"), 0);
    CHECK_EQUAL(asked_number(&holder, "keep 0 %llu", 40 * MIB), 0);
    struct asked asked = start(&sandbox, &folder, NULL, NULL);
    for (int mapped_before = 0; mapped_before < 2; mapped_before++) {
        limits_page_set_memory(page, 0, 100 * MIB);
        CHECK_EQUAL(asked_number(&asked, "fork alloc 0 %llu", 60 * MIB), 0);
        CHECK_EQUAL(asked_number(&asked, "fork alloc 0 %llu", 60 * MIB + 1), REFUSED);
        limits_page_set_memory(page, 0, 70 * MIB);
        CHECK_EQUAL(asked_number(&asked, "fork alloc 0 %llu", 30 * MIB + 1), REFUSED);
        CHECK_EQUAL(asked_number(&asked, "fork alloc 0 %llu", 30 * MIB), 0);
        CHECK_THAT(strncmp(asked_question(&asked, "nvml " CARD_0), "0 ", 2) == 0,
                   "the parent looks, and maps the page");
    }
    check_finish(&asked, "fork");
    check_finish(&holder, "fork");
    munmap(page, VG_LIMITS_PAGE_BYTES);
    sandbox_remove(&sandbox);
}

/* ---- which card ---- */

static void test_cards_that_the_page_does_not_name(void) {
    struct sandbox sandbox = sandbox_make();
    struct limits_folder folder = limits_folder_make(&sandbox);
    struct vg_limits_page page = limits_page_of(&sandbox, 100, 100);
    page.card_count = 1;
    memset(&page.cards[1], 0, sizeof page.cards[1]);
    limits_page_write(&folder, &page, sizeof page);
    struct asked asked = start(&sandbox, &folder, "CUDA_DEVICE_MEMORY_LIMIT_1=500m", NULL);
    CHECK_EQUAL(asked_number(&asked, "init"), 0);
    check_gives(&asked, 0, 100, "named");
    CHECK_THAT(asked.said[0] == '\0', asked.said);
    CHECK_EQUAL(asked_number(&asked, "alloc 1 1"), REFUSED);
    CHECK_EQUAL(asked_number(&asked, "alloc 1 %llu", MIB), REFUSED);
    CHECK_EQUAL(asked_number(&asked, "total 1"), 1);
    CHECK_THAT(strcmp(asked_question(&asked, "nvml " CARD_1), "0 1 0 1") == 0, asked_question(&asked, "nvml " CARD_1));
    check_finish(&asked, "not named");
    const char *once = strstr(asked.said, CARD_1);
    CHECK_THAT(once != NULL && strstr(once + 1, CARD_1) == NULL, asked.said);
    sandbox_remove(&sandbox);

    sandbox = sandbox_make();
    folder = limits_folder_make(&sandbox);
    page = limits_page_of(&sandbox, 100, 100);
    page.card_count = 0;
    memset(page.cards, 0, sizeof page.cards);
    limits_page_write(&folder, &page, sizeof page);
    asked = start(&sandbox, &folder, NULL, NULL);
    CHECK_EQUAL(asked_number(&asked, "init"), 0);
    CHECK_EQUAL(asked_number(&asked, "alloc 0 1"), REFUSED);
    check_finish(&asked, "no card named");
    sandbox_remove(&sandbox);
}

/* case CPR-04: whatever CUDA_VISIBLE_DEVICES shows in whatever order, each device is held to the limit of the card that
 * it is; with the page by UUID, without it by the card's place among those the container sees. */
static void test_visible_devices(void) {
    static const struct {
        const char *setting;
        const char *uuids[3];
    } rows[] = {
        {"CUDA_VISIBLE_DEVICES=0,1", {CARD_0, CARD_1}}, {"CUDA_VISIBLE_DEVICES=1,0", {CARD_1, CARD_0}},
        {"CUDA_VISIBLE_DEVICES=0", {CARD_0}},           {"CUDA_VISIBLE_DEVICES=1", {CARD_1}},
        {"CUDA_VISIBLE_DEVICES=" CARD_1, {CARD_1}},     {"CUDA_VISIBLE_DEVICES=" CARD_1 "," CARD_0, {CARD_1, CARD_0}},
        {"CUDA_VISIBLE_DEVICES=1,7,0", {CARD_1}},       {"LIBCUDA_LOG_LEVEL=2", {CARD_0, CARD_1}},
    };
    for (size_t i = 0; i < 2 * sizeof rows / sizeof rows[0]; i++) {
        bool with_page = i % 2 == 0;
        const char *setting = rows[i / 2].setting;
        struct sandbox sandbox = sandbox_make();
        struct limits_folder folder = limits_folder_make(&sandbox);
        struct vg_limits_page page = limits_page_of(&sandbox, 100, 50);
        struct vg_limits_card card_0 = page.cards[0]; /* the page's order means nothing */
        page.cards[0] = page.cards[1];
        page.cards[1] = card_0;
        const char *argv[] = {sandbox_self(), "answer", NULL};
        const char *environment[] = {folder.preload, setting, "CUDA_DEVICE_MEMORY_LIMIT_0=100m",
                                     "CUDA_DEVICE_MEMORY_LIMIT_1=50m", NULL};
        const char *page_alone[] = {folder.preload, setting, NULL};
        if (with_page)
            limits_page_write(&folder, &page, sizeof page);
        struct asked asked = asked_start(&sandbox, with_page ? page_alone : environment, argv);
        CHECK_EQUAL_THAT(asked_number(&asked, "init"), 0, setting);
        int count = 0;
        while (rows[i / 2].uuids[count] != NULL)
            count++;
        CHECK_EQUAL_THAT(asked_number(&asked, "count"), count, setting);
        for (int device = 0; device < count; device++) {
            bool first = strcmp(rows[i / 2].uuids[device], CARD_0) == 0;
            CHECK_THAT(strcmp(asked_question(&asked, "uuid %d", device), rows[i / 2].uuids[device]) == 0, setting);
            check_gives(&asked, device, first ? 100 : 50, setting);
            CHECK_EQUAL_THAT(asked_number(&asked, "keep %d %llu", device, (first ? 7 : 9) * MIB), 0, setting);
            struct vg_region *region = sandbox_region(&sandbox);
            CHECK_EQUAL_THAT(region->slots[0].used[first ? 0 : 1].data, (first ? 7 : 9) * MIB, setting);
            munmap(region, VG_FILE_BYTES);
        }
        check_finish(&asked, setting);
        sandbox_remove(&sandbox);
    }
    /* None visible: the driver's own answer. */
    struct sandbox sandbox = sandbox_make();
    struct limits_folder folder = limits_folder_make(&sandbox);
    struct vg_limits_page page = limits_page_of(&sandbox, 100, 50);
    limits_page_write(&folder, &page, sizeof page);
    struct asked asked = start(&sandbox, &folder, "CUDA_VISIBLE_DEVICES=", NULL);
    CHECK_EQUAL(asked_number(&asked, "init"), 100);
    check_finish(&asked, "empty");
    sandbox_remove(&sandbox);
}

static void test_nvml_alone(void) {
    struct sandbox sandbox = sandbox_make();
    struct limits_folder folder = limits_folder_make(&sandbox);
    struct vg_limits_page page = limits_page_of(&sandbox, 100, 50);
    limits_page_write(&folder, &page, sizeof page);
    struct vg_limits_page *mapped = limits_page_open(&folder);
    struct asked asked = start(&sandbox, &folder, "CUDA_DEVICE_MEMORY_LIMIT=9000m", NULL);
    char wanted[96];
    snprintf(wanted, sizeof wanted, "0 %llu 0 %llu", 50 * MIB, 50 * MIB);
    CHECK_THAT(strcmp(asked_question(&asked, "nvml " CARD_1), wanted) == 0, asked_question(&asked, "nvml " CARD_1));
    struct asked other = start(&sandbox, &folder, NULL, NULL);
    CHECK_EQUAL(asked_number(&other, "init"), 0);
    CHECK_EQUAL(asked_number(&other, "keep 1 %llu", 20 * MIB), 0);
    limits_page_set_memory(mapped, 1, 60 * MIB);
    snprintf(wanted, sizeof wanted, "0 %llu %llu %llu", 60 * MIB, 20 * MIB, 40 * MIB);
    CHECK_THAT(strcmp(asked_question(&asked, "nvml " CARD_1), wanted) == 0, asked_question(&asked, "nvml " CARD_1));
    check_finish(&other, "allocates");
    check_finish(&asked, "nvml alone");
    munmap(mapped, VG_LIMITS_PAGE_BYTES);
    sandbox_remove(&sandbox);
}

/* ---- bad pages ---- */

enum file_fault {
    SHORT_0,
    SHORT_100,
    SHORT_4095,
    LONG,
    NOISE,
    VERSION_2,
    COUNT_HUGE,
    OTHERS_WRITE,
    FOLDER,
    FIFO,
    FAULTS
};

static const char *const fault_names[FAULTS] = {"empty",     "100 bytes",  "4095 bytes",      "two pages", "noise",
                                                "version 2", "huge count", "group may write", "a folder",  "a fifo"};

static void write_fault(const struct sandbox *sandbox, const struct limits_folder *folder, enum file_fault fault) {
    static const size_t sizes[FAULTS] = {[SHORT_0] = 0, [SHORT_100] = 100, [SHORT_4095] = 4095, [LONG] = 8192};
    char bytes[2 * VG_LIMITS_PAGE_BYTES] = "";
    struct vg_limits_page page = limits_page_of(sandbox, 100, 100);
    uint64_t state = 5;
    page.version = fault == VERSION_2 ? 2 : page.version;
    page.card_count = fault == COUNT_HUGE ? UINT32_MAX : page.card_count;
    memcpy(bytes, &page, sizeof page);
    for (size_t i = 0; fault == NOISE && i < sizeof bytes; i++)
        bytes[i] = (char)check_random(&state);
    limits_page_write(folder, bytes, fault <= LONG ? sizes[fault] : sizeof page);
    if (fault == OTHERS_WRITE)
        CHECK_EQUAL(chmod(folder->page, 0664), 0);
    if (fault == FOLDER || fault == FIFO)
        CHECK_EQUAL(unlink(folder->page), 0);
    if (fault == FOLDER)
        CHECK_EQUAL(mkdir(folder->page, 0755), 0);
    if (fault == FIFO)
        CHECK_EQUAL(mkfifo(folder->page, 0644), 0);
}

static void test_bad_pages_refuse(void) {
    for (enum file_fault fault = 0; fault < FAULTS; fault++) {
        struct sandbox sandbox = sandbox_make();
        struct limits_folder folder = limits_folder_make(&sandbox);
        write_fault(&sandbox, &folder, fault);
        struct asked asked = start(&sandbox, &folder, "CUDA_DEVICE_MEMORY_LIMIT=9000m", NULL);
        CHECK_EQUAL_THAT(asked_number(&asked, "init"), NOT_PERMITTED, fault_names[fault]);
        CHECK_EQUAL_THAT(asked_number(&asked, "init"), NOT_PERMITTED, fault_names[fault]);
        CHECK_THAT(strncmp(asked_question(&asked, "nvml " CARD_0), "4 ", 2) == 0, fault_names[fault]);
        CHECK_THAT(access(sandbox.region, F_OK) != 0, fault_names[fault]);
        const char *line = strstr(asked.said, folder.page);
        CHECK_THAT(line != NULL && strstr(line + 1, folder.page) == NULL, asked.said); /* said, and once */
        /* Mended, it holds. */
        CHECK_EQUAL_THAT(fault == FOLDER ? rmdir(folder.page) : unlink(folder.page), 0, fault_names[fault]);
        struct vg_limits_page page = limits_page_of(&sandbox, 100, 100);
        limits_page_write(&folder, &page, sizeof page);
        CHECK_EQUAL_THAT(asked_number(&asked, "init"), 0, fault_names[fault]);
        check_gives(&asked, 0, 100, fault_names[fault]);
        check_finish(&asked, fault_names[fault]);
        sandbox_remove(&sandbox);
    }
}

/* With a page there are limits: where they cannot be counted nothing is given. */
static void test_a_region_that_cannot_be_opened(void) {
    struct sandbox sandbox = sandbox_make();
    struct limits_folder folder = limits_folder_make(&sandbox);
    struct vg_limits_page page = limits_page_of(&sandbox, 0, 0);
    memset(page.region_file, 0, sizeof page.region_file);
    snprintf(page.region_file, sizeof page.region_file, "/proc/nowhere/slice.cache");
    limits_page_write(&folder, &page, sizeof page);
    struct asked asked = start(&sandbox, &folder, NULL, NULL);
    CHECK_EQUAL(asked_number(&asked, "init"), NOT_PERMITTED);
    check_finish(&asked, "no region");
    CHECK_THAT(strstr(asked.said, "/proc/nowhere/slice.cache") != NULL, asked.said);
    sandbox_remove(&sandbox);
}

static int run_tool(const struct sandbox *sandbox, const char *page, char output[SANDBOX_OUTPUT]) {
    const char *argv[] = {VGPU_BINARY_DIR "/bin/vgpu-limits", page, NULL};
    return sandbox_run(sandbox, false, NULL, argv, output);
}

static void test_the_tool(void) {
    struct sandbox sandbox = sandbox_make();
    struct limits_folder folder = limits_folder_make(&sandbox);
    struct vg_limits_page page = limits_page_of(&sandbox, 100, 0);
    char output[SANDBOX_OUTPUT];
    page.cards[1].flags = VG_LIMITS_CARD_WITHHELD;
    page.policy = VG_LIMITS_POLICY_FORCE;
    page.sequence = 12;
    limits_page_write(&folder, &page, sizeof page);
    CHECK_EQUAL(run_tool(&sandbox, folder.page, output), 0);
    CHECK_THAT(strstr(output, "\"sequence\": 12, \"change_under_way\": false") != NULL, output);
    CHECK_THAT(strstr(output, "\"control\": \"held\", \"policy\": \"force\", \"priority\": 1") != NULL, output);
    CHECK_THAT(strstr(output, "{\"uuid\": \"" CARD_0 "\", \"memory_limit_bytes\": 104857600, \"cores_percent\": 100, "
                              "\"context_bytes\": 0, \"withheld\": false}, {\"uuid\": \"" CARD_1) != NULL,
               output);
    CHECK_THAT(strstr(output, "\"withheld\": true}]}") != NULL, output);
    CHECK_EQUAL(run_tool(&sandbox, "/nowhere/page", output), 3);
    CHECK_EQUAL(run_tool(&sandbox, sandbox.directory, output), 3);
    for (enum file_fault fault = 0; fault < FOLDER; fault++) {
        write_fault(&sandbox, &folder, fault);
        CHECK_EQUAL_THAT(run_tool(&sandbox, folder.page, output), 1, fault_names[fault]);
    }
    sandbox_remove(&sandbox);
}

/* ---- ways around ---- */

/* A tenant names the library by a link of its own, beside which lies a page of its own. */
static void test_a_forged_page_beside_a_link(void) {
    struct sandbox sandbox = sandbox_make();
    struct limits_folder folder = limits_folder_make(&sandbox);
    struct vg_limits_page page = limits_page_of(&sandbox, 100, 100);
    limits_page_write(&folder, &page, sizeof page);
    struct limits_folder forged;
    char path[200], target[200];
    snprintf(forged.path, sizeof forged.path, "%s/mine", sandbox.directory);
    snprintf(path, sizeof path, "%s/limits", forged.path);
    CHECK(mkdir(forged.path, 0755) == 0 && mkdir(path, 0755) == 0);
    snprintf(forged.page, sizeof forged.page, "%s/limits/page", forged.path);
    page.cards[0].memory_limit_bytes = 0;
    limits_page_write(&forged, &page, sizeof page);
    snprintf(path, sizeof path, "%s/libvgpu.so", forged.path);
    snprintf(target, sizeof target, "%s/libvgpu.so", folder.path);
    CHECK_EQUAL(symlink(target, path), 0);
    snprintf(forged.preload, sizeof forged.preload, "LD_PRELOAD=%.140s", path);
    struct asked asked = start(&sandbox, &forged, NULL, NULL);
    CHECK_EQUAL(asked_number(&asked, "init"), 0);
    check_gives(&asked, 0, 100, "through a link");
    check_finish(&asked, "through a link");
    sandbox_remove(&sandbox);
}

/* A tenant names it relative to a directory that the program leaves, and may change the protection of the library's
 * code, which is then several mappings. */
static void test_a_relative_path(bool in_pieces) {
    struct sandbox sandbox = sandbox_make();
    struct limits_folder folder = limits_folder_make(&sandbox);
    struct vg_limits_page page = limits_page_of(&sandbox, 100, 100);
    limits_page_write(&folder, &page, sizeof page);
    snprintf(folder.preload, sizeof folder.preload, "LD_PRELOAD=./libvgpu.so");
    char before[4096];
    CHECK(getcwd(before, sizeof before) != NULL && chdir(folder.path) == 0);
    struct asked asked = start(&sandbox, &folder, NULL, NULL);
    CHECK_EQUAL(chdir(before), 0);
    CHECK_EQUAL(asked_number(&asked, "chdir /"), 0);
    if (in_pieces && asked_number(&asked, "unprotect") != 0)
        printf("SKIPPED: code in pieces: this kernel lets no program write its own code\n");
    CHECK_EQUAL(asked_number(&asked, "init"), 0);
    check_gives(&asked, 0, 100, "relative");
    check_finish(&asked, "relative");
    sandbox_remove(&sandbox);
}

/* The node's library was replaced while a program that had it loaded had not yet started CUDA. */
static void test_a_library_that_was_replaced(void) {
    struct sandbox sandbox = sandbox_make();
    struct limits_folder folder = limits_folder_make(&sandbox);
    struct vg_limits_page page = limits_page_of(&sandbox, 100, 100);
    char library[160];
    limits_page_write(&folder, &page, sizeof page);
    struct asked asked = start(&sandbox, &folder, NULL, NULL);
    CHECK_EQUAL(asked_number(&asked, "chdir /"), 0);
    snprintf(library, sizeof library, "%s/libvgpu.so", folder.path);
    CHECK_EQUAL(unlink(library), 0);
    CHECK_EQUAL(asked_number(&asked, "init"), 0);
    check_gives(&asked, 0, 100, "replaced library");
    check_finish(&asked, "replaced library");
    sandbox_remove(&sandbox);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "answer") == 0)
        return asked_answer();
    test_wins_over_the_environment();
    test_disabling_inside_is_ignored();
    test_disabled_by_the_page();
    test_limits_in_the_region_mean_nothing();
    test_without_a_page_as_ever();
    test_live_changes();
    test_a_writer_that_died();
    test_replaced_under_a_process();
    test_children_are_held();
    test_cards_that_the_page_does_not_name();
    test_visible_devices();
    test_nvml_alone();
    test_bad_pages_refuse();
    test_a_region_that_cannot_be_opened();
    test_the_tool();
    test_a_forged_page_beside_a_link();
    test_a_relative_path(false);
    test_a_relative_path(true);
    test_a_library_that_was_replaced();
    return check_done();
}
