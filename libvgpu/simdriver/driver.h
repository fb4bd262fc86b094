/* State of the simulated libcuda in one process, and what its files share. */
#ifndef SIM_DRIVER_H
#define SIM_DRIVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "books.h"
#include "description.h"
#include "vgpu/abi/cuda_fn.h"

/* Marks the function behind an exported name, which is entry.h's. */
#define SIM_API
#define SIM_BODY(symbol) __asm__("sim_body_" #symbol)

/* Every exported function must have the type its row in hooks/cuda.def names. */
#define CUDA_HOOK(symbol, base, type, version, streams, area) extern __typeof__(*(type)0) symbol SIM_BODY(symbol);
#define CUDA_CALL CUDA_HOOK
#define CUDA_NAME(symbol, base, version, streams) extern CUresult symbol(void) SIM_BODY(symbol);
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME

/* What must be done before a stream is idle: the process's work on its card up to a position (0 = none), and whatever
 * it waits for on other cards. */
struct sim_stream_work {
    uint64_t position;
    uint64_t not_before_ns;
};

#define SIM_LIMITS 3 /* stacks, output, heap */

struct CUctx_st {
    uint32_t magic;
    int device; /* CUDA ordinal */
    bool primary;
    unsigned references; /* of a primary context, and by cuCtxAttach */
    unsigned flags;
    size_t limits[SIM_LIMITS]; /* by CUlimit */
    size_t limit_bytes;        /* charged for those that are larger than at the beginning */
    bool heap_in_place;        /* it is charged then, and stays as it is */
    CUcontext parent;          /* of a green context: the primary one, whose memory it uses */
    struct sim_stream_work default_stream;
    struct CUctx_st *next;
};

enum sim_allocation_kind {
    SIM_LINEAR,
    SIM_MANAGED,
    SIM_POOLED,
    SIM_GRAPH,           /* of an allocation node, backed by its exec */
    SIM_MAPPED,          /* of a handle of virtual memory management */
    SIM_EXTERNAL_BUFFER, /* of imported memory, which holds the charge */
    SIM_IPC,             /* another process's, which holds the charge */
    SIM_HOST,
    SIM_REGISTERED /* the program's own host memory */
};

struct sim_allocation {
    CUdeviceptr address;
    size_t bytes;
    int device;
    enum sim_allocation_kind kind;
    CUcontext context;
    CUmemoryPool pool;
    struct sim_graph_block *block; /* of a graph */
    bool touched;                  /* pages of the host may lie behind it */
    struct sim_allocation *next;
};

struct sim_driver {
    bool initialised;
    struct sim_description description;
    struct sim_books *books;
    struct sim_process *process; /* own slot */
    unsigned device_count;
    unsigned cards[SIM_MAX_CARDS]; /* CUDA ordinal -> card of the description */
    pthread_mutex_t lock;          /* guards this process's tables, never held across a wait */
};

extern struct sim_driver sim;

/* A new primary reference, as cuDevicePrimaryCtxRetain takes it. */
CUresult sim_retain_primary(CUcontext *context, CUdevice device);

/* Makes a context known that was not made by cuCtxCreate, and unknown again. */
void sim_link_context(CUcontext context);
void sim_unlink_context(CUcontext context);

/* Gives a context the limits that it begins with; and puts its heap in place, for its first module with code. */
void sim_reset_limits(CUcontext context);
CUresult sim_reserve_heap(CUcontext context);

/* CUDA_SUCCESS, or why no call can be served now. */
CUresult sim_ready(void);

static inline bool sim_valid_device(int device) {
    return device >= 0 && (unsigned)device < sim.device_count;
}

static inline const struct sim_card *sim_card_of(int device) {
    return &sim.description.cards[sim.cards[device]];
}

static inline struct sim_card_state *sim_state_of(int device) {
    return &sim.books->cards[sim.cards[device]];
}

static inline struct sim_process_card *sim_own_card(int device) {
    return &sim.process->cards[sim.cards[device]];
}

/* cuda_health.c: this process begins to use a card; and CUDA_SUCCESS, or what hit the card since. */
void sim_card_is_used(int device);
CUresult sim_card_fault(int device);

/* The calling thread's context, or NULL; and with its checks. */
CUcontext sim_current_context(void);
CUresult sim_require_context(CUcontext *context);

/* Takes bytes of a card for this process, physically limited; gives them back. */
CUresult sim_charge(int device, size_t bytes);
void sim_uncharge(int device, size_t bytes);

/* Address space for a new allocation; NULL-like 0 when the machine has none left. */
CUdeviceptr sim_address_take(size_t bytes);
CUdeviceptr sim_address_take_low(size_t bytes); /* below 4 GiB */
void sim_address_give_back(CUdeviceptr address, size_t bytes);

/* Allocation table; the caller holds sim.lock. */
struct sim_allocation *sim_allocation_find(CUdeviceptr address);
struct sim_allocation *sim_allocation_containing(CUdeviceptr address);
bool sim_allocation_add(struct sim_allocation allocation);
bool sim_allocation_remove(CUdeviceptr address, struct sim_allocation *removed);

/* Charged and addressed memory of the current context, entered in the table. */
CUresult sim_allocate(CUdeviceptr *pointer, size_t bytes, enum sim_allocation_kind kind,
                      CUdeviceptr (*take)(size_t bytes));
void sim_count_allocations(int device, int change);

/* Frees what was allocated in a context; the caller does not hold sim.lock. */
void sim_free_context_memory(CUcontext context);

/* Takes one removed allocation out of the books and its pool. */
void sim_allocation_released(const struct sim_allocation *removed);
void sim_host_released(const struct sim_allocation *removed);
void sim_pool_returned(CUmemoryPool pool, size_t bytes);
void sim_graph_block_freed(struct sim_graph_block *block);

/* Frees an allocation of any kind that a program frees by its address. */
CUresult sim_free(CUdeviceptr pointer);

/* The device whose stream it is; of a default stream the current context's, or -1 without one. */
int sim_stream_device(CUstream stream);

/* What a pool of the device reserves for that many bytes. */
uint64_t sim_pool_round(int device, size_t bytes);

/* Captures under way in this process; and whether a call that may be unsafe spoils one, which it then does. */
extern _Atomic unsigned sim_captures;
CUresult sim_unsafe_call(void);

/* Puts a kernel on the card's timeline, so long for each full wave of its blocks; blocks while the process's queue is
 * full. */
CUresult sim_launch(uint64_t blocks, uint64_t threads_per_block, uint64_t wave_ns, CUstream stream, bool per_thread);

/* What a kernel's wave takes unless the kernel says so itself. */
uint64_t sim_wave_ns(void);

/* When the stream's work ends, in sim_now_ns() time, as far as can be told; and sleeping until a time. */
uint64_t sim_stream_end(CUstream stream, bool per_thread);
void sim_sleep_until(uint64_t ns);

/* On a virtual clock (sim_clock.h) a call takes the host this long; on the real one it takes what it takes. */
#define SIM_LAUNCH_HOST_NS 2000u
#define SIM_RECORD_HOST_NS 500u
#define SIM_QUERY_HOST_NS 500u
void sim_host_spend(unsigned ns);

/* Answers for a driver symbol that the simulation lacks, and counts it. */
CUresult sim_unsupported(unsigned symbol_id);

#endif
