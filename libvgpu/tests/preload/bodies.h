/* Tests whose program starts itself again as the process under test: a body by its name, on a machine of its own. The
 * slice is 100 MiB of each of two cards. */
#ifndef VGPU_TEST_BODIES_H
#define VGPU_TEST_BODIES_H

#include <stddef.h>

#include "check.h"
#include "reach.h"
#include "sandbox.h"

#define MIB (1024ull * 1024ull)
#define BODIES_LIMIT "CUDA_DEVICE_MEMORY_LIMIT=100m"

struct body {
    const char *name;
    void (*run)(void);
};

/* Two cards of 40,960 MiB, each with `more` in its description. */
#define CARDS(more)                                                                                                    \
    "\"cards\": [{\"uuid\": \"GPU-11111111-2222-3333-4444-000000000000\", \"name\": \"A\", \"memory_mib\": 40960" more \
    "}, {\"uuid\": \"GPU-11111111-2222-3333-4444-000000000001\", \"name\": \"B\", \"memory_mib\": 40960" more "}]}"
#define ORDINARY_MACHINE "{" CARDS("")

/* In the process under test: the device's primary context is made current; free bytes of the current device. */
void use_device(int device);
uint64_t seen_free(void);

/* Runs the body of that name; what main returns. */
int run_body(const struct body *bodies, size_t count, const char *name);
#define RUN_BODY(bodies, name) run_body(bodies, sizeof(bodies) / sizeof(bodies)[0], name)

/* A sandbox with that description. */
struct sandbox make_machine(const char *description);

/* Runs a body alone on such a machine, with `variable` in its environment unless NULL; afterwards nothing is left in
 * the accounts nor in the driver's books. */
void check_body(const char *name, const char *description, const char *variable);
void check_empty(const struct sandbox *sandbox, const char *what);

#endif
