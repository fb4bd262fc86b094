/* The description's reader: what it refuses and why, and that no text harms it. */
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "description.h"
#include "json.h"

static struct sim_description description;
static char reason[512];

static enum sim_load load(const char *text) {
    char path[] = "/tmp/vgpu-test-XXXXXX";
    int file = mkstemp(path);
    CHECK(write(file, text, strlen(text)) == (ssize_t)strlen(text));
    close(file);
    setenv("HAMI_SIM_DRIVER", path, 1);
    enum sim_load loaded = sim_description_load(&description, reason, sizeof reason);
    unlink(path);
    return loaded;
}

static void test_defaults(void) {
    CHECK_EQUAL(load("{\"cards\": [{\"uuid\": \"GPU-a\", \"name\": \"A\", \"memory_mib\": 100}, {\"uuid\": \"GPU-b\", "
                     "\"name\": \"B\", \"memory_bytes\": 1, \"numa_node\": -1, \"compute_capability\": \"9.0\", "
                     "\"pci_bus_id\": \"0000:3b:00.0\", \"links\": [1, {\"x\": null}]}]}"),
                SIM_LOAD_OK);
    CHECK_EQUAL(description.card_count, 2);
    CHECK_EQUAL(description.cuda_version, 12080);
    CHECK_EQUAL(description.cards[0].memory_bytes, 100ull << 20);
    CHECK_EQUAL(description.cards[0].minor, 0);
    CHECK_EQUAL(description.cards[1].minor, 1);
    CHECK_EQUAL(description.cards[1].numa_node, -1);
    CHECK_EQUAL(description.cards[1].capability_major, 9);
    CHECK(strcmp(description.cards[1].pci_bus_id, "00000000:3B:00.0") == 0);
    CHECK(strcmp(description.nvml_version, "12.570.124.06") == 0);
    CHECK_EQUAL(load("{\"cards\": []}"), SIM_LOAD_OK);
}

#define TWO_CARDS                                                                                                      \
    "{\"cards\": [{\"uuid\": \"u\", \"name\": \"A\", \"memory_mib\": 1}, {\"uuid\": \"v\", \"name\": \"A\", "          \
    "\"memory_mib\": 1}]"

static void test_links(void) {
    CHECK_EQUAL(load(TWO_CARDS
                     ", \"links\": [{\"from\": 0, \"to\": 1, \"nvlinks\": 4, \"nvlinks_back\": 2, \"ancestor\": "
                     "\"single\"}, {\"from\": 1, \"nvlinks\": 3}]}"),
                SIM_LOAD_OK);
    CHECK_EQUAL(sim_links_of(&description.links, 0), 4);
    CHECK_EQUAL(sim_links_of(&description.links, 1), 5);
    CHECK_EQUAL(sim_links_peer(&description.links, 0, 3), 1);
    CHECK_EQUAL(sim_links_peer(&description.links, 1, 1), 0);
    CHECK_EQUAL(sim_links_peer(&description.links, 1, 2), SIM_LINKED_CARDS); /* an NVSwitch */
    CHECK_EQUAL(description.links.ancestors[1][0], SIM_ANCESTOR_SINGLE);
    CHECK_EQUAL(load(TWO_CARDS "}"), SIM_LOAD_OK);
    CHECK_EQUAL(sim_links_of(&description.links, 0), 0);
    CHECK_EQUAL(description.links.ancestors[1][0], -1);
}

static void test_faults(void) {
    static const char *const rows[][2] = {
        {"", "not JSON"},
        {"[1]", "expected an object"},
        {"{}", "cards: expected a list"},
        {"{\"cards\": [3]}", "cards[0]: expected an object"},
        {"{\"cards\": [{\"name\": \"A\", \"memory_mib\": 1}]}", "cards[0].uuid is missing"},
        {"{\"cards\": [{\"uuid\": \"u\", \"name\": \"A\"}]}", "cards[0].memory_mib is missing"},
        {"{\"cards\": [{\"uuid\": \"u\", \"name\": \"A\", \"memory_mib\": -1}]}", "cards[0].memory_mib"},
        {"{\"cards\": [{\"uuid\": \"u\", \"name\": \"A\", \"memory_mib\": 1.5}]}", "whole number"},
        {"{\"cards\": [{\"uuid\": \"u\", \"name\": \"A\", \"memory_mib\": 1, \"memory_bytes\": 1}]}", "both set"},
        {"{\"cards\": [{\"uuid\": \"u\", \"name\": \"A\", \"memory_mib\": 1, \"index\": 1}]}", "listed by index"},
        {"{\"cards\": [{\"uuid\": \"u\", \"name\": \"A\", \"memory_mib\": 1, \"mig_capable\": 1}]}", "true or false"},
        {"{\"cards\": [{\"uuid\": \"u\", \"name\": \"A\", \"memory_mib\": 1}, {\"uuid\": \"u\", \"name\": \"A\", "
         "\"memory_mib\": 1}]}",
         "repeats that of cards[0]"},
        {"{\"cards\": [], \"cuda_version\": \"twelve\"}", "cuda_version"},
        {"{\"cards\": [], \"cuda_version\": 12.8}", "cuda_version: expected a string"},
        {"{\"cards\": [], \"links\": 3}", "links[0]: expected a list"},
        {"{\"cards\": [], \"links\": [{\"from\": 0}]}", "links[0]: from"},
        {TWO_CARDS ", \"links\": [{\"from\": 0, \"to\": 1}, {\"from\": 1, \"to\": 1}]}", "links[1]: to"},
        {TWO_CARDS ", \"links\": [{\"from\": 0, \"to\": 1, \"nvlinks\": 37}]}", "links[0]: nvlinks"},
        {TWO_CARDS ", \"links\": [{\"from\": 0, \"to\": 1, \"nvlinks\": 20}, {\"from\": 0, \"nvlinks\": 17}]}",
         "more than 36"},
        {TWO_CARDS ", \"links\": [{\"from\": 0, \"to\": 1, \"ancestor\": \"near\"}]}", "links[0]: ancestor"},
        {"{\"cards\": []} trailing", "not JSON"},
        {"{\"cards\": [],}", "not JSON"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        CHECK_EQUAL_THAT(load(rows[i][0]), SIM_LOAD_INVALID, rows[i][0]);
        CHECK_THAT(strstr(reason, rows[i][1]) != NULL, reason);
    }
    unsetenv("HAMI_SIM_DRIVER");
    CHECK_EQUAL(sim_description_load(&description, reason, sizeof reason), SIM_LOAD_NO_DRIVER);
    setenv("HAMI_SIM_DRIVER", "/nowhere/node.json", 1);
    CHECK_EQUAL(sim_description_load(&description, reason, sizeof reason), SIM_LOAD_INVALID);
}

static void test_visible(void) {
    static const struct {
        const char *runtime, *cuda; /* NULL = unset */
        const char *nvml_cards, *cuda_cards;
    } rows[] = {
        {NULL, NULL, "0123", "0123"},
        {"all", NULL, "0123", "0123"},
        {"void", NULL, "", ""},
        {"none", NULL, "", ""},
        {"", NULL, "", ""},
        {"GPU-aa-3,GPU-aa-1", NULL, "13", "13"}, /* the runtime shows devices, it does not order them */
        {"2, 0", NULL, "02", "02"},
        {"GPU-unknown,1", NULL, "1", "1"},
        {NULL, "2,0", "0123", "20"},
        {NULL, "", "0123", ""},
        {NULL, "1,9,0", "0123", "1"}, /* ends at the first that is none */
        {NULL, "-1", "0123", ""},
        {NULL, "1,1", "0123", ""},
        {NULL, "GPU-bb,0", "0123", "20"}, /* shortened, unique */
        {NULL, "GPU-aa", "0123", ""},     /* shortened, not unique */
        {"1,3", "1,0", "13", "31"},
        {"1,3", "2", "13", ""},
        {"1,3", "GPU-bb-2", "13", ""},
    };
    CHECK_EQUAL(
        load("{\"cards\": [{\"uuid\": \"GPU-aa-0\", \"name\": \"A\", \"memory_mib\": 1}, {\"uuid\": \"GPU-aa-1\", "
             "\"name\": \"A\", \"memory_mib\": 1}, {\"uuid\": \"GPU-bb-2\", \"name\": \"A\", \"memory_mib\": 1}, "
             "{\"uuid\": \"GPU-aa-3\", \"name\": \"A\", \"memory_mib\": 1}]}"),
        SIM_LOAD_OK);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        unsigned cards[SIM_MAX_CARDS];
        char got[2][SIM_MAX_CARDS + 1] = {"", ""}, what[64];
        unsetenv("HAMI_SIM_VISIBLE_DEVICES");
        unsetenv("CUDA_VISIBLE_DEVICES");
        if (rows[i].runtime != NULL)
            setenv("HAMI_SIM_VISIBLE_DEVICES", rows[i].runtime, 1);
        if (rows[i].cuda != NULL)
            setenv("CUDA_VISIBLE_DEVICES", rows[i].cuda, 1);
        unsigned count = sim_visible_to_nvml(&description, cards);
        for (unsigned n = 0; n < count; n++)
            got[0][n] = (char)('0' + cards[n]);
        count = sim_visible_to_cuda(&description, cards);
        for (unsigned n = 0; n < count; n++)
            got[1][n] = (char)('0' + cards[n]);
        snprintf(what, sizeof what, "row %zu: nvml %s, cuda %s", i, got[0], got[1]);
        CHECK_THAT(strcmp(got[0], rows[i].nvml_cards) == 0 && strcmp(got[1], rows[i].cuda_cards) == 0, what);
    }
}

static void fuzz(void) {
    static const char seed_text[] = "{\"cards\": [{\"uuid\": \"GPU-\\u0041\", \"name\": \"A\", \"memory_mib\": 100, "
                                    "\"mig_capable\": true, \"links\": [null, -1.5e3, {}]}]}";
    uint64_t state = 8;
    for (int round = 0; round < 100000; round++) {
        char text[sizeof seed_text];
        size_t error_at = 0;
        memcpy(text, seed_text, sizeof text);
        for (uint64_t changes = 1 + check_random(&state) % 4; changes > 0; changes--)
            text[check_random(&state) % (sizeof text - 1)] = (char)check_random(&state);
        struct sim_json *document = sim_json_parse(text, &error_at);
        CHECK(error_at <= strlen(text));
        sim_json_free(document);
    }
    char deep[5000];
    size_t error_at = 0;
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = '\0';
    CHECK(sim_json_parse(deep, &error_at) == NULL);
}

int main(void) {
    test_defaults();
    test_links();
    test_faults();
    test_visible();
    fuzz();
    return check_done();
}
