#include "pool_account.h"

#include "capture.h"
#include "graph_memory.h"
#include "vgpu/prim.h"

#define LOOKS 16                 /* synchronisations after a free that look whether its memory was returned */
#define MOST_CHUNK (32ull << 20) /* drivers reserve in chunks of 2 or 32 MiB */

_Atomic uint32_t vgi_pools_watched;

/* ---- looking at the driver's side ---- */

/* Around a call of ours with the pool's handle, which another thread may be about to destroy: it waits for us, or we
 * stay away. */
static bool begin_use(struct vgi_pool *pool) {
    atomic_fetch_add(&pool->in_use, 1);
    if (!atomic_load(&pool->hidden))
        return true;
    atomic_fetch_sub(&pool->in_use, 1);
    return false;
}

static void end_use(struct vgi_pool *pool) {
    atomic_fetch_sub(&pool->in_use, 1);
}

static CUresult ask_driver(struct vgi_pool *pool, bool used, cuuint64_t *bytes) {
    return pool->of_graphs
               ? VGI_CUDA(cuDeviceGetGraphMemAttribute, pool->device,
                          used ? CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT : CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes)
               : VGI_CUDA(cuMemPoolGetAttribute, pool->handle,
                          used ? CU_MEMPOOL_ATTR_USED_MEM_CURRENT : CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes);
}

static bool ask(struct vgi_pool *pool, bool used, uint64_t *bytes) {
    struct vgi_aside aside;
    cuuint64_t value = 0;
    CUresult result = CUDA_ERROR_NOT_PERMITTED;
    if (!begin_use(pool))
        return false;
    if (!vgi_any_capture()) {
        result = ask_driver(pool, used, &value);
    } else {
        if (vgi_begin_aside(&aside))
            result = ask_driver(pool, used, &value);
        vgi_end_aside(&aside);
    }
    end_use(pool);
    *bytes = value;
    return result == CUDA_SUCCESS;
}

/* The most that so many pieces make a pool grow by. Its chunk is known as far as the lowest bit of all sizes it was
 * seen to have. */
static uint64_t most_growth(const struct vgi_pool *pool, uint64_t bytes, uint64_t pieces) {
    uint64_t seen = __atomic_load_n(&pool->seen, __ATOMIC_RELAXED), rounding = 0, most = 0;
    uint64_t chunk = seen & (0 - seen);
    if (chunk > MOST_CHUNK || chunk == 0)
        chunk = MOST_CHUNK;
    if (__builtin_mul_overflow(pieces, chunk - 1, &rounding) || __builtin_add_overflow(bytes, rounding, &most))
        return bytes;
    return most / chunk * chunk;
}

/* ---- claims ---- */

/* How much of `bytes` the pool's unused memory covers; it is then lent to this call. */
static uint64_t borrow(struct vgi_pool *pool, uint64_t bytes) {
    uint64_t reserved = 0, used = 0;
    if (!ask(pool, false, &reserved) || !ask(pool, true, &used) || used >= reserved)
        return 0;
    pthread_mutex_lock(&pool->lock);
    uint64_t spare = reserved - used;
    spare = spare > pool->lent ? spare - pool->lent : 0;
    if (spare > bytes)
        spare = bytes;
    pool->lent += spare;
    pthread_mutex_unlock(&pool->lock);
    return spare;
}

static void return_loan(struct vgi_pool *pool, uint64_t bytes) {
    if (bytes == 0)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->lent -= bytes;
    pthread_mutex_unlock(&pool->lock);
}

static bool claim_with_loan(struct vgi_pool *pool, uint64_t bytes, uint64_t pieces, struct vgi_growth *growth,
                            struct vgi_claim *claim) {
    growth->lent = borrow(pool, bytes);
    uint64_t rest = growth->lent < bytes ? most_growth(pool, bytes - growth->lent, pieces) : 0;
    if (growth->lent > 0 && vgi_claim_at_once(pool->device, rest, claim))
        return true;
    return_loan(pool, growth->lent);
    growth->lent = 0;
    return false;
}

/* First the most it may grow by; then only what its unused memory does not cover; then what is left when nothing of
 * this process lies idle. */
CUresult vgi_pool_claim(struct vgi_pool *pool, uint64_t bytes, uint64_t pieces, struct vgi_growth *growth) {
    struct vgi_claim claim;
    growth->lent = 0;
    growth->hands_out = !pool->of_graphs;
    if (!vgi_claim_at_once(pool->device, most_growth(pool, bytes, pieces), &claim) &&
        !claim_with_loan(pool, bytes, pieces, growth, &claim)) {
        CUresult result = vgi_claim_provisionally(pool->device, bytes, &claim);
        if (result != CUDA_SUCCESS && !claim_with_loan(pool, bytes, pieces, growth, &claim))
            return result;
    }
    growth->provisional = claim.card >= 0;
    pthread_mutex_lock(&pool->lock);
    vgi_reserve_claim(&pool->reserve, &growth->call, claim.bytes);
    pthread_mutex_unlock(&pool->lock);
    return CUDA_SUCCESS;
}

/* ---- settling ---- */

static void begin_shrinking(struct vgi_pool *pool, struct vgi_growth *growth) {
    vgi_begin_shrinking(pool->card);
    growth->provisional = true;
}

static void end_shrinking(struct vgi_pool *pool, struct vgi_growth *growth) {
    if (growth->provisional)
        vgi_end_shrinking(pool->card);
    growth->provisional = false;
}

/* With its lock: the next synchronisations shall look whether it shrank. */
static void watch(struct vgi_pool *pool) {
    if (pool->looks_left == 0)
        atomic_fetch_add(&vgi_pools_watched, 1);
    pool->looks_left = LOOKS;
}

/* It could not be looked at: what was claimed stays, unless the call failed. */
static void settle_unseen(struct vgi_pool *pool, struct vgi_growth *growth, CUresult result) {
    uint64_t dropped = 0;
    pthread_mutex_lock(&pool->lock);
    if (result == CUDA_SUCCESS)
        vgi_reserve_keep(&pool->reserve, &growth->call);
    else
        dropped = vgi_reserve_drop(&pool->reserve, &growth->call);
    watch(pool);
    pthread_mutex_unlock(&pool->lock);
    vgi_give_back(pool->card, VGI_KIND_DATA, dropped);
    end_shrinking(pool, growth);
}

/* Charges what the pool has beyond all claims, in any case. */
static bool charge_missing(struct vgi_pool *pool, struct vgi_growth *growth, uint64_t missing) {
    struct vgi_claim claim;
    end_shrinking(pool, growth); /* all of it is used up */
    bool fits = vgi_claim_when_settled(pool->device, missing, &claim);
    if (!fits) {
        vgi_begin_shrinking(pool->card);
        vgi_charge_overhead(pool->card, VGI_KIND_DATA, missing);
    }
    growth->provisional = true;
    pthread_mutex_lock(&pool->lock);
    bool needed = vgi_reserve_add(&pool->reserve, &growth->call, missing);
    pthread_mutex_unlock(&pool->lock);
    if (!needed)
        vgi_give_back(pool->card, VGI_KIND_DATA, missing);
    return fits || !needed;
}

bool vgi_pool_settle(struct vgi_pool *pool, struct vgi_growth *growth, CUresult result) {
    uint64_t reserved = 0, surplus = 0, missing = 0;
    bool fits = true;
    pthread_mutex_lock(&pool->lock);
    pool->lent -= growth->lent;
    pool->handed_out += growth->hands_out && result == CUDA_SUCCESS;
    vgi_reserve_land(&pool->reserve, &growth->call);
    pthread_mutex_unlock(&pool->lock);
    if (!ask(pool, false, &reserved)) {
        settle_unseen(pool, growth, result);
        return true;
    }
    if ((__atomic_load_n(&pool->seen, __ATOMIC_RELAXED) & reserved) != reserved)
        __atomic_fetch_or(&pool->seen, reserved, __ATOMIC_RELAXED);
    for (unsigned looks = 1;; looks++) {
        pthread_mutex_lock(&pool->lock);
        bool settled = vgi_reserve_settle(&pool->reserve, &growth->call, reserved, &surplus, &missing);
        pthread_mutex_unlock(&pool->lock);
        if (settled)
            break;
        /* What was seen may be old already: it shrank since. */
        if (looks % 2 == 0 || !ask(pool, false, &reserved))
            fits = charge_missing(pool, growth, missing) && fits;
    }
    vgi_give_back(pool->card, VGI_KIND_DATA, surplus);
    end_shrinking(pool, growth);
    return fits;
}

void vgi_pool_look(struct vgi_pool *pool) {
    struct vgi_growth growth = {.hands_out = false};
    if (!pool->counted || atomic_load(&pool->hidden))
        return;
    begin_shrinking(pool, &growth);
    pthread_mutex_lock(&pool->lock);
    vgi_reserve_claim(&pool->reserve, &growth.call, 0);
    pthread_mutex_unlock(&pool->lock);
    (void)vgi_pool_settle(pool, &growth, CUDA_SUCCESS);
}

/* ---- what is freed comes back to the card some time later ---- */

void vgi_pool_set_threshold(struct vgi_pool *pool, uint64_t bytes) {
    pthread_mutex_lock(&pool->lock);
    if (bytes < pool->threshold)
        watch(pool);
    pool->threshold = bytes;
    pthread_mutex_unlock(&pool->lock);
}

/* Whether this synchronisation is one that shall look at it. */
static bool take_look(struct vgi_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    bool look = pool->looks_left > 0;
    if (look && --pool->looks_left == 0)
        atomic_fetch_sub(&vgi_pools_watched, 1);
    pthread_mutex_unlock(&pool->lock);
    return look;
}

/* A destroyed pool cannot be asked any more: it is over when all it handed out is, and the stream that freed the last
 * of it was waited for. */
void vgi_pool_settle_destroyed(struct vgi_pool *pool, CUstream stream, bool everything) {
    vgi_begin_shrinking(pool->card);
    pthread_mutex_lock(&pool->lock);
    bool over = pool->destroyed && pool->handed_out == 0 && (everything || pool->last_freed_on == stream);
    uint64_t rest = over ? pool->reserve.settled : 0;
    pool->reserve.settled -= rest;
    if (over && pool->looks_left > 0) {
        pool->looks_left = 0;
        atomic_fetch_sub(&vgi_pools_watched, 1);
    }
    pthread_mutex_unlock(&pool->lock);
    vgi_give_back(pool->card, VGI_KIND_DATA, rest);
    vgi_end_shrinking(pool->card);
}

void vgi_pools_look(CUstream stream, bool everything) {
    if (vgi_state() != VGI_ATTACHED)
        return;
    for (struct vgi_pool *pool = vgi_pool_first(); pool != NULL; pool = pool->next)
        if (atomic_load(&pool->hidden))
            vgi_pool_settle_destroyed(pool, stream, everything);
        else if (take_look(pool))
            vgi_pool_look(pool);
}

/* A pool that may keep all it has returns nothing. */
void vgi_pool_freed(struct vgi_pool *pool, CUstream stream) {
    pthread_mutex_lock(&pool->lock);
    pool->handed_out--;
    pool->last_freed_on = stream;
    if (pool->destroyed || pool->reserve.settled > pool->threshold)
        watch(pool);
    pthread_mutex_unlock(&pool->lock);
}

void vgi_pool_freed_at_once(struct vgi_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    pool->handed_out--;
    pthread_mutex_unlock(&pool->lock);
    if (atomic_load(&pool->hidden))
        vgi_pool_settle_destroyed(pool, NULL, true);
    else
        vgi_pool_look(pool);
}

/* ---- for the account: before a refusal, and before the slice's use is shown ---- */

static bool holds_memory_of(struct vgi_pool *pool, int card) {
    pthread_mutex_lock(&pool->lock);
    bool holds = pool->counted && !pool->destroyed && (card < 0 || pool->card == card) && pool->reserve.settled > 0;
    pthread_mutex_unlock(&pool->lock);
    return holds;
}

uint64_t vgi_pool_bytes(void) {
    uint64_t bytes = 0;
    for (struct vgi_pool *pool = vgi_pool_first(); pool != NULL; pool = pool->next) {
        pthread_mutex_lock(&pool->lock);
        bytes += pool->reserve.settled;
        pthread_mutex_unlock(&pool->lock);
    }
    return bytes;
}

bool vgi_settle_pools(int card) {
    bool any = false;
    for (struct vgi_pool *pool = vgi_pool_first(); pool != NULL; pool = pool->next)
        if (holds_memory_of(pool, card)) {
            vgi_pool_look(pool);
            any = true;
        }
    return any;
}

static void trim(struct vgi_pool *pool) {
    struct vgi_aside aside;
    if (!begin_use(pool))
        return;
    bool may = vgi_begin_aside(&aside);
    if (may && pool->of_graphs)
        (void)vgi_graph_trim(pool->device);
    else if (may)
        (void)VGI_CUDA(cuMemPoolTrimTo, pool->handle, 0);
    vgi_end_aside(&aside);
    end_use(pool);
}

/* Drivers do the same when a card runs out of memory. */
bool vgi_trim_pools(int card) {
    bool any = false;
    for (struct vgi_pool *pool = vgi_pool_first(); pool != NULL; pool = pool->next)
        if (holds_memory_of(pool, card)) {
            trim(pool);
            vgi_pool_look(pool);
            any = true;
        }
    return any;
}
