#include "books_shared.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define BOOKS_MAGIC 0x53494d42u /* "SIMB" */
#define BOOKS_VERSION 6u

/* This library's descriptor of the books.lock last opened; see books.h for why none is ever closed. */
static int lock_file = -1;
static char lock_directory[4096];

uint64_t sim_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static int open_shared(const char *directory, const char *name) {
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file >= 0) {
        struct stat status;
        /* Containers of other users share the books, whatever the umask was. */
        if (fstat(file, &status) == 0 && status.st_uid == geteuid() && (status.st_mode & 0777) != 0666)
            (void)fchmod(file, 0666);
    }
    return file;
}

int sim_books_open_shared_file(void) {
    return open_shared(lock_directory, "books.shared");
}

static bool initialise(struct sim_books *books) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    bool made = pthread_mutex_init(&books->lock, &attributes) == 0;
    pthread_mutexattr_destroy(&attributes);
    for (int i = 0; i < SIM_MAX_CARDS; i++)
        books->cards[i].temperature_celsius = -1;
    books->version = BOOKS_VERSION;
    books->magic = BOOKS_MAGIC;
    return made;
}

/* First opener lays the file out; an OFD lock makes the others wait, also those in the same process. */
static struct sim_books *map_books(int file) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct stat status;
    void *mapped = MAP_FAILED;
    while (fcntl(file, F_OFD_SETLKW, &whole) != 0)
        if (errno != EINTR)
            return NULL;
    bool sized = fstat(file, &status) == 0 &&
                 ((size_t)status.st_size >= sizeof(struct sim_books) || ftruncate(file, sizeof(struct sim_books)) == 0);
    if (sized)
        mapped = mmap(NULL, sizeof(struct sim_books), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED)
        return NULL;
    struct sim_books *books = mapped;
    bool ready = books->magic == BOOKS_MAGIC ? books->version == BOOKS_VERSION : initialise(books);
    /* Closing would not do: the mapping keeps the open file description, and with it the lock, alive. */
    whole.l_type = F_UNLCK;
    (void)fcntl(file, F_OFD_SETLK, &whole);
    if (ready)
        return books;
    munmap(mapped, sizeof(struct sim_books));
    return NULL;
}

struct sim_books *sim_books_open(const char *directory, char *reason, unsigned reason_size) {
    if (mkdir(directory, 0777) == 0)
        (void)chmod(directory, 0777);
    int file = open_shared(directory, "books.bin");
    if (lock_file < 0 || strcmp(directory, lock_directory) != 0) {
        lock_file = open_shared(directory, "books.lock");
        snprintf(lock_directory, sizeof lock_directory, "%s", directory);
    }
    if (file < 0 || lock_file < 0) {
        snprintf(reason, reason_size, "cannot open the simulated driver's books in %s: %s", directory, strerror(errno));
        if (file >= 0)
            close(file);
        return NULL;
    }
    struct sim_books *books = map_books(file);
    close(file);
    if (books == NULL)
        snprintf(reason, reason_size, "the books in %s cannot be mapped or have another version; remove them",
                 directory);
    return books;
}

static void recompute_sums(struct sim_books *books) {
    for (int card = 0; card < SIM_MAX_CARDS; card++) {
        uint64_t sum = 0;
        for (int i = 0; i < SIM_MAX_PROCESSES; i++)
            if (books->processes[i].in_use)
                sum += books->processes[i].cards[card].used_bytes;
        books->cards[card].used_bytes = sum - (uint64_t)sim_shared_surplus(books, (unsigned)card);
    }
}

void sim_books_lock(struct sim_books *books) {
    if (pthread_mutex_lock(&books->lock) == EOWNERDEAD) {
        /* Its holder was killed between two counters. */
        recompute_sums(books);
        pthread_mutex_consistent(&books->lock);
    }
}

void sim_books_unlock(struct sim_books *books) {
    pthread_mutex_unlock(&books->lock);
}

static struct flock slot_lock(const struct sim_books *books, const struct sim_process *process) {
    return (struct flock){
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)(process - books->processes), .l_len = 1};
}

/* Whether someone else holds the slot; fills in who. One's own lock is never in one's way. */
static bool held_by_other(const struct sim_books *books, const struct sim_process *process, pid_t *holder) {
    struct flock lock = slot_lock(books, process);
    if (fcntl(lock_file, F_GETLK, &lock) != 0)
        return true; /* cannot tell: never take memory from a living process */
    *holder = lock.l_pid;
    return lock.l_type != F_UNLCK;
}

static uint64_t own_pid_namespace(void) {
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? (uint64_t)status.st_ino : 0;
}

static bool is_own(const struct sim_process *process) {
    return process->pid == (int32_t)getpid() && process->pid_namespace == own_pid_namespace();
}

void sim_books_reclaim(struct sim_books *books) {
    bool any = false;
    for (int i = 0; i < SIM_MAX_PROCESSES; i++) {
        struct sim_process *process = &books->processes[i];
        pid_t holder = 0;
        if (!process->in_use || is_own(process) || held_by_other(books, process, &holder))
            continue;
        sim_shared_forget(books, process);
        memset(process, 0, sizeof *process);
        any = true;
    }
    any |= sim_shared_sweep(books);
    if (any)
        recompute_sums(books);
}

static void read_own_name(char *out, size_t size) {
    memset(out, 0, size);
    ssize_t length = readlink("/proc/self/exe", out, size - 1);
    if (length <= 0)
        snprintf(out, size, "process %d", (int)getpid());
}

struct sim_process *sim_books_enter(struct sim_books *books) {
    struct sim_process *entered = NULL;
    sim_books_lock(books);
    sim_books_reclaim(books);
    /* A former image of this process (exec) or of a reused pid left its slot behind: its lock is gone. */
    for (int i = 0; i < SIM_MAX_PROCESSES; i++)
        if (books->processes[i].in_use && is_own(&books->processes[i])) {
            pid_t holder = 0;
            if (!held_by_other(books, &books->processes[i], &holder)) {
                sim_shared_forget(books, &books->processes[i]);
                memset(&books->processes[i], 0, sizeof books->processes[i]);
            }
        }
    recompute_sums(books);
    for (int i = 0; i < SIM_MAX_PROCESSES && entered == NULL; i++) {
        struct sim_process *process = &books->processes[i];
        struct flock lock = slot_lock(books, process);
        if (process->in_use || fcntl(lock_file, F_SETLK, &lock) != 0)
            continue;
        process->in_use = 1;
        process->pid = (int32_t)getpid();
        process->pid_namespace = own_pid_namespace();
        read_own_name(process->name, sizeof process->name);
        entered = process;
    }
    sim_books_unlock(books);
    return entered;
}

pid_t sim_books_pid(struct sim_books *books, struct sim_process *process) {
    bool inside = process->pid_namespace == own_pid_namespace();
    pid_t holder = 0;
    if (!is_own(process))
        (void)held_by_other(books, process, &holder);
    if (!inside && holder > 0)
        process->host_pid = holder;
    if (process->host_pid != 0)
        return process->host_pid;
    return inside ? process->pid : 0;
}

void sim_books_raise(struct sim_books *books, struct sim_event event) {
    sim_books_lock(books);
    uint32_t count = atomic_load(&books->event_count);
    books->events[count % SIM_EVENTS] = event;
    atomic_store(&books->event_count, count + 1);
    sim_books_unlock(books);
    syscall(SYS_futex, &books->event_count, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void sim_books_wait_event(struct sim_books *books, uint32_t seen, unsigned timeout_milliseconds) {
    struct timespec timeout = {.tv_sec = timeout_milliseconds / 1000,
                               .tv_nsec = (long)(timeout_milliseconds % 1000) * 1000000L};
    syscall(SYS_futex, &books->event_count, FUTEX_WAIT, seen, &timeout, NULL, 0);
}
