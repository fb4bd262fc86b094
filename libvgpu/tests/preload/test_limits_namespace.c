/* As in a container: /etc/ld.so.preload names a mounted libvgpu.so, beside it the limits are mounted read-only.
 * Whatever a tenant starts, in whatever environment, is held to the page, and nothing that it may do changes the page.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "asked.h"
#include "check.h"
#include "limits_folder.h"

#define MIB (1024ull * 1024ull)
#define REFUSED 2
#define SKIPPED 77 /* as ctest is told */
#define TENANT_UID 12345

static void give_up(const char *what) {
    perror(what);
    exit(1);
}

/* ---- the container ---- */

static bool enter_namespace(void) {
    return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "we");
    if (file == NULL || fputs(text, file) < 0 || fclose(file) != 0)
        give_up(path);
}

static void bind(const char *source, const char *target, bool read_only) {
    if (mount(source, target, NULL, MS_BIND, NULL) != 0 ||
        (read_only && mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) != 0))
        give_up(target);
}

static void copy_into(const char *directory, const char *from) {
    char bytes[65536], to[256];
    snprintf(to, sizeof to, "%s%s", directory, strrchr(from, '/'));
    int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
    for (ssize_t got; in >= 0 && (got = read(in, bytes, sizeof bytes)) > 0;)
        if (write(out, bytes, (size_t)got) != got)
            give_up(to);
    close(in);
    close(out);
}

/* An /etc with little more than the list of libraries to preload: the machine's own stays as it is. */
static void give_it_an_etc(const struct sandbox *sandbox, const char *library) {
    static const char *const kept[] = {"/etc/ld.so.cache", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf"};
    char etc[128], list[160];
    snprintf(etc, sizeof etc, "%s/etc", sandbox->directory);
    if (mkdir(etc, 0755) != 0)
        give_up(etc);
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        if (access(kept[i], R_OK) == 0)
            copy_into(etc, kept[i]);
    snprintf(list, sizeof list, "%s/ld.so.preload", etc);
    write_file(list, library);
    bind(etc, "/etc", true);
}

struct container {
    struct sandbox sandbox;
    struct limits_folder host; /* where the writer sees library and page */
    char image[96];            /* programs and driver, for every user to read */
    char folder[96];           /* the tenant's own, with library and limits mounted into it */
    char page[192];            /* as the tenant sees it */
    char variables[3][256];    /* what the shells below know: $SELF, $IMAGE, and where the driver is */
};

static void give_it_an_image(struct container *container) {
    snprintf(container->image, sizeof container->image, "%s/image", container->sandbox.directory);
    if (mkdir(container->image, 0755) != 0)
        give_up(container->image);
    copy_into(container->image, WORKLOAD);
    copy_into(container->image, sandbox_self());
    copy_into(container->image, VGPU_BINARY_DIR "/sim/libcuda.so.1");
    copy_into(container->image, VGPU_BINARY_DIR "/sim/libnvidia-ml.so.1");
    snprintf(container->variables[0], sizeof container->variables[0], "SELF=%s%s", container->image,
             strrchr(sandbox_self(), '/'));
    snprintf(container->variables[1], sizeof container->variables[1], "IMAGE=%s", container->image);
    snprintf(container->variables[2], sizeof container->variables[2], "LD_LIBRARY_PATH=%s", container->image);
}

static struct container make_container(const struct sandbox *sandbox) {
    struct container made = {.sandbox = *sandbox};
    char source[192], target[192];
    made.host = limits_folder_make(&made.sandbox);
    snprintf(made.folder, sizeof made.folder, "%s/container", made.sandbox.directory);
    snprintf(made.page, sizeof made.page, "%s/" VG_LIMITS_DIRECTORY "/" VG_LIMITS_FILE, made.folder);
    snprintf(target, sizeof target, "%s/" VG_LIMITS_DIRECTORY, made.folder);
    if (chmod(made.sandbox.directory, 0755) != 0 || mkdir(made.folder, 0777) != 0 || chmod(made.folder, 0777) != 0 ||
        mkdir(target, 0755) != 0)
        give_up(made.folder);
    snprintf(source, sizeof source, "%s/" VG_LIMITS_DIRECTORY, made.host.path);
    bind(source, target, true);
    snprintf(source, sizeof source, "%s/libvgpu.so", made.host.path);
    snprintf(target, sizeof target, "%s/libvgpu.so", made.folder);
    write_file(target, "");
    bind(source, target, true);
    give_it_an_etc(&made.sandbox, target);
    give_it_an_image(&made);
    snprintf(made.sandbox.region, sizeof made.sandbox.region, "%.90s/slice.cache", made.folder);
    return made;
}

/* What a container's root usually has: no power over mounts. */
static void become_a_tenant(void) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    if (prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0) != 0 || syscall(SYS_capget, &header, data) != 0)
        give_up("capabilities");
    for (int i = 0; i < 3; i++) {
        __u32 *set = i == 0 ? &data[0].effective : i == 1 ? &data[0].permitted : &data[0].inheritable;
        *set &= ~(1u << CAP_SYS_ADMIN);
    }
    if (syscall(SYS_capset, &header, data) != 0)
        give_up("capset");
}

/* ---- what a tenant starts ---- */

/* The simulated machine is told by environment, which a real one is not: these two stay in the cleanest of them. */
#define MACHINE "IMAGE=\"$IMAGE\" LD_LIBRARY_PATH=\"$LD_LIBRARY_PATH\" HAMI_SIM_DRIVER=\"$HAMI_SIM_DRIVER\""
#define OVER_ALLOC "$IMAGE/vgpu-workload over-alloc --step-mib 10"

static const struct {
    const char *what;
    const char *command; /* for a shell; $SELF is this program, $IMAGE where the programs are */
} ways[] = {
    {"plainly", OVER_ALLOC},
    {"in an empty environment", "env -i " MACHINE " " OVER_ALLOC},
    {"without LD_PRELOAD", "env -u LD_PRELOAD " OVER_ALLOC},
    {"LD_PRELOAD empty", "LD_PRELOAD= " OVER_ALLOC},
    {"LD_PRELOAD of something else", "LD_PRELOAD=$IMAGE/libnvidia-ml.so.1 " OVER_ALLOC},
    {"LD_PRELOAD of a link to the library",
     "ln -sf $IMAGE/../container/libvgpu.so $IMAGE/link.so && LD_PRELOAD=$IMAGE/link.so " OVER_ALLOC},
    {"LD_PRELOAD of a copy of the library", "cp $IMAGE/../container/libvgpu.so $IMAGE/copy.so && "
                                            "LD_PRELOAD=$IMAGE/copy.so CUDA_DEVICE_MEMORY_LIMIT=0 " OVER_ALLOC},
    {"another memory limit", "CUDA_DEVICE_MEMORY_LIMIT=9000m " OVER_ALLOC},
    {"another memory limit of the card", "CUDA_DEVICE_MEMORY_LIMIT_0=9000m " OVER_ALLOC},
    {"no memory limit", "env -u CUDA_DEVICE_MEMORY_LIMIT -u CUDA_DEVICE_MEMORY_LIMIT_0 " OVER_ALLOC},
    {"control disabled", "CUDA_DISABLE_CONTROL=true " OVER_ALLOC},
    {"another region", "CUDA_DEVICE_MEMORY_SHARED_CACHE=$IMAGE/elsewhere.cache " OVER_ALLOC},
    {"another policy and priority", "GPU_CORE_UTILIZATION_POLICY=disable CUDA_TASK_PRIORITY=0 " OVER_ALLOC},
    {"as another user", "$SELF as-tenant " OVER_ALLOC},
    {"as another user in an empty environment", "env -i " MACHINE " $SELF as-tenant /bin/sh -c '" OVER_ALLOC "'"},
    {"as a login would", "$SELF as-login " OVER_ALLOC},
    {"through shells", "sh -c \"sh -c 'sh -c \\\"" OVER_ALLOC "\\\"'\""},
    {"after an exec", "exec env -i " MACHINE " /bin/sh -c 'exec " OVER_ALLOC "'"},
    {"from another directory", "cd / && " OVER_ALLOC},
    {"through dlsym", OVER_ALLOC " --reach dlsym"},
    {"through cuGetProcAddress", OVER_ALLOC " --reach getproc"},
};

static int run_shell(const struct container *container, const char *command, char output[SANDBOX_OUTPUT]) {
    const char *environment[] = {container->variables[0],          container->variables[1],
                                 container->variables[2],          "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
                                 "CUDA_DEVICE_MEMORY_LIMIT=5000m", NULL};
    const char *argv[] = {"/bin/sh", "-c", command, NULL};
    return sandbox_run(&container->sandbox, false, environment, argv, output);
}

static void test_every_way_is_held(const struct container *container) {
    char output[SANDBOX_OUTPUT];
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        CHECK_EQUAL_THAT(run_shell(container, ways[i].command, output), 0, ways[i].what);
        if (!CHECK_THAT(strstr(output, "\"granted_mib\": 200,") != NULL, ways[i].what))
            fputs(output, stderr);
    }
}

/* ---- what a tenant tries ---- */

static void try_to_change_the_page(const struct container *container, const char *who) {
    char limits[160], aside[160];
    uint64_t more = 0;
    snprintf(limits, sizeof limits, "%s/" VG_LIMITS_DIRECTORY, container->folder);
    snprintf(aside, sizeof aside, "%s/aside", container->folder);
    CHECK_THAT(open(container->page, O_RDWR | O_CLOEXEC) < 0, who);
    CHECK_THAT(open(container->page, O_WRONLY | O_TRUNC | O_CLOEXEC) < 0, who);
    CHECK_THAT(truncate(container->page, 0) != 0, who);
    CHECK_THAT(chmod(container->page, 0666) != 0, who);
    CHECK_THAT(unlink(container->page) != 0, who);
    CHECK_THAT(rename(container->page, aside) != 0, who);
    CHECK_THAT(rename(limits, aside) != 0 && errno == EBUSY, who);
    CHECK_THAT(rmdir(limits) != 0, who);
    CHECK_THAT(umount2(limits, MNT_DETACH) != 0 && errno == EPERM, who);
    CHECK_THAT(mount("tmpfs", limits, "tmpfs", 0, NULL) != 0 && errno == EPERM, who);
    CHECK_THAT(mount(NULL, limits, NULL, MS_REMOUNT | MS_BIND, NULL) != 0 && errno == EPERM, who);
    CHECK_THAT(unlink("/etc/ld.so.preload") != 0, who);
    int page = open(container->page, O_RDONLY | O_CLOEXEC);
    CHECK_THAT(page >= 0 && pwrite(page, &more, sizeof more, 576 + 96) < 0, who);
    CHECK_THAT(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, page, 0) == MAP_FAILED, who);
    CHECK_THAT(fcntl(page, F_SETLEASE, F_RDLCK) != 0, who); /* its writer would have to wait */
    char again[64];
    snprintf(again, sizeof again, "/proc/self/fd/%d", page);
    CHECK_THAT(open(again, O_RDWR | O_CLOEXEC) < 0, who);
    void *mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, page, 0);
    CHECK_THAT(mapped != MAP_FAILED && mprotect(mapped, 4096, PROT_READ | PROT_WRITE) != 0, who);
    munmap(mapped, 4096);
    close(page);
}

static void test_the_page_cannot_be_changed_from_inside(const struct container *container) {
    try_to_change_the_page(container, "root");
    pid_t other = fork();
    if (other == 0) {
        check_failures = 0;
        if (setgid(TENANT_UID) != 0 || setuid(TENANT_UID) != 0)
            give_up("setuid");
        try_to_change_the_page(container, "another user");
        _exit(check_failures > 0);
    }
    int status = -1;
    waitpid(other, &status, 0);
    CHECK_EQUAL(status, 0);
}

/* ---- what the writer changes ---- */

static void test_live_changes_reach_the_container(const struct container *container, struct vg_limits_page *page) {
    const char *argv[] = {container->variables[0] + strlen("SELF="), "answer", NULL};
    const char *environment[] = {container->variables[2], NULL};
    struct asked asked = asked_start(&container->sandbox, environment, argv);
    CHECK_EQUAL(asked_number(&asked, "init"), 0);
    CHECK_EQUAL(asked_number(&asked, "alloc 0 %llu", 200 * MIB), 0);
    CHECK_EQUAL(asked_number(&asked, "alloc 0 %llu", 200 * MIB + 1), REFUSED);
    limits_page_set_memory(page, 0, 300 * MIB);
    CHECK_EQUAL(asked_number(&asked, "alloc 0 %llu", 300 * MIB), 0);
    CHECK_EQUAL(asked_number(&asked, "alloc 0 %llu", 300 * MIB + 1), REFUSED);
    limits_page_set_memory(page, 0, 150 * MIB);
    CHECK_EQUAL(asked_number(&asked, "alloc 0 %llu", 150 * MIB + 1), REFUSED);
    limits_page_set_memory(page, 0, 200 * MIB);
    CHECK_EQUAL(asked_finish(&asked), 0);
}

/* ---- starting others, as su and sshd do ---- */

static int exec_as(bool login, char **argv) {
    if (setgid(TENANT_UID) != 0 || setuid(TENANT_UID) != 0)
        give_up("setuid");
    if (login) {
        char library_path[4200], driver[4200];
        snprintf(library_path, sizeof library_path, "LD_LIBRARY_PATH=%s", getenv("LD_LIBRARY_PATH"));
        snprintf(driver, sizeof driver, "HAMI_SIM_DRIVER=%s", getenv("HAMI_SIM_DRIVER"));
        char *environment[] = {library_path, driver, (char *)(uintptr_t)"HOME=/", (char *)(uintptr_t)"USER=tenant",
                               NULL};
        for (int file = 3; file < 64; file++)
            close(file);
        if (setsid() < 0 && errno != EPERM)
            give_up("setsid");
        if (chdir("/") != 0)
            give_up("/");
        umask(077);
        execve(argv[0], argv, environment);
    }
    execv(argv[0], argv);
    give_up(argv[0]);
    return 1;
}

static void test_a_container(const struct sandbox *sandbox) {
    struct container container = make_container(sandbox);
    struct vg_limits_page page = limits_page_of(&container.sandbox, 200, 100);
    limits_page_write(&container.host, &page, sizeof page);
    struct vg_limits_page *mapped = limits_page_open(&container.host); /* before it is out of reach */
    become_a_tenant();
    test_every_way_is_held(&container);
    test_the_page_cannot_be_changed_from_inside(&container);
    test_live_changes_reach_the_container(&container, mapped);
    test_every_way_is_held(&container);
    munmap(mapped, VG_LIMITS_PAGE_BYTES);
}

/* Where there is no /proc the loader says where the library lies. */
static void test_without_proc(const struct sandbox *sandbox) {
    struct container container = make_container(sandbox);
    struct vg_limits_page page = limits_page_of(&container.sandbox, 200, 100);
    char output[SANDBOX_OUTPUT];
    limits_page_write(&container.host, &page, sizeof page);
    if (mount("none", "/proc", "tmpfs", 0, NULL) != 0)
        give_up("/proc");
    become_a_tenant();
    CHECK_EQUAL(run_shell(&container, OVER_ALLOC, output), 0);
    CHECK_THAT(strstr(output, "\"granted_mib\": 200,") != NULL, output);
}

/* Without the page the environment holds, as ever. */
static void test_without_the_page(const struct sandbox *sandbox) {
    struct container container = make_container(sandbox);
    char output[SANDBOX_OUTPUT];
    become_a_tenant();
    CHECK_EQUAL(run_shell(&container, OVER_ALLOC, output), 0);
    CHECK_THAT(strstr(output, "\"granted_mib\": 5000,") != NULL, output);
}

/* Its mounts end with its process; what is left are plain files. */
static void in_a_namespace(void (*test)(const struct sandbox *)) {
    struct sandbox sandbox = sandbox_make();
    pid_t child = fork();
    int status = -1;
    if (child == 0) {
        if (!enter_namespace())
            _exit(SKIPPED);
        test(&sandbox);
        _exit(check_done());
    }
    waitpid(child, &status, 0);
    sandbox_remove(&sandbox);
    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) {
        printf("SKIPPED: a mount namespace cannot be made here (it takes root with CAP_SYS_ADMIN)\n");
        exit(SKIPPED);
    }
    CHECK_EQUAL(status, 0);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "answer") == 0)
        return asked_answer();
    if (argc > 2 && strcmp(argv[1], "as-tenant") == 0)
        return exec_as(false, argv + 2);
    if (argc > 2 && strcmp(argv[1], "as-login") == 0)
        return exec_as(true, argv + 2);
    in_a_namespace(test_a_container);
    in_a_namespace(test_without_proc);
    in_a_namespace(test_without_the_page);
    return check_done();
}
