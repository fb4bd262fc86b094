/* The file that vgpu-sniff shares with the processes it watches: events are appended by whoever sees them, without
 * locks, and counted by the tool at the end. */
#ifndef VGPU_SNIFF_LOG_H
#define VGPU_SNIFF_LOG_H

#include <stdatomic.h>
#include <stdint.h>

#define SNIFF_LOG_VARIABLE "VGPU_SNIFF_LOG" /* its path */
#define SNIFF_EVENTS 65536u

enum sniff_how { SNIFF_LINKED = 1, SNIFF_DLSYM, SNIFF_DLVSYM, SNIFF_GET_PROC_ADDRESS, SNIFF_EXPORT_TABLE };

struct sniff_event {
    _Atomic uint32_t written;
    uint8_t how;          /* enum sniff_how */
    uint8_t needs_driver; /* SNIFF_LINKED: the object names the driver's library */
    uint16_t flags;       /* of cuGetProcAddress */
    int32_t version;
    int32_t result;
    char name[64]; /* symbol, base name, or the table's id */
    char asked_by[48];
};

struct sniff_log {
    _Atomic uint32_t events;
    _Atomic uint32_t programs; /* started: an exec counts, a fork does not */
    struct sniff_event event[SNIFF_EVENTS];
};

#endif
