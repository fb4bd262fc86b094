/* The region file in every state a disk or a tenant can leave it in: replaced where nobody lives in it, refused where
 * someone does, and never a crash. */
/* case CPR-11 */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "core/region.h"
#include "sandbox.h"
#include "vgpu/shm_layout.h"

#define CUDA_REFUSED 3 /* the workload's exit status */
#define OUT_OF_MEMORY 4

static int run_alloc(const struct sandbox *sandbox, const char *mib, char *output) {
    const char *environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=100m", NULL};
    const char *argv[] = {WORKLOAD, "alloc", "--mib", mib, NULL};
    return sandbox_run(sandbox, true, environment, argv, output);
}

static void make_parent(const struct sandbox *sandbox) {
    char parent[128];
    snprintf(parent, sizeof parent, "%s/slice", sandbox->directory);
    mkdir(parent, 0777);
}

static void write_file(const struct sandbox *sandbox, const void *bytes, size_t size) {
    make_parent(sandbox);
    int file = open(sandbox->region, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (file < 0 || write(file, bytes, size) != (ssize_t)size)
        perror(sandbox->region);
    close(file);
}

/* A sound region as a process would find it, to be spoilt. */
static struct vg_region *sound_region(void) {
    struct vg_region *region = calloc(1, VG_FILE_BYTES);
    struct vgi_limits limits = {.memory_bytes = {100ull << 20, 100ull << 20}, .priority = 1};
    vgi_region_lay_out(region, &limits, 1);
    return region;
}

static void test_absent(void) {
    struct sandbox sandbox = sandbox_make();
    char output[SANDBOX_OUTPUT];
    struct stat status;
    mode_t before = umask(077); /* the file's mode does not follow the umask */
    CHECK_EQUAL(run_alloc(&sandbox, "100", output), 0);
    umask(before);
    CHECK_EQUAL(run_alloc(&sandbox, "101", output), OUT_OF_MEMORY);
    CHECK(stat(sandbox.region, &status) == 0);
    CHECK_EQUAL(status.st_mode & 0777, 0666);
    CHECK_EQUAL(status.st_size, VG_FILE_BYTES);
    sandbox_remove(&sandbox);
}

enum spoil { EMPTY, SHORT, TEXT, OLD_VERSION, NO_EXTENSION, OTHER_EXTENSION, HALF_LAID_OUT, SPOILS };
static const char *const spoil_names[SPOILS] = {"empty",        "short",           "text",         "old version",
                                                "no extension", "other extension", "half laid out"};

static size_t spoil(struct vg_region *region, enum spoil how) {
    switch (how) {
    case EMPTY:
        return 0;
    case SHORT:
        return 1000;
    case TEXT:
        memcpy(region, "just some text, padded by zeroes", 32);
        break;
    case OLD_VERSION:
        region->minor = 1;
        break;
    case NO_EXTENSION:
        return 2008953;
    case OTHER_EXTENSION:
        vg_extension_of(region)->size = 1;
        break;
    case HALF_LAID_OUT: /* its maker was killed before the magic */
        region->magic = 0;
        break;
    default:
        break;
    }
    return VG_FILE_BYTES;
}

/* case CPR-11: nobody lives in it, so it gives way. */
static void test_leftovers_are_replaced(void) {
    for (int how = 0; how < SPOILS; how++) {
        struct sandbox sandbox = sandbox_make();
        char output[SANDBOX_OUTPUT];
        struct vg_region *region = sound_region();
        region->slots[0].pid = 0x7ffffff0; /* nobody */
        region->slot_count = 1;
        write_file(&sandbox, region, spoil(region, (enum spoil)how));
        CHECK_EQUAL_THAT(run_alloc(&sandbox, "100", output), 0, spoil_names[how]);
        CHECK_EQUAL_THAT(run_alloc(&sandbox, "101", output), OUT_OF_MEMORY, spoil_names[how]);
        free(region);
        sandbox_remove(&sandbox);
    }
}

static bool holds_just(const struct sandbox *sandbox, const void *bytes, size_t size) {
    char *found = malloc(size + 1);
    int file = open(sandbox->region, O_RDONLY | O_CLOEXEC);
    ssize_t length = read(file, found, size + 1);
    bool same = length == (ssize_t)size && memcmp(found, bytes, size) == 0;
    close(file);
    free(found);
    return same;
}

/* case CPR-11: another implementation's file with a living process in it: CUDA is refused and the reason said, the file
 * stays as it is, to the byte. */
static void test_foreign_owner_refuses(void) {
    static const enum spoil hows[] = {OLD_VERSION, NO_EXTENSION, OTHER_EXTENSION};
    for (size_t i = 0; i < sizeof hows / sizeof hows[0]; i++) {
        struct sandbox sandbox = sandbox_make();
        char output[SANDBOX_OUTPUT];
        struct stat before, after;
        struct vg_region *region = sound_region();
        region->slots[0].pid = getpid();
        region->slot_count = 1;
        size_t size = spoil(region, hows[i]);
        write_file(&sandbox, region, size);
        struct vg_region *mapped = sandbox_region(&sandbox); /* whoever uses it has it mapped */
        stat(sandbox.region, &before);
        CHECK_EQUAL_THAT(run_alloc(&sandbox, "1", output), CUDA_REFUSED, spoil_names[hows[i]]);
        CHECK_THAT(strstr(output, "CUDA is refused: region file") != NULL, output);
        stat(sandbox.region, &after);
        CHECK(before.st_ino == after.st_ino);
        CHECK_THAT(holds_just(&sandbox, region, size), spoil_names[hows[i]]);
        munmap(mapped, VG_FILE_BYTES);
        free(region);
        sandbox_remove(&sandbox);
    }
}

/* The same file after the container was started anew: that pid is some other process's now. */
static void test_foreign_file_of_a_former_container(void) {
    struct sandbox sandbox = sandbox_make();
    char output[SANDBOX_OUTPUT];
    struct vg_region *region = sound_region();
    region->slots[0].pid = getpid();
    region->slot_count = 1;
    write_file(&sandbox, region, spoil(region, NO_EXTENSION));
    CHECK_EQUAL(run_alloc(&sandbox, "100", output), 0);
    free(region);
    sandbox_remove(&sandbox);
}

static void test_unusable_paths(void) {
    struct sandbox sandbox = sandbox_make();
    char output[SANDBOX_OUTPUT];
    make_parent(&sandbox);
    mkdir(sandbox.region, 0777); /* a directory where the file should be */
    CHECK_EQUAL(run_alloc(&sandbox, "1", output), CUDA_REFUSED);
    CHECK_THAT(strstr(output, "CUDA is refused") != NULL, output);
    /* Without any limit there is nothing to hold: said once, and CUDA works. */
    const char *argv[] = {WORKLOAD, "alloc", "--mib", "1", NULL};
    CHECK_EQUAL(sandbox_run(&sandbox, true, NULL, argv, output), 0);
    CHECK_THAT(strstr(output, "nothing is counted") != NULL, output);
    sandbox_remove(&sandbox);
}

/* Every slot taken by a living process that claims to hold everything. */
static void fill_with_giants(struct vg_region *region) {
    region->slot_count = VG_MAX_SLOTS;
    for (int i = 0; i < VG_MAX_SLOTS; i++) {
        region->slots[i].pid = 1;
        region->slots[i].used[0].total = UINT64_MAX;
    }
}

/* A laid-out file whose content lies. Whatever the outcome, the process ends by itself and in time. */
static void test_hostile_content(void) {
    uint64_t state = 11;
    for (int round = 0; round < 120; round++) {
        struct sandbox sandbox = sandbox_make();
        char output[SANDBOX_OUTPUT], what[64];
        struct vg_region *region = sound_region();
        unsigned char *bytes = (unsigned char *)region;
        static const int32_t counts[] = {-1, 1024, 1025, INT32_MAX, INT32_MIN};
        snprintf(what, sizeof what, "round %d", round);
        if (round < 5)
            region->slot_count = counts[round];
        else if (round == 5)
            memset(region->uuids, 'A', sizeof region->uuids);
        else if (round == 6)
            fill_with_giants(region);
        else if (round == 7)
            vg_extension_of(region)->sums[0].word = VG_SUM_UNDER_WAY | 12345;
        else if (round == 8)
            vg_extension_of(region)->sums[0].word = UINT64_MAX;
        else
            for (int change = 0; change < 200; change++)
                bytes[16 + check_random(&state) % (VG_FILE_BYTES - 16)] = (unsigned char)check_random(&state);
        region->recent_kernel = 2;
        vg_extension_of(region)->magic = VG_EXTENSION_MAGIC;
        vg_extension_of(region)->size = sizeof(struct vg_extension);
        write_file(&sandbox, region, VG_FILE_BYTES);
        int status = run_alloc(&sandbox, "1", output);
        if (!CHECK_THAT(status == 0 || status == CUDA_REFUSED || status == OUT_OF_MEMORY, what))
            fprintf(stderr, "it ended with %d and said: %s\n", status, output);
        free(region);
        sandbox_remove(&sandbox);
    }
}

/* Many processes at once make one file, and all of them count in it. */
static void test_creation_race(void) {
    struct sandbox_process processes[24];
    char output[SANDBOX_OUTPUT];
    for (int round = 0; round < 5; round++) {
        struct sandbox sandbox = sandbox_make();
        if (round % 2 == 1) { /* the same where an unusable one lies in the way */
            struct vg_region *region = sound_region();
            write_file(&sandbox, region, spoil(region, NO_EXTENSION));
            free(region);
        }
        for (int i = 0; i < 24; i++) {
            const char *environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=100m", NULL};
            const char *argv[] = {WORKLOAD, "alloc", "--mib", "4", "--hold-until-signal", NULL};
            processes[i] = sandbox_start(&sandbox, true, environment, argv);
        }
        for (int i = 0; i < 24; i++)
            CHECK(sandbox_await(&processes[i], "allocated"));
        struct vg_region *region = sandbox_region(&sandbox);
        CHECK_EQUAL(vg_card_used(region, 0), 96ull << 20);
        CHECK_EQUAL(run_alloc(&sandbox, "5", output), OUT_OF_MEMORY);
        for (int i = 0; i < 24; i++) {
            kill(processes[i].pid, SIGTERM);
            CHECK_EQUAL(sandbox_finish(&processes[i], NULL), 0);
        }
        CHECK_EQUAL(vg_card_used(region, 0), 0);
        sandbox_remove(&sandbox);
    }
}

/* Where the path is a link that somebody laid, what it leads to keeps its content and its mode. */
static void test_link_to_another_file(void) {
    struct sandbox sandbox = sandbox_make();
    char target[160], output[SANDBOX_OUTPUT], content[8] = "";
    struct stat status;
    make_parent(&sandbox);
    snprintf(target, sizeof target, "%s/secret", sandbox.directory);
    int file = open(target, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK_EQUAL(write(file, "secret", 6), 6);
    CHECK_EQUAL(symlink(target, sandbox.region), 0);
    CHECK_EQUAL_THAT(run_alloc(&sandbox, "100", output), 0, output);
    CHECK_EQUAL(fstat(file, &status), 0);
    CHECK_EQUAL(status.st_mode & 0777, 0600);
    CHECK_EQUAL(pread(file, content, sizeof content, 0), 6);
    CHECK(strcmp(content, "secret") == 0);
    close(file);
    sandbox_remove(&sandbox);
}

/* A disk with room for a few blocks, in a mount namespace of this process. */
static bool mount_small_disk(const struct sandbox *sandbox, const char *room) {
    char parent[128];
    make_parent(sandbox);
    snprintf(parent, sizeof parent, "%s/slice", sandbox->directory);
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
        return false;
    return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mount("none", parent, "tmpfs", 0, room) == 0;
}

/* The first and the last blocks of a sound file; what lies between is a hole. */
static void write_with_a_hole(const struct sandbox *sandbox) {
    struct vg_region *region = sound_region();
    int file = open(sandbox->region, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    CHECK_EQUAL(ftruncate(file, (off_t)VG_FILE_BYTES), 0);
    CHECK_EQUAL(pwrite(file, region, 2048, 0), 2048);
    CHECK_EQUAL(pwrite(file, vg_extension_of(region), 2048, VG_EXTENSION_OFFSET), 2048);
    close(file);
    free(region);
}

static int on_a_full_disk(const struct sandbox *sandbox) {
    static const char no_room[] = "No space left on device";
    char output[SANDBOX_OUTPUT];
    if (!mount_small_disk(sandbox, "size=16k"))
        return 77;
    CHECK_EQUAL_THAT(run_alloc(sandbox, "5", output), CUDA_REFUSED, output);
    CHECK_THAT(strstr(output, no_room) != NULL, output);
    CHECK_EQUAL_THAT(run_alloc(sandbox, "5", output), CUDA_REFUSED, output); /* nothing was left behind */
    CHECK_THAT(strstr(output, no_room) != NULL, output);
    write_with_a_hole(sandbox);
    CHECK_EQUAL_THAT(run_alloc(sandbox, "5", output), CUDA_REFUSED, output);
    CHECK_THAT(strstr(output, no_room) != NULL, output);
    return check_done();
}

static void test_full_disk(void) {
    struct sandbox sandbox = sandbox_make();
    int status = 0;
    pid_t pid = fork();
    if (pid == 0)
        exit(on_a_full_disk(&sandbox));
    CHECK_EQUAL(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        fprintf(stderr, "not tested: a full disk (no mount namespace can be made)\n");
    else
        CHECK_EQUAL(status, 0);
    sandbox_remove(&sandbox);
}

int main(void) {
    test_absent();
    test_full_disk();
    test_link_to_another_file();
    test_leftovers_are_replaced();
    test_foreign_owner_refuses();
    test_foreign_file_of_a_former_container();
    test_unusable_paths();
    test_hostile_content();
    test_creation_race();
    return check_done();
}
