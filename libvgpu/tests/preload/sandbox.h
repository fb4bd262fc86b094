/* A machine for one test: its own simulated cards, books and region file, and processes in it with or without libvgpu.
 *
 * A test program starts itself again as the process under test: `main` hands over to a body when it is the child. */
#ifndef VGPU_TEST_SANDBOX_H
#define VGPU_TEST_SANDBOX_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SANDBOX_OUTPUT 16384

struct sandbox {
    char directory[64];
    char region[128]; /* path of the region file */
};

/* Two cards of 40,960 MiB, GPU-...-000000000000 and ...01. */
struct sandbox sandbox_make(void);
void sandbox_remove(const struct sandbox *sandbox);

/* A process: argv[0] is looked up as it is. `environment` adds to a clean one; pairs "NAME=value", NULL at the end. */
struct sandbox_process {
    pid_t pid;
    int output; /* its stdout and stderr together */
};
struct sandbox_process sandbox_start(const struct sandbox *sandbox, bool with_vgpu, const char *const *environment,
                                     const char *const *argv);

/* Reads until the output holds `text` or ends. */
bool sandbox_await(const struct sandbox_process *process, const char *text);

/* The rest of the output and how it ended: exit status, or -signal. */
int sandbox_finish(const struct sandbox_process *process, char output[SANDBOX_OUTPUT]);

/* Start and finish. */
int sandbox_run(const struct sandbox *sandbox, bool with_vgpu, const char *const *environment, const char *const *argv,
                char output[SANDBOX_OUTPUT]);

/* This very program, as it was started. */
const char *sandbox_self(void);

/* Bytes that the simulated driver's books hold on a card: of all processes, or of one. */
uint64_t sandbox_books_used(const struct sandbox *sandbox, unsigned card, pid_t pid_or_0);

/* The region file mapped for reading; NULL when it is not there. */
struct vg_region *sandbox_region(const struct sandbox *sandbox);

/* Faults of the simulated driver (simdriver/faults.h), for the processes of a sandbox; NULL: the machine that this
 * process itself is in. After `after` calls of the symbol have come through, `times` calls (0 = all) return `code`. */
void sandbox_fail(const struct sandbox *sandbox, const char *symbol, int code, uint64_t after, uint64_t times);
void sandbox_heal(const struct sandbox *sandbox);

/* Whether a fault of that symbol, armed here or by sim-driver, has met a call: that one cannot meet another. */
bool sandbox_has_met(const struct sandbox *sandbox, const char *symbol);

/* Begins to count calls, from zero; how often a symbol was called since. */
void sandbox_count_calls(const struct sandbox *sandbox);
uint64_t sandbox_calls(const struct sandbox *sandbox, const char *symbol);

#define WORKLOAD VGPU_BINARY_DIR "/bin/vgpu-workload"

#endif
