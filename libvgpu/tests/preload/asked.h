/* A process under test that does CUDA and NVML calls one at a time, as its test asks it. */
#ifndef VGPU_TEST_ASKED_H
#define VGPU_TEST_ASKED_H

#include "sandbox.h"

struct asked {
    struct sandbox_process process;
    int questions;
    char said[SANDBOX_OUTPUT]; /* what else it wrote: the library's messages */
};

/* Starts argv in a sandbox without LD_PRELOAD but what the environment names. The program must call asked_answer(). */
struct asked asked_start(const struct sandbox *sandbox, const char *const *environment, const char *const *argv);

/* One question and its answer:
 *   init                  cuInit's code
 *   count                 devices
 *   alloc DEVICE BYTES    the code of cuMemAlloc; what was allocated is freed again
 *   keep DEVICE BYTES     the same, kept
 *   info DEVICE           "free total" of cuMemGetInfo
 *   total DEVICE          cuDeviceTotalMem
 *   uuid DEVICE           "GPU-..."
 *   nvml UUID             "code total used free" of nvmlDeviceGetMemoryInfo
 *   fork QUESTION         a child's answer to it, which starts CUDA itself: not after init, the driver forbids it
 *   chdir PATH            0
 *   unprotect             0: a page of the code behind cuInit may be written from now on
 * The answer lies in one buffer, until the next question. */
const char *asked_question(struct asked *asked, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* As asked_question, for answers that are a number. */
long long asked_number(struct asked *asked, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Ends it; how it ended, as sandbox_finish. */
int asked_finish(struct asked *asked);

/* The process's side: answers until nobody asks any more. */
int asked_answer(void);

#endif
