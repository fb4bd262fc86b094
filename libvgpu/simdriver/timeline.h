/* The card's time, shared by the processes that have work on it.
 *
 * A process's kernels run one after another in the order of their launches. Processes take turns in slices too short to
 * matter here: of k that have work, each gets 1/k of the time, as on real cards without MPS. So nobody knows when a
 * kernel will end, since others may come; what is known is its position in the process's own work, and how far that
 * has come. */
#ifndef SIM_TIMELINE_H
#define SIM_TIMELINE_H

#include "books.h"

/* All with the books' lock held. */

/* Brings the card's state up to now. */
void sim_timeline_advance(struct sim_books *books, unsigned card, uint64_t now_ns);

/* Puts work behind what the process has on the card; its position. */
uint64_t sim_timeline_add(struct sim_books *books, unsigned process, unsigned card, uint64_t now_ns,
                          uint64_t duration_ns);

/* When the process's work came to that position; in the future, when it will if nothing else comes. */
uint64_t sim_timeline_when(struct sim_books *books, unsigned process, unsigned card, uint64_t position);

#endif
