/* vgpu-region: what it says of a file, what it mends, and what it leaves alone. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "core/region.h"
#include "sandbox.h"
#include "vgpu/shm_layout.h"

#define TOOL VGPU_BINARY_DIR "/bin/vgpu-region"
#define SOUND 0
#define NOT_SOUND 1
#define WRONG_USE 2
#define UNREADABLE 3
#define IN_USE 4
#define NOBODY 0x7ffffff0

static int run_tool(const struct sandbox *sandbox, const char *verb, char *output) {
    const char *argv[] = {TOOL, verb, sandbox->region, NULL};
    return sandbox_run(sandbox, false, NULL, argv, output);
}

/* A region of nobody's, mapped for writing. */
static struct vg_region *make_region(const struct sandbox *sandbox) {
    struct vgi_limits limits = {.memory_bytes = {1000}, .priority = 1};
    char folder[96];
    snprintf(folder, sizeof folder, "%s/slice", sandbox->directory);
    mkdir(folder, 0777);
    int file = open(sandbox->region, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    CHECK_EQUAL(ftruncate(file, (off_t)VG_FILE_BYTES), 0);
    struct vg_region *region = mmap(NULL, VG_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    vgi_region_lay_out(region, &limits, 1);
    memcpy(region->uuids[0], "GPU-a", 6);
    return region;
}

enum damage {
    NOTHING,
    DEAD_OWNER,
    WRONG_SUM,
    MARKED,
    LEFT_ADDING_UP,
    SLOT_COUNT,
    NO_END_OF_UUID,
    NOBODYS_SLOT,
    DAMAGES
};
static const char *const damage_names[DAMAGES] = {"nothing",   "dead owner", "wrong sum",      "marked",
                                                  "adding up", "slot count", "no end of uuid", "nobody's slot"};

static void damage(struct vg_region *region, enum damage how) {
    struct vg_extension *extension = vg_extension_of(region);
    region->slot_count = 3;
    if (how == DEAD_OWNER) {
        region->slots[2].pid = extension->owners[2].pid = NOBODY;
        region->slots[2].status = VG_SLOT_RUNNING;
        region->slots[2].used[0].total = extension->sums[0].word = 700;
    } else if (how == WRONG_SUM) {
        extension->sums[0].word = 50;
    } else if (how == MARKED) {
        extension->sums[0].word = VG_SUM_INEXACT | 50;
    } else if (how == LEFT_ADDING_UP) {
        extension->sums[1].word = VG_SUM_UNDER_WAY | 12345;
    } else if (how == SLOT_COUNT) {
        region->slot_count = -7;
    } else if (how == NO_END_OF_UUID) {
        memset(region->uuids[3], 'x', VG_UUID_BYTES);
    } else if (how == NOBODYS_SLOT) {
        region->slots[1].status = VG_SLOT_RUNNING;
        region->slots[1].used[0].total = UINT64_MAX;
    }
}

static void test_repair(void) {
    for (int how = 0; how < DAMAGES; how++) {
        struct sandbox sandbox = sandbox_make();
        char output[SANDBOX_OUTPUT];
        struct vg_region *region = make_region(&sandbox);
        bool told = how != NOTHING && how != DEAD_OWNER && how != MARKED && how != LEFT_ADDING_UP;
        damage(region, (enum damage)how);
        CHECK_EQUAL_THAT(run_tool(&sandbox, "check", output), told ? NOT_SOUND : SOUND, damage_names[how]);
        CHECK_EQUAL_THAT(run_tool(&sandbox, "repair", output), SOUND, damage_names[how]);
        bool idle = strcmp(output, "0 slots cleared, 0 sums corrected, 0 other words corrected\n") == 0;
        CHECK_THAT(idle == (how == NOTHING), output);
        CHECK_EQUAL_THAT(run_tool(&sandbox, "check", output), SOUND, damage_names[how]);
        CHECK_THAT(strcmp(output, "sound\n") == 0, output);
        CHECK_EQUAL_THAT(vg_card_used(region, 0), 0, damage_names[how]);
        CHECK_EQUAL_THAT(region->slots[2].pid, 0, damage_names[how]);
        munmap(region, VG_FILE_BYTES);
        sandbox_remove(&sandbox);
    }
}

/* Who lives keeps the region right; the dead beside it wait for it. */
static void test_repair_refuses_while_in_use(void) {
    struct sandbox sandbox = sandbox_make();
    char output[SANDBOX_OUTPUT];
    const char *environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=100m", NULL};
    const char *argv[] = {WORKLOAD, "alloc", "--mib", "30", "--hold-until-signal", NULL};
    struct sandbox_process holder = sandbox_start(&sandbox, true, environment, argv);
    CHECK(sandbox_await(&holder, "allocated"));
    CHECK_EQUAL(run_tool(&sandbox, "repair", output), IN_USE);
    CHECK_THAT(strstr(output, "1 processes use it") != NULL, output);
    CHECK_EQUAL(run_tool(&sandbox, "check", output), SOUND);
    kill(holder.pid, SIGKILL);
    CHECK_EQUAL(sandbox_finish(&holder, NULL), -SIGKILL);
    CHECK_EQUAL(run_tool(&sandbox, "repair", output), SOUND);
    CHECK_THAT(strstr(output, "1 slots cleared, 1 sums corrected") != NULL, output);
    struct vg_region *region = sandbox_region(&sandbox);
    CHECK_EQUAL(vg_card_used(region, 0), 0);
    munmap(region, VG_FILE_BYTES);
    sandbox_remove(&sandbox);
}

static void test_what_is_no_region(void) {
    struct sandbox sandbox = sandbox_make();
    char output[SANDBOX_OUTPUT];
    CHECK_EQUAL(run_tool(&sandbox, "repair", output), UNREADABLE);
    struct vg_region *region = make_region(&sandbox);
    region->minor = 2;
    CHECK_EQUAL(run_tool(&sandbox, "repair", output), NOT_SOUND);
    CHECK_EQUAL(run_tool(&sandbox, "check", output), NOT_SOUND);
    CHECK_EQUAL(run_tool(&sandbox, "mend", output), WRONG_USE);
    const char *json[] = {TOOL, "repair", sandbox.region, "--json", NULL};
    region->minor = VG_REGION_MINOR;
    CHECK_EQUAL(sandbox_run(&sandbox, false, NULL, json, output), SOUND);
    CHECK_THAT(strcmp(output, "{\"slots_cleared\": 0, \"sums_corrected\": 0, \"words_corrected\": 0}\n") == 0, output);
    munmap(region, VG_FILE_BYTES);
    sandbox_remove(&sandbox);
}

int main(void) {
    test_repair();
    test_repair_refuses_while_in_use();
    test_what_is_no_region();
    return check_done();
}
