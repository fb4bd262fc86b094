/* Which MIG instances a simulated card can hold. */
#ifndef SIM_MIG_PROFILES_H
#define SIM_MIG_PROFILES_H

#include <stdint.h>

#define SIM_MIG_KINDS 18 /* NVML_GPU_INSTANCE_PROFILE_COUNT */
#define SIM_MAX_MIG_PROFILES 12
#define SIM_MAX_MIG_STARTS 8

struct sim_mig_profile {
    unsigned kind; /* NVML_GPU_INSTANCE_PROFILE_*, the same for every card */
    unsigned id;   /* the driver's number for it on this card */
    unsigned slices;
    unsigned instances; /* at most so many on one card */
    unsigned sm_count;
    uint64_t memory_mib;
    unsigned size; /* memory slices of one placement */
    unsigned start_count;
    unsigned starts[SIM_MAX_MIG_STARTS];
};

/* Those of an A100 with 40 GB, their memory in proportion to the card's. Returns how many. */
unsigned sim_mig_default(uint64_t memory_bytes, struct sim_mig_profile profiles[SIM_MAX_MIG_PROFILES]);

#endif
