/* What the entry points of a simulated library ask (entry.h), and which library they belong to. */
#ifndef SIM_ENTRY_ANSWER_H
#define SIM_ENTRY_ANSWER_H

#include "faults.h"

/* `watched` of the machine's faults, once they are mapped. */
extern _Atomic uint32_t *sim_watched __attribute__((visibility("hidden")));

/* One call: the code to answer with, or SIM_PASS. */
__attribute__((visibility("hidden"), used)) int sim_entry_answer(unsigned number);

/* Said by the library. */
extern const enum sim_table sim_entry_table;

#endif
