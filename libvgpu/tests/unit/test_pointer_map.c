/* The map against a plain array, entries of an owner, reset, and threads. */
#include <pthread.h>
#include <stdlib.h>

#include "check.h"
#include "core/pointer_map.h"

static struct vgi_map map;

#define KEYS 4096

static void test_against_a_model(void) {
    static struct vgi_entry model[KEYS]; /* key 0 = absent */
    uint64_t state = 9;
    size_t count = 0;
    vgi_map_reset(&map);
    for (int round = 0; round < 400000; round++) {
        size_t index = check_random(&state) % KEYS;
        uint64_t key = (index + 1) << 21; /* as addresses are: the low bits say nothing */
        struct vgi_entry entry = {.key = key, .bytes = check_random(&state), .card = 3}, found = {0};
        switch (check_random(&state) % 3) {
        case 0:
            CHECK(vgi_map_put(&map, &entry));
            count += model[index].key == 0;
            model[index] = entry;
            break;
        case 1:
            CHECK(vgi_map_take(&map, key, &found) == (model[index].key != 0));
            count -= model[index].key != 0;
            CHECK_EQUAL(found.bytes, model[index].key != 0 ? model[index].bytes : 0);
            model[index].key = 0;
            break;
        default:
            CHECK(vgi_map_find(&map, key, &found) == (model[index].key != 0));
            if (model[index].key != 0)
                CHECK_EQUAL(found.bytes, model[index].bytes);
            break;
        }
        if (check_failures > 10)
            return;
    }
    CHECK_EQUAL(vgi_map_count(&map), count);
    uint64_t bytes = 0;
    for (size_t i = 0; i < sizeof model / sizeof model[0]; i++)
        bytes += model[i].key != 0 ? model[i].bytes : 0;
    CHECK_EQUAL(vgi_map_bytes(&map), bytes);
}

static void test_unknown_keys(void) {
    struct vgi_entry entry;
    vgi_map_reset(&map);
    CHECK(!vgi_map_take(&map, 0, &entry));
    CHECK(!vgi_map_take(&map, 0xdead000, &entry));
    CHECK(!vgi_map_find(&map, UINT64_MAX, &entry));
}

static void test_owned(void) {
    struct vgi_entry entry;
    size_t cursor = 0, taken = 0;
    vgi_map_reset(&map);
    for (uint64_t i = 1; i <= 3000; i++) {
        struct vgi_entry made = {.key = i << 12, .bytes = i, .owner = i % 3};
        CHECK(vgi_map_put(&map, &made));
    }
    while (vgi_map_take_owned(&map, 1, &cursor, &entry)) {
        CHECK_EQUAL(entry.owner, 1);
        taken++;
    }
    CHECK_EQUAL(taken, 1000);
    CHECK_EQUAL(vgi_map_count(&map), 2000);
    for (uint64_t i = 1; i <= 3000; i++)
        CHECK(vgi_map_find(&map, i << 12, &entry) == (i % 3 != 1));
    vgi_map_reset(&map);
    CHECK_EQUAL(vgi_map_count(&map), 0);
}

static void *churn(void *argument) {
    uint64_t base = (uint64_t)(uintptr_t)argument << 40;
    struct vgi_entry entry;
    for (uint64_t round = 0; round < 50; round++) {
        for (uint64_t i = 1; i <= 500; i++) {
            struct vgi_entry made = {.key = base + (i << 21), .bytes = i};
            if (!vgi_map_put(&map, &made))
                return argument;
        }
        for (uint64_t i = 1; i <= 500; i++)
            if (!vgi_map_take(&map, base + (i << 21), &entry) || entry.bytes != i)
                return argument;
    }
    return NULL;
}

static void test_threads(void) {
    pthread_t threads[8];
    vgi_map_reset(&map);
    for (uintptr_t i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, churn, (void *)(i + 1));
    for (int i = 0; i < 8; i++) {
        void *failed = NULL;
        pthread_join(threads[i], &failed);
        CHECK(failed == NULL);
    }
    CHECK_EQUAL(vgi_map_count(&map), 0);
}

int main(void) {
    test_against_a_model();
    test_unknown_keys();
    test_owned();
    test_threads();
    vgi_map_reset(&map);
    return check_done();
}
