#include "sim_clock.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define SEATS 256
#define MAGIC 0x53434c4bu
#define START_NS 1000000000000ull       /* no clock of a machine that runs shows zero */
#define EPOCH_NS 1700000000000000000ull /* what the wall clock shows more */
#define RUN_AHEAD_NS 20000ull           /* a thread's small expenses are added up to this before others may run */
#define LOOK_MS 20 /* how often, in real time, those who wait look whether the one who runs is alive */

/* A thread that takes part. It holds `alive` until it ends, however that comes. */
struct seat {
    uint32_t taken;
    uint32_t waiting;
    uint64_t wake_ns;
    uint64_t order;        /* among those who wake at one moment */
    _Atomic uint32_t turn; /* a futex: 1 = run */
    pthread_mutex_t alive;
};

struct machine {
    _Atomic uint32_t magic;
    pthread_mutex_t lock;
    _Atomic uint64_t now_ns;
    uint64_t next_order;
    uint32_t entered;
    uint32_t running; /* seat + 1; 0 = nobody */
    struct seat seats[SEATS];
};

static struct machine *machine;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool is_virtual;
static _Thread_local struct seat *own;
static _Thread_local uint64_t spent_ns;

static struct {
    int (*clock_gettime)(clockid_t, struct timespec *);
    int (*clock_nanosleep)(clockid_t, int, const struct timespec *, struct timespec *);
} real;

static uint64_t to_ns(const struct timespec *t) {
    return (uint64_t)t->tv_sec * 1000000000ull + (uint64_t)t->tv_nsec;
}

static struct timespec to_timespec(uint64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000ull), .tv_nsec = (long)(ns % 1000000000ull)};
}

static void robust(pthread_mutex_t *mutex) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

static void lay_out(struct machine *m) {
    robust(&m->lock);
    for (int i = 0; i < SEATS; i++)
        robust(&m->seats[i].alive);
    m->next_order = 1000000;
    atomic_store(&m->now_ns, START_NS);
    atomic_store(&m->magic, MAGIC);
}

static void open_machine(void) {
    char path[4200];
    const char *state = getenv("HAMI_SIM_STATE"), *node = getenv("HAMI_SIM_DRIVER");
    snprintf(path, sizeof path, "%s%s", state != NULL ? state : node, state != NULL ? "" : ".state");
    (void)mkdir(path, 0777);
    strcat(path, "/clock.bin");
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || flock(file, LOCK_EX) != 0 || ftruncate(file, sizeof *machine) != 0) {
        perror(path);
        abort();
    }
    void *mapped = mmap(NULL, sizeof *machine, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED)
        abort();
    struct machine *m = mapped;
    if (atomic_load(&m->magic) != MAGIC)
        lay_out(m);
    flock(file, LOCK_UN);
    close(file);
    machine = m;
}

static void forget_in_child(void) {
    own = NULL;
}

static void find_real(void *function, const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    memcpy(function, &found, sizeof found);
}

static void start(void) {
    const char *kind = getenv("HAMI_SIM_CLOCK");
    find_real(&real.clock_gettime, "clock_gettime");
    find_real(&real.clock_nanosleep, "clock_nanosleep");
    if (kind == NULL || strcmp(kind, "virtual") != 0 ||
        (getenv("HAMI_SIM_STATE") == NULL && getenv("HAMI_SIM_DRIVER") == NULL))
        return;
    open_machine();
    pthread_atfork(NULL, NULL, forget_in_child);
    is_virtual = true;
}

static bool virtual_clock(void) {
    pthread_once(&once, start);
    return is_virtual;
}

static void lock(void) {
    if (pthread_mutex_lock(&machine->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&machine->lock);
}

static void unlock(void) {
    pthread_mutex_unlock(&machine->lock);
}

static bool is_dead(struct seat *seat) {
    if (seat == own)
        return false;
    int result = pthread_mutex_trylock(&seat->alive);
    if (result == EBUSY)
        return false;
    if (result == EOWNERDEAD)
        pthread_mutex_consistent(&seat->alive);
    pthread_mutex_unlock(&seat->alive);
    return true;
}

static struct seat *earliest(void) {
    struct seat *found = NULL;
    for (int i = 0; i < SEATS; i++) {
        struct seat *seat = &machine->seats[i];
        if (seat->taken && seat->waiting &&
            (found == NULL || seat->wake_ns < found->wake_ns ||
             (seat->wake_ns == found->wake_ns && seat->order < found->order)))
            found = seat;
    }
    return found;
}

static uint32_t parties(void) {
    const char *text = getenv(SIM_CLOCK_PARTIES);
    return text == NULL ? 1 : (uint32_t)strtoul(text, NULL, 10);
}

/* With the lock held and nobody running: the next one runs. */
static void hand_over(void) {
    struct seat *next;
    machine->running = 0;
    if (machine->entered < parties())
        return;
    while ((next = earliest()) != NULL && is_dead(next))
        next->taken = 0;
    if (next == NULL)
        return;
    if (next->wake_ns > atomic_load(&machine->now_ns))
        atomic_store(&machine->now_ns, next->wake_ns);
    next->waiting = 0;
    machine->running = (uint32_t)(next - machine->seats) + 1;
    atomic_store(&next->turn, 1);
    if (next != own)
        syscall(SYS_futex, &next->turn, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* The one who runs may have been killed. */
static void look_after_runner(void) {
    lock();
    struct seat *runner = machine->running == 0 ? NULL : &machine->seats[machine->running - 1];
    if (runner == NULL || is_dead(runner)) {
        if (runner != NULL)
            runner->taken = 0;
        hand_over();
    }
    unlock();
}

static void await_turn(void) {
    struct timespec look = to_timespec(LOOK_MS * 1000000ull);
    uint32_t one = 1;
    while (!atomic_compare_exchange_strong(&own->turn, &one, 0)) {
        one = 1;
        if (syscall(SYS_futex, &own->turn, FUTEX_WAIT, 0, &look, NULL, 0) != 0 && errno == ETIMEDOUT)
            look_after_runner();
    }
}

/* Gives the clock away until that moment. */
static void wait_until(uint64_t wake_ns) {
    uint64_t now = atomic_load(&machine->now_ns) + spent_ns;
    spent_ns = 0;
    lock();
    own->wake_ns = wake_ns > now ? wake_ns : now;
    own->order = machine->next_order++;
    own->waiting = 1;
    hand_over();
    unlock();
    await_turn();
}

EXPORT void sim_clock_enter(unsigned number) {
    if (!virtual_clock() || own != NULL)
        return;
    lock();
    struct seat *seat = machine->seats;
    while (seat->taken && seat < machine->seats + SEATS)
        seat++;
    pthread_mutex_lock(&seat->alive);
    seat->taken = 1;
    seat->waiting = 1;
    seat->wake_ns = atomic_load(&machine->now_ns);
    seat->order = number;
    atomic_store(&seat->turn, 0);
    own = seat;
    spent_ns = 0;
    machine->entered++;
    if (machine->running == 0)
        hand_over();
    unlock();
    await_turn();
}

EXPORT void sim_clock_leave(void) {
    if (own == NULL)
        return;
    lock();
    struct seat *seat = own;
    own = NULL;
    seat->taken = 0;
    pthread_mutex_unlock(&seat->alive);
    if (machine->running == (uint32_t)(seat - machine->seats) + 1)
        hand_over();
    unlock();
}

EXPORT void sim_clock_spend(uint64_t ns) {
    if (own == NULL)
        return;
    spent_ns += ns;
    if (spent_ns >= RUN_AHEAD_NS)
        wait_until(0);
}

/* ---- libc's ---- */

EXPORT int clock_gettime(clockid_t clock, struct timespec *out) {
    if (!virtual_clock() || clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID)
        return real.clock_gettime(clock, out);
    bool wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    *out = to_timespec(atomic_load(&machine->now_ns) + spent_ns + (wall ? EPOCH_NS : 0));
    return 0;
}

EXPORT time_t time(time_t *out) {
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (out != NULL)
        *out = now.tv_sec;
    return now.tv_sec;
}

EXPORT int clock_nanosleep(clockid_t clock, int flags, const struct timespec *request, struct timespec *rest) {
    if (!virtual_clock())
        return real.clock_nanosleep(clock, flags, request, rest);
    /* Who does not take part waits for time to pass by itself: a moment means nothing to libc's clock. */
    if (own == NULL && (flags & TIMER_ABSTIME) != 0)
        return real.clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){.tv_nsec = 1000000}, NULL);
    if (own == NULL)
        return real.clock_nanosleep(clock, 0, request, rest);
    uint64_t now = atomic_load(&machine->now_ns) + spent_ns, asked = to_ns(request);
    if ((flags & TIMER_ABSTIME) == 0)
        wait_until(now + asked);
    else
        wait_until(clock == CLOCK_REALTIME ? asked - EPOCH_NS : asked);
    return 0;
}

EXPORT int nanosleep(const struct timespec *request, struct timespec *rest) {
    int result = clock_nanosleep(CLOCK_MONOTONIC, 0, request, rest);
    errno = result != 0 ? result : errno;
    return result != 0 ? -1 : 0;
}

EXPORT int usleep(useconds_t microseconds) {
    struct timespec request = to_timespec(microseconds * 1000ull);
    return nanosleep(&request, NULL);
}
