#include <errno.h>
#include <time.h>

#include "vgpu/prim.h"

uint64_t vgi_now_realtime_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000ull + (uint64_t)now.tv_nsec / 1000ull;
}

uint64_t vgi_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

/* Until a moment, so that a signal handler in between does not make it longer. */
void vgi_sleep_ns(uint64_t nanoseconds) {
    uint64_t end = vgi_now_ns() + nanoseconds;
    struct timespec until = {.tv_sec = (time_t)(end / 1000000000ull), .tv_nsec = (long)(end % 1000000000ull)};
    int before = vgi_hold_off_cancel();
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
    vgi_let_cancel(before);
}

void vgi_sleep_microseconds(unsigned microseconds) {
    struct timespec pause = {.tv_sec = microseconds / 1000000, .tv_nsec = (long)(microseconds % 1000000) * 1000};
    int before = vgi_hold_off_cancel();
    while (nanosleep(&pause, &pause) != 0 && errno == EINTR)
        ;
    vgi_let_cancel(before);
}
