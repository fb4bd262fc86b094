/* Which device a stream belongs to: memory allocated in its order comes from that device's pool. */
#ifndef VGPU_HOOKS_STREAM_H
#define VGPU_HOOKS_STREAM_H

#include "account/account.h"

/* The device of a stream that was made through us, else the current context's. */
CUresult vgi_device_of_stream(CUstream stream, CUdevice *device);

#endif
