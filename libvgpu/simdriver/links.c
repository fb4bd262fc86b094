#include "links.h"

#include <string.h>

static const struct {
    const char *name;
    enum sim_ancestor level;
} ancestor_names[] = {
    {"internal", SIM_ANCESTOR_INTERNAL},      {"single", SIM_ANCESTOR_SINGLE}, {"multiple", SIM_ANCESTOR_MULTIPLE},
    {"hostbridge", SIM_ANCESTOR_HOST_BRIDGE}, {"node", SIM_ANCESTOR_NODE},     {"system", SIM_ANCESTOR_SYSTEM},
};

/* A whole number below `limit`; `fallback` where there is none, `limit` where it is something else. */
static unsigned number_below(const struct sim_json *object, const char *key, unsigned limit, unsigned fallback) {
    const struct sim_json *value = sim_json_member(object, key);
    if (value == NULL)
        return fallback;
    if (value->kind != SIM_JSON_NUMBER || value->number < 0 || value->number >= limit)
        return limit;
    unsigned whole = (unsigned)value->number;
    return (double)whole == value->number ? whole : limit;
}

static const char *read_ancestor(const struct sim_json *entry, unsigned from, unsigned to, struct sim_links *links) {
    const struct sim_json *value = sim_json_member(entry, "ancestor");
    if (value == NULL)
        return NULL;
    for (size_t i = 0; i < sizeof ancestor_names / sizeof ancestor_names[0]; i++) {
        if (value->kind == SIM_JSON_STRING && strcmp(value->text, ancestor_names[i].name) == 0) {
            links->ancestors[from][to] = links->ancestors[to][from] = (int)ancestor_names[i].level;
            return NULL;
        }
    }
    return "ancestor: expected internal, single, multiple, hostbridge, node or system";
}

static const char *read_entry(const struct sim_json *entry, unsigned card_count, struct sim_links *links) {
    const unsigned most = SIM_NVLINKS_PER_CARD + 1;
    if (entry->kind != SIM_JSON_OBJECT)
        return "expected an object";
    unsigned from = number_below(entry, "from", card_count, card_count);
    if (from == card_count)
        return "from: expected the index of a card";
    unsigned there = number_below(entry, "nvlinks", most, 0);
    unsigned back = number_below(entry, "nvlinks_back", most, there);
    if (there == most || back == most)
        return "nvlinks, nvlinks_back: expected a whole number from 0 to 36";
    if (sim_json_member(entry, "to") == NULL) {
        links->switch_links[from] = there;
        return NULL;
    }
    unsigned to = number_below(entry, "to", card_count, card_count);
    if (to == card_count || to == from)
        return "to: expected the index of another card";
    links->nvlinks[from][to] = there;
    links->nvlinks[to][from] = back;
    return read_ancestor(entry, from, to, links);
}

const char *sim_links_read(const struct sim_json *document, unsigned card_count, struct sim_links *links,
                           unsigned *element) {
    const struct sim_json *list = sim_json_member(document, "links");
    memset(links, 0, sizeof *links);
    memset(links->ancestors, 0xff, sizeof links->ancestors);
    *element = 0;
    if (list == NULL)
        return NULL;
    if (list->kind != SIM_JSON_ARRAY)
        return "expected a list";
    for (const struct sim_json *entry = list->first; entry != NULL; entry = entry->next, ++*element) {
        const char *problem = read_entry(entry, card_count, links);
        if (problem != NULL)
            return problem;
    }
    for (unsigned card = 0; card < card_count; card++)
        if (sim_links_of(links, card) > SIM_NVLINKS_PER_CARD)
            return "a card has more than 36 NVLinks";
    return NULL;
}

unsigned sim_links_of(const struct sim_links *links, unsigned card) {
    unsigned count = links->switch_links[card];
    for (unsigned peer = 0; peer < SIM_LINKED_CARDS; peer++)
        count += links->nvlinks[card][peer];
    return count;
}

unsigned sim_links_peer(const struct sim_links *links, unsigned card, unsigned link) {
    unsigned peer = 0;
    while (peer < SIM_LINKED_CARDS && link >= links->nvlinks[card][peer])
        link -= links->nvlinks[card][peer++];
    return peer;
}
