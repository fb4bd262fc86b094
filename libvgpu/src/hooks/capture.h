/* Which streams of this process are being captured into graphs: meanwhile nothing but the program's own calls may reach
 * the driver, since others may spoil the capture. */
#ifndef VGPU_HOOKS_CAPTURE_H
#define VGPU_HOOKS_CAPTURE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "account/account.h"

extern _Atomic unsigned vgi_captures;

/* Whether any capture is under way in this process. */
static inline bool vgi_any_capture(void) {
    return __builtin_expect(atomic_load_explicit(&vgi_captures, memory_order_acquire) != 0, 0);
}

/* Whether this very stream is captured: it began a capture, or joined one by an event. `per_thread`: NULL is the
 * thread's own. */
bool vgi_capturing(CUstream stream, bool per_thread);

/* A stream is destroyed: a capture that it began is over. */
void vgi_capture_lost(CUstream stream);

#endif
