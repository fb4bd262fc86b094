/* Programs that use a card as much as they may, on a virtual clock, and how much they got. */
#ifndef VGPU_TEST_SHARE_H
#define VGPU_TEST_SHARE_H

#include <stdint.h>

#include "sandbox.h"

enum share_kind {
    SHARE_KERNEL,
    SHARE_PER_THREAD,
    SHARE_EX,
    SHARE_COOPERATIVE,
    SHARE_GRAPH,
    SHARE_GRID,
    SHARE_GRID_ASYNC,
    SHARE_MULTI_DEVICE,
    SHARE_BESIDE_CAPTURE, /* kernels while the program's first thread captures a stream, and never ends that */
    SHARE_KINDS
};
extern const char *const share_kind_names[SHARE_KINDS];

struct share_program {
    enum share_kind kind;
    unsigned kernel_us; /* of a wave */
    unsigned other_us;  /* of another kernel, launched in turn; 0 = none */
    unsigned threads;   /* of the program; each fills the card */
    unsigned streams;   /* that each thread uses in turn; 0 = the default one */
    unsigned pause_us;  /* after each launch: a program that uses little */
    unsigned seconds;   /* of the virtual clock, from the first launch on */
};

/* What the node does to the container's region meanwhile, or to the process that has these actions. */
enum share_deed {
    SHARE_NOTHING,
    SHARE_SET_LIMIT,     /* the region's percent */
    SHARE_SET_SWITCH,    /* the monitor's utilisation switch */
    SHARE_BLOCK,         /* the monitor's recent_kernel := value */
    SHARE_KEEP_BLOCKED,  /* every 5 seconds from then on, as a monitor does */
    SHARE_NONSENSE,      /* every word of the card's compute := value */
    SHARE_KILL,          /* SIGKILL to itself */
    SHARE_KILL_MEASURING /* the same, which must be while it runs its first kernel alone */
};
struct share_action {
    unsigned at_ms;
    enum share_deed deed;
    int value;
};
#define SHARE_ACTIONS 3

/* One container's part in a run. */
struct share_container {
    unsigned percent;
    unsigned processes;
    bool known_to_nvml; /* its host pids are known, as an agent or monitor would write them */
    const char *policy; /* NULL = the default */
    struct share_program program;
    struct share_action actions[SHARE_ACTIONS]; /* of its first process, in order of time */
    uint64_t served_ns;                         /* out: device time that all its processes got */
    uint64_t launches;                          /* out */
};

/* Runs them side by side on card 0 of a machine of its own. False: some process failed; it has been said. */
bool share_run(unsigned sm_count, struct share_container *containers, unsigned count);

/* main's part: true when this process is one of the programs, and has done its work. */
bool share_is_program(int argc, char **argv);

#endif
