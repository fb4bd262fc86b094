/* How the simulated cards are connected with each other. */
#ifndef SIM_LINKS_H
#define SIM_LINKS_H

#include "json.h"

#define SIM_LINKED_CARDS 16
#define SIM_NVLINKS_PER_CARD 36

/* Where the ways of two cards meet, in NVML's numbers. */
enum sim_ancestor {
    SIM_ANCESTOR_INTERNAL = 0,
    SIM_ANCESTOR_SINGLE = 10,
    SIM_ANCESTOR_MULTIPLE = 20,
    SIM_ANCESTOR_HOST_BRIDGE = 30,
    SIM_ANCESTOR_NODE = 40,
    SIM_ANCESTOR_SYSTEM = 50
};

struct sim_links {
    unsigned nvlinks[SIM_LINKED_CARDS][SIM_LINKED_CARDS]; /* as the first card tells them */
    unsigned switch_links[SIM_LINKED_CARDS];              /* links that end at an NVSwitch */
    /* Negative: by NUMA node. */
    int ancestors[SIM_LINKED_CARDS][SIM_LINKED_CARDS];
};

/* Reads `links` of the description. Returns NULL, or what is wrong with it, followed by the element's number in
 * `*element`. */
const char *sim_links_read(const struct sim_json *document, unsigned card_count, struct sim_links *links,
                           unsigned *element);

/* How many NVLinks a card has. */
unsigned sim_links_of(const struct sim_links *links, unsigned card);

/* The card at the other end of one of a card's links; SIM_LINKED_CARDS for an NVSwitch. */
unsigned sim_links_peer(const struct sim_links *links, unsigned card, unsigned link);

#endif
