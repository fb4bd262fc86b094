/* The driver's books: what every process of the simulated machine holds on every card, in one shared file.
 *
 * A process is alive as long as it holds a POSIX record lock on its slot's byte of `books.lock`: the kernel drops the
 * lock at exit, kill and exec, does not pass it to a fork's child, and translates the holder's pid into the asking
 * process's PID namespace. The lock file's descriptor is therefore never closed. */
#ifndef SIM_BOOKS_H
#define SIM_BOOKS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "description.h"

#define SIM_MAX_PROCESSES 256
#define SIM_TICKS 64 /* how many ticks of load are remembered */
#define SIM_TICK_NS 100000000ull
#define SIM_UTILISATION_TICKS 10 /* the window that NVML reports: one second */
#define SIM_EVENTS 256
#define SIM_MAX_SYMBOLS 1024
#define SIM_MAX_INSTANCES 8
#define SIM_MAX_SHARED 512

struct sim_tick {
    uint32_t number;
    uint32_t busy_ns;
};

/* Since a moment a process's work goes on at another speed. */
struct sim_turn {
    uint64_t at_ns;
    uint64_t served_ns;
};
#define SIM_TURNS 128

struct sim_process_card {
    uint64_t used_bytes;
    uint64_t launches;
    uint32_t allocations;
    uint32_t contexts;
    uint64_t enqueued_ns; /* device time of all kernels ever launched; and how much of it the card has done */
    uint64_t served_ns;
    uint32_t turn_count;
    struct sim_turn turns[SIM_TURNS];
    struct sim_tick ticks[SIM_TICKS];
};

struct sim_process {
    uint32_t in_use;
    int32_t pid;      /* as the process itself sees it, in its own PID namespace */
    int32_t host_pid; /* in an outer one, where somebody looked from there; 0 = nobody has */
    uint64_t pid_namespace;
    char name[64];
    struct sim_process_card cards[SIM_MAX_CARDS];
};

enum sim_mig_mode { SIM_MIG_AS_DESCRIBED, SIM_MIG_OFF, SIM_MIG_ON };

struct sim_gpu_instance {
    uint32_t in_use;
    uint32_t id;      /* as NVML numbers it, from 1 on a card */
    uint32_t profile; /* index into the card's profiles */
    uint32_t start, size;
    uint32_t number;      /* of all instances ever made on the card; part of the UUID */
    uint32_t has_compute; /* its one compute instance, of the whole, with id 0 */
    uint32_t held;        /* injected: a process uses it */
};

struct sim_card_state {
    uint64_t used_bytes;  /* sum over the processes; recomputed when one ends */
    uint64_t advanced_ns; /* up to when the card's work is worked out, see timeline.h */
    uint32_t active_count;
    uint16_t active[SIM_MAX_PROCESSES]; /* processes that have work on it */
    uint32_t lost;
    uint32_t fatal_errors;       /* how many ever hit the card that end the processes on it */
    int32_t fatal_code;          /* of the last: what CUDA tells them */
    int32_t temperature_celsius; /* -1 = as described */
    uint32_t mig_mode;           /* enum sim_mig_mode */
    uint32_t instances_made;
    uint64_t ecc_errors[2]; /* since the books were made: corrected, uncorrected */
    struct sim_gpu_instance instances[SIM_MAX_INSTANCES];
    uint64_t nvml_delay_us; /* injected: NVML queries of this card take this long */
};

/* Memory that several processes hold; see books_shared.h. */
struct sim_shared_memory {
    uint64_t serial; /* of all ever shared; 0 = a free place */
    uint64_t bytes;
    uint32_t card;
    uint8_t holders[SIM_MAX_PROCESSES / 8]; /* a bit for each process's slot */
};

#define SIM_NO_CARD UINT32_MAX

struct sim_event {
    uint32_t card;         /* SIM_NO_CARD: the driver does not say which */
    uint32_t gpu_instance; /* the one it is about; 0 = the card */
    uint64_t type;         /* NVML event type */
    uint64_t data;
};

struct sim_books {
    uint32_t magic;
    uint32_t version;
    pthread_mutex_t lock; /* robust, shared */
    struct sim_card_state cards[SIM_MAX_CARDS];
    struct sim_process processes[SIM_MAX_PROCESSES];
    _Atomic uint32_t event_count; /* events ever raised; a futex that waiters sleep on */
    struct sim_event events[SIM_EVENTS];
    uint64_t nvml_delay_us; /* injected: every NVML device query takes this long */
    uint64_t shared_made;
    struct sim_shared_memory shared[SIM_MAX_SHARED];
    _Atomic uint64_t unsupported_cuda[SIM_MAX_SYMBOLS];
    _Atomic uint64_t unsupported_nvml[SIM_MAX_SYMBOLS];
};

/* Opens (and where needed makes) the books in `directory`. Returns NULL with the reason on failure. */
struct sim_books *sim_books_open(const char *directory, char *reason, unsigned reason_size);

/* A new descriptor of the file whose locks tell which memory descriptors stand for (books_shared.c). */
int sim_books_open_shared_file(void);

void sim_books_lock(struct sim_books *books);
void sim_books_unlock(struct sim_books *books);

/* Takes a slot for this process. NULL when all are taken. The caller does not hold the lock. */
struct sim_process *sim_books_enter(struct sim_books *books);

/* With the lock held: forgets processes that ended. */
void sim_books_reclaim(struct sim_books *books);

/* With the lock held: the pid under which the driver lists the process: that of the outermost PID namespace in which
 * somebody has looked, as a driver knows its processes by the host's pids. 0: nobody who can see it has looked. */
pid_t sim_books_pid(struct sim_books *books, struct sim_process *process);

/* Raises an event and wakes everyone who waits for one. */
void sim_books_raise(struct sim_books *books, struct sim_event event);

/* Waits until `event_count` differs from `seen` or the time is over. */
void sim_books_wait_event(struct sim_books *books, uint32_t seen, unsigned timeout_milliseconds);

uint64_t sim_now_ns(void);

#endif
