/* What an XID means for the programs that use the card. */
#ifndef SIM_XID_H
#define SIM_XID_H

#include <stdint.h>

#define SIM_XID_FELL_OFF_THE_BUS 79

/* The code that every CUDA call of a process with a context on the card returns from then on; 0 = none: the error was
 * corrected, or concerns the machine's operator alone. */
int sim_xid_code(uint64_t xid);

#endif
