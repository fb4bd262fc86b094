/* The account of a pool against a pool of its own: by rows, and with threads whose looks overtake each other. */
#include "core/reserve.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "check.h"

/* One step after another: `+` claims, `!` lands, `=` looks and settles, `?` fails to look. */
struct step {
    char what;
    int call;
    uint64_t bytes;                     /* claimed, or seen */
    uint64_t charged, surplus, missing; /* afterwards */
};

static const struct {
    const char *name;
    struct step steps[12];
} stories[] = {
    {"grew as claimed", {{'+', 0, 10, 10, 0, 0}, {'!', 0, 0, 10, 0, 0}, {'=', 0, 10, 10, 0, 0}}},
    {"had room",
     {{'+', 0, 10, 10, 0, 0},
      {'!', 0, 0, 10, 0, 0},
      {'=', 0, 10, 10, 0, 0},
      {'+', 1, 5, 15, 0, 0},
      {'!', 1, 0, 15, 0, 0},
      {'=', 1, 10, 10, 5, 0}}},
    {"a look sees what another call under way added: it is not charged twice",
     {{'+', 0, 2, 2, 0, 0},
      {'+', 1, 2, 4, 0, 0},
      {'!', 1, 0, 4, 0, 0},
      {'=', 1, 4, 4, 0, 0},
      {'!', 0, 0, 4, 0, 0},
      {'=', 0, 4, 4, 0, 0}}},
    {"a later look settles the call before it, whose own look comes to nothing",
     {{'+', 0, 10, 10, 0, 0},
      {'+', 1, 10, 20, 0, 0},
      {'!', 0, 0, 20, 0, 0},
      {'!', 1, 0, 20, 0, 0},
      {'=', 1, 16, 16, 4, 0},
      {'=', 0, 8, 16, 0, 0}}},
    {"an earlier look leaves what landed after it",
     {{'+', 0, 10, 10, 0, 0},
      {'+', 1, 10, 20, 0, 0},
      {'!', 0, 0, 20, 0, 0},
      {'!', 1, 0, 20, 0, 0},
      {'=', 0, 6, 16, 4, 0},
      {'=', 1, 12, 12, 4, 0}}},
    {"grew by more than was claimed", {{'+', 0, 10, 10, 0, 0}, {'!', 0, 0, 10, 0, 0}, {'=', 0, 32, 32, 0, 22}}},
    {"grew by more, and another call may still add",
     {{'+', 0, 10, 10, 0, 0},
      {'+', 1, 5, 15, 0, 0},
      {'!', 0, 0, 15, 0, 0},
      {'=', 0, 32, 37, 0, 22},
      {'!', 1, 0, 37, 0, 0},
      {'=', 1, 32, 32, 5, 0}}},
    {"could not be looked at until later",
     {{'+', 0, 10, 10, 0, 0},
      {'!', 0, 0, 10, 0, 0},
      {'?', 0, 0, 10, 0, 0},
      {'+', 1, 0, 10, 0, 0},
      {'!', 1, 0, 10, 0, 0},
      {'=', 1, 7, 7, 3, 0}}},
    {"failed, and could not be looked at", {{'+', 0, 10, 10, 0, 0}, {'!', 0, 0, 10, 0, 0}, {'-', 0, 0, 0, 10, 0}}},
};

static void test_stories(void) {
    for (size_t i = 0; i < sizeof stories / sizeof stories[0]; i++) {
        struct vgi_reserve r = {.settled = 0};
        struct vgi_reserve_call calls[2];
        for (const struct step *s = stories[i].steps; s->what != '\0'; s++) {
            struct vgi_reserve_call *call = &calls[s->call];
            uint64_t surplus = 0, missing = 0, wanted = 0;
            if (s->what == '+')
                vgi_reserve_claim(&r, call, s->bytes);
            else if (s->what == '!')
                vgi_reserve_land(&r, call);
            else if (s->what == '?')
                vgi_reserve_keep(&r, call);
            else if (s->what == '-')
                surplus = vgi_reserve_drop(&r, call);
            else if (!vgi_reserve_settle(&r, call, s->bytes, &surplus, &missing)) {
                wanted = missing;
                CHECK(vgi_reserve_add(&r, call, missing));
                CHECK(vgi_reserve_settle(&r, call, s->bytes, &surplus, &missing));
            }
            CHECK_EQUAL_THAT(r.settled + r.under_way + r.landed, s->charged, stories[i].name);
            CHECK_EQUAL_THAT(surplus, s->surplus, stories[i].name);
            CHECK_EQUAL_THAT(wanted, s->missing, stories[i].name);
        }
        CHECK_EQUAL_THAT(r.under_way + r.landed, 0, stories[i].name);
    }
}

/* ---- threads: a pool that hands out what it has and reserves whole chunks, and trims at random ---- */

#define THREADS 4
#define CALLS 20000
#define CHUNK 32

static struct {
    pthread_mutex_t lock;
    uint64_t used, reserved;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

static pthread_mutex_t account_lock = PTHREAD_MUTEX_INITIALIZER;
static struct vgi_reserve account;
static atomic_ulong charged;

static void pool_change(int64_t bytes, bool trim) {
    pthread_mutex_lock(&pool.lock);
    pool.used += (uint64_t)bytes;
    while (pool.reserved < pool.used)
        pool.reserved += CHUNK;
    if (trim)
        pool.reserved = (pool.used + CHUNK - 1) / CHUNK * CHUNK;
    pthread_mutex_unlock(&pool.lock);
}

static uint64_t pool_look(void) {
    pthread_mutex_lock(&pool.lock);
    uint64_t reserved = pool.reserved;
    pthread_mutex_unlock(&pool.lock);
    return reserved;
}

static void claim(struct vgi_reserve_call *call, uint64_t bytes) {
    atomic_fetch_add(&charged, bytes);
    pthread_mutex_lock(&account_lock);
    vgi_reserve_claim(&account, call, bytes);
    pthread_mutex_unlock(&account_lock);
}

static void settle(struct vgi_reserve_call *call, uint64_t *state) {
    uint64_t surplus = 0, missing = 0;
    pthread_mutex_lock(&account_lock);
    vgi_reserve_land(&account, call);
    pthread_mutex_unlock(&account_lock);
    if (check_random(state) % 3 == 0)
        sched_yield();
    uint64_t seen = pool_look();
    if (check_random(state) % 3 == 0)
        sched_yield();
    bool settled = false;
    for (int tries = 0; tries < 100 && !settled; tries++) { /* what was seen may be old: the pool shrank since */
        pthread_mutex_lock(&account_lock);
        settled = vgi_reserve_settle(&account, call, seen, &surplus, &missing);
        pthread_mutex_unlock(&account_lock);
        seen = pool_look();
    }
    if (!CHECK(settled)) /* no call adds more than it claimed */
        exit(check_done());
    atomic_fetch_sub(&charged, surplus);
}

static void *run_thread(void *number) {
    uint64_t state = (uint64_t)(uintptr_t)number * 77 + 1, held = 0;
    struct vgi_reserve_call call;
    for (int i = 0; i < CALLS; i++) {
        if (check_random(&state) % 2 == 0 && held < 500) {
            uint64_t bytes = 1 + check_random(&state) % 40;
            claim(&call, (bytes + CHUNK - 1) / CHUNK * CHUNK);
            pool_change((int64_t)bytes, false);
            settle(&call, &state);
            held += bytes;
        } else if (held > 0) {
            uint64_t bytes = 1 + check_random(&state) % held;
            claim(&call, 0);
            pool_change(-(int64_t)bytes, check_random(&state) % 2 == 0);
            held -= bytes;
            settle(&call, &state);
        }
        /* While calls are under way the account is never below the truth. */
        pthread_mutex_lock(&pool.lock);
        bool covered = atomic_load(&charged) >= pool.reserved;
        pthread_mutex_unlock(&pool.lock);
        CHECK(covered);
    }
    claim(&call, 0);
    pool_change(-(int64_t)held, true);
    settle(&call, &state);
    return NULL;
}

static void test_threads(void) {
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, run_thread, (void *)(i + 1));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQUAL(pool.used, 0);
    CHECK_EQUAL(atomic_load(&charged), pool.reserved);
    CHECK_EQUAL(account.settled, pool.reserved);
    CHECK_EQUAL(account.under_way + account.landed, 0);
}

int main(void) {
    test_stories();
    test_threads();
    return check_done();
}
