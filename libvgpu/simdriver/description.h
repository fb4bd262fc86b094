/* The simulated machine: which cards and driver it has, and which of them this process may see. */
#ifndef SIM_DESCRIPTION_H
#define SIM_DESCRIPTION_H

#include <stdbool.h>
#include <stdint.h>

#include "links.h"
#include "mig_profiles.h"

#define SIM_MAX_CARDS 16
#define SIM_TEXT 96

struct sim_card {
    char uuid[SIM_TEXT];
    char name[SIM_TEXT];
    char serial[SIM_TEXT];
    char pci_bus_id[32]; /* domain:bus:device.function, 8:2:2.1 digits */
    unsigned pci_domain, pci_bus, pci_device;
    uint64_t memory_bytes;
    uint64_t reserved_bytes;   /* taken by the driver itself */
    uint64_t context_bytes;    /* each context's overhead */
    uint64_t pool_chunk_bytes; /* pools and graphs reserve whole chunks */
    unsigned minor;
    unsigned sm_count;
    unsigned threads_per_sm;
    unsigned capability_major, capability_minor;
    int numa_node; /* -1 = none */
    unsigned temperature_celsius;
    unsigned idle_milliwatts, limit_milliwatts;
    unsigned sm_megahertz, memory_megahertz;
    bool no_ecc;
    uint64_t ecc_errors[2]; /* before the machine started: corrected, uncorrected */
    bool integrated;        /* with its host's memory */
    uint64_t module_bytes;  /* each loaded module's code and data */
    bool mig_capable;
    bool mig_enabled; /* at the start */
    unsigned mig_profile_count;
    struct sim_mig_profile mig_profiles[SIM_MAX_MIG_PROFILES];
};

struct sim_description {
    char driver_version[SIM_TEXT];
    char nvml_version[SIM_TEXT];
    int cuda_version; /* 12080 for 12.8 */
    char state_directory[4096];
    unsigned card_count;
    struct sim_card cards[SIM_MAX_CARDS];
    struct sim_links links;
};
_Static_assert(SIM_LINKED_CARDS == SIM_MAX_CARDS, "every card can be linked");

enum sim_load { SIM_LOAD_OK, SIM_LOAD_NO_DRIVER, SIM_LOAD_INVALID };

/* Reads the file that $HAMI_SIM_DRIVER names. A missing variable means that the machine has no driver; a fault in the
 * file is written into `reason`. */
enum sim_load sim_description_load(struct sim_description *description, char *reason, unsigned reason_size);

/* Card indexes that the container runtime lets this process see ($HAMI_SIM_VISIBLE_DEVICES), in the description's
 * order. Returns how many. */
unsigned sim_visible_to_nvml(const struct sim_description *description, unsigned cards[SIM_MAX_CARDS]);

/* Of those, what CUDA shows after $CUDA_VISIBLE_DEVICES, in its order. */
unsigned sim_visible_to_cuda(const struct sim_description *description, unsigned cards[SIM_MAX_CARDS]);

#endif
