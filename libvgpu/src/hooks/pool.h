/* Memory of pools, for the calls that free memory of any kind. */
#ifndef VGPU_HOOKS_POOL_H
#define VGPU_HOOKS_POOL_H

#include "account/account.h"

/* Before a free: whether the pointer is a pool's; and after it. */
bool vgi_pooled_take(CUdeviceptr pointer, struct vgi_entry *entry);
void vgi_pooled_freed(CUresult result, const struct vgi_entry *entry);

#endif
