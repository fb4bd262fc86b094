/* A virtual clock for all processes of a simulated machine, so that what takes ten seconds of a card's time is run in
 * less, and gives the same numbers each time, whatever the machine does meanwhile.
 *
 * libsimclock.so is preloaded, and with HAMI_SIM_CLOCK=virtual it stands before libc's clocks and sleeps: a program,
 * the library under test and the simulated driver all see the time of one shared file. Threads that take part enter
 * with a number of their own. One of them runs at a time; when it sleeps, or waits for the card, time jumps to the
 * earliest moment that any of them waits for, and that one runs. What a program computes takes no time; driver calls
 * that are made in loops take a little. A thread that ends, or is killed, is no longer waited for.
 *
 * Threads that have not entered see the same time, which stands still for them, and sleep on the real clock. While it
 * takes part a thread must not wait for another in any other way (join, locks that are kept over a sleep): leave first.
 */
#ifndef SIM_CLOCK_H
#define SIM_CLOCK_H

#include <stdint.h>

/* Resolved where the library is preloaded. */
extern void sim_clock_enter(unsigned number) __attribute__((weak));
extern void sim_clock_leave(void) __attribute__((weak));
extern void sim_clock_spend(uint64_t ns) __attribute__((weak));

/* Nobody runs before so many threads of the machine have entered. */
#define SIM_CLOCK_PARTIES "HAMI_SIM_CLOCK_PARTIES"

#endif
