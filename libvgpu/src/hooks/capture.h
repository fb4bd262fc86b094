/* Which streams of this process are being captured into graphs: nothing but the program's own calls may go to them, and
 * what else reaches the driver meanwhile must not spoil the capture. */
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

/* A stream is destroyed: it takes no part any more, and a capture that it began is over. */
void vgi_capture_lost(CUstream stream);

/* Before contexts are destroyed: from here on a stream's handle may be another's. */
void vgi_doubt_captures(void);

/* Around calls of ours that drivers forbid while any thread captures (questions for events and streams), on what takes
 * no part in it: the thread says that they do not concern the captures. That holds for one that begins in between, too.
 * False: they may not be made, the driver (before CUDA 10.1) cannot be told. */
struct vgi_aside {
    CUstreamCaptureMode mode; /* the thread's own */
    bool changed;
};
bool vgi_begin_aside(struct vgi_aside *aside);
void vgi_end_aside(struct vgi_aside *aside);

#endif
