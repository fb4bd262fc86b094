/* From noted events to what is printed. */
#ifndef VGPU_SNIFF_REPORT_H
#define VGPU_SNIFF_REPORT_H

#include <stdbool.h>
#include <stdio.h>

#include "log.h"

struct sniff_ending {
    char *const *argv;
    int exit_status; /* as a shell tells it */
};

/* False: there is no memory for it. */
bool sniff_report(FILE *out, const struct sniff_log *log, const struct sniff_ending *ending, bool json);

#endif
