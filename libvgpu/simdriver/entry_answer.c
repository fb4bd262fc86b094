/* What an entry point is told: maps the machine's faults at the first call, and asks them. */
#include "entry_answer.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "description.h"

static _Atomic uint32_t unknown = 1; /* until the faults are mapped every call comes here */
_Atomic uint32_t *sim_watched = &unknown;
static _Atomic(struct sim_faults *) mapped;

/* Threads may come here at once; the first mapping stays. A process without a simulated machine asks again each time.
 */
static struct sim_faults *find_faults(void) {
    char reason[512];
    struct sim_faults *found = atomic_load(&mapped), *none = NULL;
    if (found != NULL)
        return found;
    struct sim_description *description = malloc(sizeof *description);
    if (description != NULL && sim_description_load(description, reason, sizeof reason) == SIM_LOAD_OK)
        found = sim_faults_open(description->state_directory);
    free(description);
    if (found == NULL)
        return NULL;
    if (!atomic_compare_exchange_strong(&mapped, &none, found)) {
        munmap(found, sizeof *found);
        found = none;
    }
    __atomic_store_n(&sim_watched, &found->watched, __ATOMIC_RELEASE);
    return found;
}

int sim_entry_answer(unsigned number) {
    struct sim_faults *faults = find_faults();
    if (faults == NULL || atomic_load(&faults->watched) == 0)
        return SIM_PASS;
    return sim_faults_strike(faults, (struct sim_symbol){.table = sim_entry_table, .number = number});
}
