/* Running a process of ours instruction by instruction, or system call by system call, to kill it wherever we like.
 *
 * The process says stepper_ready() first; then it stops at every stepper_mark(). */
#ifndef VGPU_TEST_STEPPER_H
#define VGPU_TEST_STEPPER_H

#include <stdbool.h>
#include <sys/types.h>

/* ---- in the process ---- */

/* Lets its parent trace it, and waits for it. Exits with STEPPER_FORBIDDEN where the machine allows no tracing. */
void stepper_ready(void);
void stepper_mark(void);

#define STEPPER_FORBIDDEN 77

/* ---- in its parent ---- */

enum stepper_stop { STEPPER_MOVED, STEPPER_MARKED, STEPPER_ENDED };

/* False: it ended, or may not be traced (then it ended with STEPPER_FORBIDDEN). */
bool stepper_attach(pid_t pid);

/* Lets it run to its next mark, or its end. */
enum stepper_stop stepper_run(pid_t pid);
/* One instruction. */
enum stepper_stop stepper_step(pid_t pid);
/* To the entry or the exit of its next system call. */
enum stepper_stop stepper_to_system_call(pid_t pid);

#endif
