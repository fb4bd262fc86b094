/* Launches are noted in the region: the monitor sees who is active, and makes those of lower priority wait. */
#ifndef VGPU_COMPUTE_ACTIVITY_H
#define VGPU_COMPUTE_ACTIVITY_H

#include <stdbool.h>

/* Before every launch while attached, and again while one waits. Waits as long as the monitor blocks the container.
 * True about once a second: time for what need not be done oftener. */
bool vgi_note_launch(void);

#endif
