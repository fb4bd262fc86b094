#include "stepper.h"

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define MARK SIGUSR2

void stepper_ready(void) {
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
        _exit(STEPPER_FORBIDDEN);
    raise(SIGSTOP);
}

void stepper_mark(void) {
    raise(MARK);
}

/* Signals of its own reach it; ours do not. */
static enum stepper_stop go_on(pid_t pid, enum __ptrace_request how) {
    int signal = 0, status = 0;
    for (;;) {
        if (ptrace(how, pid, NULL, (void *)(uintptr_t)signal) != 0)
            return STEPPER_ENDED;
        if (waitpid(pid, &status, __WALL) != pid || !WIFSTOPPED(status))
            return STEPPER_ENDED;
        signal = WSTOPSIG(status);
        if (signal == MARK)
            return STEPPER_MARKED;
        if (signal == SIGTRAP || signal == (SIGTRAP | 0x80))
            return STEPPER_MOVED;
    }
}

bool stepper_attach(pid_t pid) {
    int status = 0;
    return waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status) &&
           ptrace(PTRACE_SETOPTIONS, pid, NULL, (void *)(uintptr_t)(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)) == 0;
}

enum stepper_stop stepper_run(pid_t pid) {
    return go_on(pid, PTRACE_CONT);
}

enum stepper_stop stepper_step(pid_t pid) {
    return go_on(pid, PTRACE_SINGLESTEP);
}

enum stepper_stop stepper_to_system_call(pid_t pid) {
    return go_on(pid, PTRACE_SYSCALL);
}
