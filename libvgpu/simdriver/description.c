#include "description.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "json.h"

#define MIB (1024ull * 1024ull)
#define MAX_FILE_BYTES (4 * MIB)

struct faults {
    char *reason;
    unsigned size;
    bool any;
};

static void fault(struct faults *faults, const char *format, ...) {
    if (faults->any)
        return; /* the first fault is the one to mend first */
    faults->any = true;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(faults->reason, faults->size, format, arguments);
    va_end(arguments);
}

static char *read_file(const char *path) {
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return NULL;
    char *text = malloc(MAX_FILE_BYTES + 1);
    size_t length = text == NULL ? 0 : fread(text, 1, MAX_FILE_BYTES, file);
    fclose(file);
    if (text != NULL)
        text[length] = '\0';
    return text;
}

static void read_text(struct faults *f, const struct sim_json *object, const char *where, const char *key, char *out,
                      size_t size, const char *fallback) {
    const struct sim_json *value = sim_json_member(object, key);
    const char *text = fallback;
    if (value != NULL && value->kind == SIM_JSON_STRING)
        text = value->text;
    else if (value != NULL)
        fault(f, "%s%s: expected a string", where, key);
    if (text == NULL)
        fault(f, "%s%s is missing", where, key);
    else if (strlen(text) >= size)
        fault(f, "%s%s is longer than %zu characters", where, key, size - 1);
    else
        memcpy(out, text, strlen(text) + 1);
}

/* Whole numbers only, within [low, high]; a fallback outside of that range means "required". */
static double read_number(struct faults *f, const struct sim_json *object, const char *where, const char *key,
                          double low, double high, double fallback) {
    const struct sim_json *value = sim_json_member(object, key);
    if (value == NULL) {
        if (fallback < low || fallback > high)
            fault(f, "%s%s is missing", where, key);
        return fallback;
    }
    bool whole = value->kind == SIM_JSON_NUMBER && value->number >= low && value->number <= high &&
                 value->number == (double)(long long)value->number;
    if (!whole) {
        fault(f, "%s%s: expected a whole number from %.0f to %.0f", where, key, low, high);
        return low;
    }
    return value->number;
}

static uint64_t read_memory(struct faults *f, const struct sim_json *object, const char *where) {
    const struct sim_json *bytes = sim_json_member(object, "memory_bytes");
    if (bytes != NULL && sim_json_member(object, "memory_mib") != NULL)
        fault(f, "%smemory_mib and memory_bytes are both set", where);
    if (bytes != NULL)
        return (uint64_t)read_number(f, object, where, "memory_bytes", 1, 1e15, -1);
    return (uint64_t)read_number(f, object, where, "memory_mib", 1, 1e9, -1) * MIB;
}

static void read_capability(struct faults *f, const struct sim_json *object, const char *where, struct sim_card *card) {
    char text[SIM_TEXT] = "";
    char rest = 0;
    read_text(f, object, where, "compute_capability", text, sizeof text, "8.0");
    if (sscanf(text, "%u.%u%c", &card->capability_major, &card->capability_minor, &rest) != 2)
        fault(f, "%scompute_capability: expected \"<major>.<minor>\", not \"%s\"", where, text);
}

static void read_pci(struct faults *f, const struct sim_json *object, const char *where, struct sim_card *card,
                     unsigned index) {
    char text[SIM_TEXT];
    char fallback[SIM_TEXT];
    unsigned function = 0;
    snprintf(fallback, sizeof fallback, "00000000:%02X:00.0", index + 1);
    read_text(f, object, where, "pci_bus_id", text, sizeof text, fallback);
    if (sscanf(text, "%x:%x:%x.%x", &card->pci_domain, &card->pci_bus, &card->pci_device, &function) != 4 ||
        card->pci_bus > 0xff || card->pci_device > 0x1f || function > 7)
        fault(f, "%spci_bus_id: expected domain:bus:device.function in hexadecimal, not \"%s\"", where, text);
    else
        snprintf(card->pci_bus_id, sizeof card->pci_bus_id, "%08X:%02X:%02X.%X", card->pci_domain, card->pci_bus,
                 card->pci_device, function);
}

static bool read_flag(struct faults *f, const struct sim_json *object, const char *where, const char *key) {
    const struct sim_json *value = sim_json_member(object, key);
    if (value != NULL && value->kind != SIM_JSON_BOOL)
        fault(f, "%s%s: expected true or false", where, key);
    return value != NULL && value->kind == SIM_JSON_BOOL && value->boolean;
}

static void read_mig_profile(struct faults *f, const struct sim_json *entry, const char *where, struct sim_card *card) {
    char place[64];
    snprintf(place, sizeof place, "%.31smig_profiles[%u].", where, card->mig_profile_count);
    if (entry->kind != SIM_JSON_OBJECT) {
        fault(f, "%.31smig_profiles: expected objects", where);
        return;
    }
    struct sim_mig_profile *profile = &card->mig_profiles[card->mig_profile_count++];
    profile->kind = (unsigned)read_number(f, entry, place, "kind", 0, SIM_MIG_KINDS - 1, -1);
    profile->id = (unsigned)read_number(f, entry, place, "id", 0, 1000, profile->kind);
    profile->slices = (unsigned)read_number(f, entry, place, "slices", 1, 8, -1);
    profile->sm_count = (unsigned)read_number(f, entry, place, "sm_count", 1, 4096, -1);
    profile->memory_mib = (uint64_t)read_number(f, entry, place, "memory_mib", 1, 1e9, -1);
    profile->size = (unsigned)read_number(f, entry, place, "size", 1, 8, profile->slices);
    const struct sim_json *starts = sim_json_member(entry, "starts");
    if (starts == NULL || starts->kind != SIM_JSON_ARRAY) {
        fault(f, "%sstarts: expected a list", place);
        return;
    }
    for (const struct sim_json *start = starts->first; start != NULL; start = start->next) {
        if (start->kind != SIM_JSON_NUMBER || start->number < 0 || start->number + profile->size > 8 ||
            profile->start_count == SIM_MAX_MIG_STARTS)
            fault(f, "%sstarts: expected at most %d numbers, each with room for its size", place, SIM_MAX_MIG_STARTS);
        else
            profile->starts[profile->start_count++] = (unsigned)start->number;
    }
    profile->instances = (unsigned)read_number(f, entry, place, "instances", 1, 8, profile->start_count);
}

static void read_mig_profiles(struct faults *f, const struct sim_json *object, const char *where,
                              struct sim_card *card) {
    const struct sim_json *profiles = sim_json_member(object, "mig_profiles");
    if (profiles == NULL) {
        if (card->mig_capable)
            card->mig_profile_count = sim_mig_default(card->memory_bytes, card->mig_profiles);
        return;
    }
    if (profiles->kind != SIM_JSON_ARRAY) {
        fault(f, "%smig_profiles: expected a list", where);
        return;
    }
    for (const struct sim_json *entry = profiles->first; entry != NULL; entry = entry->next) {
        if (card->mig_profile_count == SIM_MAX_MIG_PROFILES) {
            fault(f, "%smig_profiles: at most %d", where, SIM_MAX_MIG_PROFILES);
            return;
        }
        read_mig_profile(f, entry, where, card);
    }
}

static void read_card(struct faults *f, const struct sim_json *object, unsigned index, struct sim_card *card) {
    char where[32];
    char serial[SIM_TEXT];
    snprintf(where, sizeof where, "cards[%u].", index);
    snprintf(serial, sizeof serial, "%013u", 1320000000u + index);

    read_text(f, object, where, "uuid", card->uuid, sizeof card->uuid, NULL);
    read_text(f, object, where, "name", card->name, sizeof card->name, NULL);
    read_text(f, object, where, "serial", card->serial, sizeof card->serial, serial);
    card->memory_bytes = read_memory(f, object, where);
    card->reserved_bytes = (uint64_t)read_number(f, object, where, "reserved_mib", 0, 1e9, 0) * MIB;
    card->context_bytes = (uint64_t)read_number(f, object, where, "context_mib", 0, 1e9, 0) * MIB;
    card->module_bytes = (uint64_t)read_number(f, object, where, "module_mib", 0, 1e6, 0) * MIB;
    card->integrated = read_flag(f, object, where, "integrated");
    card->pool_chunk_bytes = (uint64_t)read_number(f, object, where, "pool_chunk_mib", 0, 1e6, 0) * MIB;
    if (read_number(f, object, where, "index", 0, SIM_MAX_CARDS - 1, index) != index)
        fault(f, "%sindex: cards are listed by index, this one is at %u", where, index);
    card->minor = (unsigned)read_number(f, object, where, "minor", 0, 255, index);
    card->sm_count = (unsigned)read_number(f, object, where, "sm_count", 1, 4096, 108);
    card->threads_per_sm = (unsigned)read_number(f, object, where, "threads_per_sm", 1, 65536, 2048);
    card->numa_node = (int)read_number(f, object, where, "numa_node", -1, 1023, 0);
    card->temperature_celsius = (unsigned)read_number(f, object, where, "temperature_celsius", 0, 200, 34);
    card->idle_milliwatts = (unsigned)read_number(f, object, where, "idle_watts", 0, 10000, 50) * 1000;
    card->limit_milliwatts = (unsigned)read_number(f, object, where, "power_limit_watts", 1, 10000, 400) * 1000;
    card->sm_megahertz = (unsigned)read_number(f, object, where, "sm_clock_mhz", 1, 100000, 1410);
    card->memory_megahertz = (unsigned)read_number(f, object, where, "memory_clock_mhz", 1, 100000, 1593);
    card->no_ecc = read_flag(f, object, where, "no_ecc");
    card->ecc_errors[0] = (uint64_t)read_number(f, object, where, "ecc_corrected", 0, 1e15, 0);
    card->ecc_errors[1] = (uint64_t)read_number(f, object, where, "ecc_uncorrected", 0, 1e15, 0);
    card->mig_capable = read_flag(f, object, where, "mig_capable");
    card->mig_enabled = read_flag(f, object, where, "mig_enabled");
    if (card->mig_enabled && !card->mig_capable)
        fault(f, "%smig_enabled: the card is not mig_capable", where);
    read_mig_profiles(f, object, where, card);
    read_capability(f, object, where, card);
    read_pci(f, object, where, card, index);
    if (card->reserved_bytes >= card->memory_bytes)
        fault(f, "%sreserved_mib is not less than the card's memory", where);
}

static void read_cards(struct faults *f, const struct sim_json *document, struct sim_description *d) {
    const struct sim_json *cards = sim_json_member(document, "cards");
    if (cards == NULL || cards->kind != SIM_JSON_ARRAY) {
        fault(f, "cards: expected a list");
        return;
    }
    for (const struct sim_json *entry = cards->first; entry != NULL; entry = entry->next) {
        if (d->card_count == SIM_MAX_CARDS) {
            fault(f, "cards: at most %d", SIM_MAX_CARDS);
            return;
        }
        if (entry->kind != SIM_JSON_OBJECT) {
            fault(f, "cards[%u]: expected an object", d->card_count);
            return;
        }
        read_card(f, entry, d->card_count, &d->cards[d->card_count]);
        for (unsigned i = 0; i < d->card_count; i++)
            if (strcmp(d->cards[i].uuid, d->cards[d->card_count].uuid) == 0)
                fault(f, "cards[%u].uuid repeats that of cards[%u]", d->card_count, i);
        d->card_count++;
    }
}

static void read_links(struct faults *f, const struct sim_json *document, struct sim_description *d) {
    unsigned element = 0;
    const char *problem = sim_links_read(document, d->card_count, &d->links, &element);
    if (problem != NULL)
        fault(f, "links[%u]: %s", element, problem);
}

static void read_versions(struct faults *f, const struct sim_json *document, struct sim_description *d) {
    char text[SIM_TEXT] = "";
    char rest = 0;
    unsigned major = 0, minor = 0;
    read_text(f, document, "", "driver_version", d->driver_version, sizeof d->driver_version, "570.124.06");
    read_text(f, document, "", "cuda_version", text, sizeof text, "12.8");
    if (sscanf(text, "%u.%u%c", &major, &minor, &rest) != 2 || major > 99 || minor > 99)
        fault(f, "cuda_version: expected \"<major>.<minor>\", not \"%s\"", text);
    d->cuda_version = (int)(major * 1000 + minor * 10);
    snprintf(d->nvml_version, sizeof d->nvml_version, "%u.%.80s", major, d->driver_version);
}

static void choose_state_directory(struct faults *f, const struct sim_json *document, const char *path,
                                   struct sim_description *d) {
    const char *chosen = getenv("HAMI_SIM_STATE");
    char fallback[sizeof d->state_directory];
    if (chosen != NULL && *chosen != '\0') {
        if ((size_t)snprintf(d->state_directory, sizeof d->state_directory, "%s", chosen) >= sizeof d->state_directory)
            fault(f, "HAMI_SIM_STATE is too long");
        return;
    }
    if ((size_t)snprintf(fallback, sizeof fallback, "%s.state", path) >= sizeof fallback)
        fault(f, "the description's path is too long");
    read_text(f, document, "", "state_directory", d->state_directory, sizeof d->state_directory, fallback);
}

enum sim_load sim_description_load(struct sim_description *d, char *reason, unsigned reason_size) {
    memset(d, 0, sizeof *d);
    const char *path = getenv("HAMI_SIM_DRIVER");
    if (path == NULL || *path == '\0') {
        snprintf(reason, reason_size, "HAMI_SIM_DRIVER is not set");
        return SIM_LOAD_NO_DRIVER;
    }
    char *text = read_file(path);
    if (text == NULL) {
        snprintf(reason, reason_size, "cannot read the description %s: %s", path, strerror(errno));
        return SIM_LOAD_INVALID;
    }
    size_t error_at = 0;
    struct faults faults = {.reason = reason, .size = reason_size};
    struct sim_json *document = sim_json_parse(text, &error_at);
    if (document == NULL) {
        fault(&faults, "%s: not JSON at byte %zu", path, error_at);
    } else if (document->kind != SIM_JSON_OBJECT) {
        fault(&faults, "%s: expected an object", path);
    } else {
        read_versions(&faults, document, d);
        read_cards(&faults, document, d);
        read_links(&faults, document, d);
        choose_state_directory(&faults, document, path, d);
    }
    sim_json_free(document);
    free(text);
    return faults.any ? SIM_LOAD_INVALID : SIM_LOAD_OK;
}

/* The next token of a comma list, trimmed; NULL at its end. */
static char *next_token(char **rest) {
    char *token = strsep(rest, ",");
    if (token == NULL)
        return NULL;
    while (isspace((unsigned char)*token))
        token++;
    size_t length = strlen(token);
    while (length > 0 && isspace((unsigned char)token[length - 1]))
        token[--length] = '\0';
    return token;
}

static bool parse_index(const char *token, unsigned *index) {
    char *end = NULL;
    if (!isdigit((unsigned char)*token))
        return false;
    unsigned long value = strtoul(token, &end, 10);
    *index = (unsigned)value;
    return *end == '\0' && value < SIM_MAX_CARDS;
}

/* Whether the container runtime made the card's device file; any file stands for it. */
static bool has_node(unsigned index) {
    char path[64];
    snprintf(path, sizeof path, "/dev/nvidia%u", index);
    return access(path, F_OK) == 0;
}

unsigned sim_visible_to_nvml(const struct sim_description *d, unsigned cards[SIM_MAX_CARDS]) {
    const char *setting = getenv("HAMI_SIM_VISIBLE_DEVICES");
    bool shown[SIM_MAX_CARDS] = {false};
    unsigned count = 0;
    if (setting == NULL || strcmp(setting, "all") == 0) {
        memset(shown, 1, sizeof shown);
    } else if (strcmp(setting, "nodes") == 0) {
        for (unsigned i = 0; i < d->card_count; i++)
            shown[i] = has_node(i);
    } else {
        char list[4096];
        snprintf(list, sizeof list, "%s", setting);
        char *rest = list;
        for (char *token = next_token(&rest); token != NULL; token = next_token(&rest)) {
            unsigned index = 0;
            if (parse_index(token, &index) && index < d->card_count)
                shown[index] = true;
            for (unsigned i = 0; i < d->card_count; i++)
                if (strcmp(token, d->cards[i].uuid) == 0)
                    shown[i] = true;
        }
    }
    for (unsigned i = 0; i < d->card_count; i++)
        if (shown[i])
            cards[count++] = i;
    return count;
}

/* As CUDA does: positions count within what is visible, a UUID may be shortened while it stays unique, the list ends
 * at the first token that names no card, and a card named twice voids the list. */
static bool match_cuda_token(const struct sim_description *d, const unsigned *shown, unsigned shown_count,
                             const char *token, unsigned *card) {
    unsigned index = 0, matches = 0;
    if (parse_index(token, &index)) {
        *card = index < shown_count ? shown[index] : 0;
        return index < shown_count;
    }
    if (strncmp(token, "GPU-", 4) != 0)
        return false;
    for (unsigned i = 0; i < shown_count; i++) {
        if (strncmp(d->cards[shown[i]].uuid, token, strlen(token)) == 0) {
            *card = shown[i];
            matches++;
        }
    }
    return matches == 1;
}

unsigned sim_visible_to_cuda(const struct sim_description *d, unsigned cards[SIM_MAX_CARDS]) {
    unsigned shown[SIM_MAX_CARDS];
    unsigned shown_count = sim_visible_to_nvml(d, shown);
    const char *setting = getenv("CUDA_VISIBLE_DEVICES");
    if (setting == NULL) {
        memcpy(cards, shown, shown_count * sizeof shown[0]);
        return shown_count;
    }
    char list[4096];
    unsigned count = 0, card = 0;
    snprintf(list, sizeof list, "%s", setting);
    char *rest = list;
    for (char *token = next_token(&rest); token != NULL && count < SIM_MAX_CARDS; token = next_token(&rest)) {
        if (!match_cuda_token(d, shown, shown_count, token, &card))
            break;
        for (unsigned i = 0; i < count; i++)
            if (cards[i] == card)
                return 0;
        cards[count++] = card;
    }
    return count;
}
