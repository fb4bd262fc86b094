/* What the files of sim-driver share. */
#ifndef SIM_TOOL_H
#define SIM_TOOL_H

#include <stdbool.h>

/* A whole number, not negative. */
bool tool_read_number(const char *text, unsigned long long *number);

/* Says how the tool is used; status 2. */
int tool_wrong_use(void);

/* fail, slow, kill, heal, count: tool_faults.c. False when the command is another's. */
bool tool_run_fault_command(const char *state_directory, char **words, int count, int *status);

/* The calls counted, as a JSON object. */
void tool_print_calls(const char *state_directory);

#endif
