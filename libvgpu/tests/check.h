/* Checks that say where and with which values they failed; the test goes on and ends with status 1. */
#ifndef VGPU_TEST_CHECK_H
#define VGPU_TEST_CHECK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* One for the whole program, whichever of its files checks. */
__attribute__((weak)) int check_failures;

static inline bool check_report(bool passed, const char *file, int line, const char *text, const char *what) {
    if (!passed) {
        check_failures++;
        fprintf(stderr, "%s:%d: failed: %s%s%s\n", file, line, text, *what == '\0' ? "" : "  with ", what);
    }
    return passed;
}

/* `what` names the row of the table. */
#define CHECK_THAT(condition, what) check_report((condition), __FILE__, __LINE__, #condition, (what))
#define CHECK(condition) CHECK_THAT(condition, "")

static inline bool check_equal(long long got, long long wanted, const char *file, int line, const char *text,
                               const char *what) {
    if (got != wanted) {
        check_failures++;
        fprintf(stderr, "%s:%d: %s is %lld, not %lld%s%s\n", file, line, text, got, wanted,
                *what == '\0' ? "" : "  with ", what);
    }
    return got == wanted;
}

#define CHECK_EQUAL_THAT(got, wanted, what)                                                                            \
    check_equal((long long)(got), (long long)(wanted), __FILE__, __LINE__, #got, (what))
#define CHECK_EQUAL(got, wanted) CHECK_EQUAL_THAT(got, wanted, "")

static inline int check_done(void) {
    if (check_failures > 0)
        fprintf(stderr, "%d checks failed\n", check_failures);
    return check_failures > 0;
}

/* xorshift64*: the same sequence on every machine. */
static inline uint64_t check_random(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dull;
}

#endif
