/* Memory pools of this process. A pool reserves whole chunks from its card. What is freed in the order of a stream
 * stays reserved; a synchronisation, once the stream is there, trims it to the release threshold. */
#ifndef SIM_POOL_H
#define SIM_POOL_H

#include "driver.h"

struct CUmemPoolHandle_st {
    int device; /* -1: on the host, which costs no card anything */
    CUmemAllocationType type;
    bool is_default;
    bool imported;  /* another process's: hands nothing out here */
    bool destroyed; /* lives until what it handed out is freed */
    uint64_t threshold;
    uint64_t reserved, reserved_high;
    uint64_t used, used_high;
    uint64_t busy_until_ns;                  /* when the last stream gets to what was freed in its order */
    CUmemAccess_flags access[SIM_MAX_CARDS]; /* of other devices */
    struct CUmemPoolHandle_st *next;
};

/* ---- cuda_pool.c; the caller holds sim.lock ---- */

bool sim_is_pool(CUmemoryPool pool);
CUmemoryPool sim_pool_current(int device);
void sim_pool_trim(CUmemoryPool pool, uint64_t keep);

/* Trims all pools to their thresholds, as a synchronisation does; the caller does not hold sim.lock. */
void sim_pools_synchronised(void);

/* ---- cuda_pool_list.c; the caller holds sim.lock ---- */

extern CUmemoryPool sim_made_pools;
CUmemoryPool sim_pool_default(int device, CUmemAllocationType type); /* device -1: the host's */
CUresult sim_pool_make(CUmemoryPool *pool, const struct CUmemPoolHandle_st *content);

#endif
