/* Memory that several processes may hold (cuMemExportToShareableHandle). It lives until the last process has dropped it
 * and the last descriptor made of it is closed. Each holder is charged, the card once. */
#ifndef SIM_BOOKS_SHARED_H
#define SIM_BOOKS_SHARED_H

#include "books.h"

/* All with the books locked. A place is an index into `books->shared`. */

/* Makes memory that the process holds alone, and was charged for, shareable. -1 when there is no place left. */
int sim_shared_publish(struct sim_books *books, const struct sim_process *process, unsigned card, uint64_t bytes);

/* Another holder: charges it. And one less, whoever it was; the card is given back when nobody is left. */
void sim_shared_hold(struct sim_books *books, int place, struct sim_process *process);
void sim_shared_drop(struct sim_books *books, int place, struct sim_process *process);

/* A descriptor that stands for the memory, and keeps it alive; and which memory a descriptor stands for, or -1. */
int sim_shared_open(struct sim_books *books, int place);
int sim_shared_of(struct sim_books *books, int descriptor);

/* For whoever adds the books up: forgets a process that ended, memory that nobody holds, and says by how much the
 * processes' sum on a card is more than what is taken of it (or less: negative). */
void sim_shared_forget(struct sim_books *books, const struct sim_process *process);
bool sim_shared_sweep(struct sim_books *books);
int64_t sim_shared_surplus(const struct sim_books *books, unsigned card);

#endif
