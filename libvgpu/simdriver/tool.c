/* sim-driver: looks into a simulated machine and breaks it on purpose. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "books.h"
#include "description.h"
#include "tool.h"
#include "vgpu/abi/cuda_types.h"
#include "vgpu/abi/nvml_types.h"
#include "xid.h"

static const char usage_text[] =
    "usage: sim-driver [--description FILE] COMMAND\n"
    "\n"
    "FILE defaults to $HAMI_SIM_DRIVER; the shared state is found as the driver finds it ($HAMI_SIM_STATE).\n"
    "CARD is an index or a UUID.\n"
    "\n"
    "  books                            print cards, processes and unsupported calls as one JSON object\n"
    "  xid CARD NUMBER [GPU_INSTANCE]   raise an XID critical error event; 13, 31, 43, 48, 74, 94 and 95 also end what "
    "runs\n"
    "                                   on the card: its CUDA calls fail from now on. Of a GPU instance: the event "
    "only.\n"
    "                                   With \"unknown\" as CARD the event does not say which card it is about\n"
    "  double-bit-ecc CARD              raise an event of a memory error that cannot be corrected\n"
    "  lose CARD                        the card falls off the bus (and raises XID 79)\n"
    "  restore CARD                     the card is back\n"
    "  temperature CARD CELSIUS|auto    what the sensor reads\n"
    "  ecc CARD corrected|uncorrected N count N more ECC errors\n"
    "  mig-hold CARD GPU_INSTANCE       a process uses that instance, so it cannot be destroyed\n"
    "  mig-release CARD GPU_INSTANCE    no process does any more\n"
    "  nvml-delay MICROSECONDS [CARD]   every NVML query of a device, or of that card, takes that much longer\n"
    "  fail SYMBOL --code N             calls of a CUDA or NVML function return N without doing anything\n"
    "  slow SYMBOL --microseconds N     calls take that much longer\n"
    "  kill SYMBOL                      the process that calls it is killed before it does anything\n"
    "       --after K  --times M        ... once K calls came through; M times (0, the default: from then on)\n"
    "       --pid P                     ... only in the process that sees itself as P\n"
    "  heal                             forget every fail, slow and kill\n"
    "  count on|off                     count calls by symbol, from zero; \"books\" shows them\n"
    "  check                            read the description and say what is wrong with it\n"
    "\n"
    "exit status: 0 done, 1 refused with the reason on stderr, 2 wrong use\n";

static const char *const unsupported_cuda_names[] = {
#define CUDA_HOOK(symbol, base, type, version, streams, area) #symbol,
#define CUDA_CALL CUDA_HOOK
#define CUDA_NAME(symbol, base, version, streams) #symbol,
#include "cuda.def"
#undef CUDA_HOOK
#undef CUDA_CALL
#undef CUDA_NAME
};

static const char *const unsupported_nvml_names[] = {
#define NVML_HOOK(symbol, type, area)
#define NVML_CALL NVML_HOOK
#define NVML_NAME(symbol) #symbol,
#include "nvml.def"
#undef NVML_HOOK
#undef NVML_CALL
#undef NVML_NAME
};

static void print_text(const char *text) {
    putchar('"');
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            printf("\\%c", *text);
        else if ((unsigned char)*text < 0x20)
            printf("\\u%04x", (unsigned char)*text);
        else
            putchar(*text);
    }
    putchar('"');
}

static void print_process(struct sim_books *books, struct sim_process *process, unsigned card, bool first) {
    const struct sim_process_card *held = &process->cards[card];
    printf("%s{\"pid\": %d, \"name\": ", first ? "" : ", ", (int)sim_books_pid(books, process));
    print_text(process->name);
    printf(", \"used_bytes\": %llu, \"allocations\": %u, \"contexts\": %u, \"launches\": %llu}",
           (unsigned long long)held->used_bytes, held->allocations, held->contexts, (unsigned long long)held->launches);
}

static void print_unsupported(const char *key, const char *const names[], size_t count, _Atomic uint64_t *calls) {
    bool first = true;
    printf(", \"%s\": {", key);
    for (size_t i = 0; i < count; i++) {
        uint64_t number = atomic_load(&calls[i]);
        if (number == 0)
            continue;
        printf("%s\"%s\": %llu", first ? "" : ", ", names[i], (unsigned long long)number);
        first = false;
    }
    printf("}");
}

static void print_books(const struct sim_description *d, struct sim_books *books) {
    sim_books_lock(books);
    sim_books_reclaim(books);
    printf("{\"cards\": [");
    for (unsigned card = 0; card < d->card_count; card++) {
        bool first = true;
        printf("%s{\"index\": %u, \"uuid\": ", card == 0 ? "" : ", ", card);
        print_text(d->cards[card].uuid);
        printf(", \"memory_bytes\": %llu, \"used_bytes\": %llu, \"lost\": %s, \"processes\": [",
               (unsigned long long)d->cards[card].memory_bytes, (unsigned long long)books->cards[card].used_bytes,
               books->cards[card].lost ? "true" : "false");
        for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++) {
            struct sim_process *process = &books->processes[i];
            const struct sim_process_card *held = &process->cards[card];
            if (!process->in_use || (held->contexts == 0 && held->used_bytes == 0))
                continue;
            print_process(books, process, card, first);
            first = false;
        }
        printf("], \"mig_instances\": [");
        first = true;
        for (unsigned i = 0; i < SIM_MAX_INSTANCES; i++) {
            const struct sim_gpu_instance *instance = &books->cards[card].instances[i];
            if (!instance->in_use)
                continue;
            printf("%s{\"id\": %u, \"start\": %u, \"size\": %u, \"number\": %u}", first ? "" : ", ", instance->id,
                   instance->start, instance->size, instance->number);
            first = false;
        }
        printf("]}");
    }
    printf("], \"events\": %u", atomic_load(&books->event_count));
    print_unsupported("unsupported_cuda", unsupported_cuda_names,
                      sizeof unsupported_cuda_names / sizeof unsupported_cuda_names[0], books->unsupported_cuda);
    print_unsupported("unsupported_nvml", unsupported_nvml_names,
                      sizeof unsupported_nvml_names / sizeof unsupported_nvml_names[0], books->unsupported_nvml);
    sim_books_unlock(books);
    printf(", \"calls\": ");
    tool_print_calls(d->state_directory);
    printf("}\n");
}

static bool find_card(const struct sim_description *d, const char *text, unsigned *card) {
    char *end = NULL;
    unsigned long index = strtoul(text, &end, 10);
    if (*text != '\0' && *end == '\0' && index < d->card_count) {
        *card = (unsigned)index;
        return true;
    }
    for (unsigned i = 0; i < d->card_count; i++)
        if (strcmp(d->cards[i].uuid, text) == 0) {
            *card = i;
            return true;
        }
    fprintf(stderr, "sim-driver: no card \"%s\"; there are %u\n", text, d->card_count);
    return false;
}

bool tool_read_number(const char *text, unsigned long long *number) {
    char *end = NULL;
    errno = 0;
    *number = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && *end == '\0' && errno == 0;
}

int tool_wrong_use(void) {
    fputs(usage_text, stderr);
    return 2;
}

/* Processes that use the card find out at their next call. */
static void hit_processes(struct sim_books *books, unsigned card, uint64_t xid) {
    int code = sim_xid_code(xid);
    if (code == 0)
        return;
    books->cards[card].fatal_code = code;
    __atomic_fetch_add(&books->cards[card].fatal_errors, 1, __ATOMIC_RELEASE);
}

static void count_ecc_errors(struct sim_books *books, unsigned card, bool uncorrected, uint64_t count) {
    sim_books_lock(books);
    books->cards[card].ecc_errors[uncorrected] += count;
    sim_books_unlock(books);
}

static int run_ecc_command(const struct sim_description *d, struct sim_books *books, char **words) {
    unsigned card = 0;
    unsigned long long count = 0;
    bool uncorrected = strcmp(words[2], "uncorrected") == 0;
    if ((!uncorrected && strcmp(words[2], "corrected") != 0) || !tool_read_number(words[3], &count))
        return tool_wrong_use();
    if (!find_card(d, words[1], &card))
        return 1;
    count_ecc_errors(books, card, uncorrected, count);
    return 0;
}

/* Commands of the form NAME CARD [VALUE]. */
static int run_card_command(const struct sim_description *d, struct sim_books *books, char **words, int count) {
    unsigned card = 0;
    unsigned long long number = 0;
    const char *name = words[0];
    bool takes_value = strcmp(name, "xid") == 0 || strcmp(name, "temperature") == 0;
    if (count != (takes_value ? 3 : 2))
        return tool_wrong_use();
    if (!find_card(d, words[1], &card))
        return 1;
    bool automatic = strcmp(name, "temperature") == 0 && strcmp(words[2], "auto") == 0;
    if (takes_value && !automatic && (!tool_read_number(words[2], &number) || number > 100000))
        return tool_wrong_use();
    if (strcmp(name, "xid") == 0) {
        hit_processes(books, card, number);
        if (sim_xid_code(number) == CUDA_ERROR_ECC_UNCORRECTABLE)
            count_ecc_errors(books, card, true, 1);
        sim_books_raise(books, (struct sim_event){.card = card, .type = VG_NVML_EVENT_XID, .data = number});
        return 0;
    }
    if (strcmp(name, "double-bit-ecc") == 0) {
        count_ecc_errors(books, card, true, 1);
        sim_books_raise(books, (struct sim_event){.card = card, .type = VG_NVML_EVENT_DOUBLE_BIT_ECC});
        return 0;
    }
    sim_books_lock(books);
    if (takes_value)
        books->cards[card].temperature_celsius = automatic ? -1 : (int)number;
    else
        books->cards[card].lost = strcmp(name, "lose") == 0;
    sim_books_unlock(books);
    if (strcmp(name, "lose") == 0)
        sim_books_raise(books,
                        (struct sim_event){.card = card, .type = VG_NVML_EVENT_XID, .data = SIM_XID_FELL_OFF_THE_BUS});
    return 0;
}

/* An XID of one GPU instance, or of a card that the driver does not name. */
static int raise_xid_elsewhere(const struct sim_description *d, struct sim_books *books, char **words, int count) {
    unsigned long long xid = 0, instance = 0;
    unsigned card = SIM_NO_CARD;
    if (!tool_read_number(words[2], &xid) || xid > 100000 ||
        (count == 4 && (!tool_read_number(words[3], &instance) || instance == 0 || instance > SIM_MAX_INSTANCES)))
        return tool_wrong_use();
    if (strcmp(words[1], "unknown") != 0 && !find_card(d, words[1], &card))
        return 1;
    sim_books_raise(
        books,
        (struct sim_event){.card = card, .gpu_instance = (uint32_t)instance, .type = VG_NVML_EVENT_XID, .data = xid});
    return 0;
}

static int delay_queries(const struct sim_description *d, struct sim_books *books, char **words, int count) {
    unsigned long long number = 0;
    unsigned card = 0;
    if (!tool_read_number(words[1], &number) || number >= 60000000)
        return tool_wrong_use();
    if (count == 3 && !find_card(d, words[2], &card))
        return 1;
    *(count == 3 ? &books->cards[card].nvml_delay_us : &books->nvml_delay_us) = number;
    return 0;
}

/* mig-hold and mig-release. */
static int hold_instance(const struct sim_description *d, struct sim_books *books, char **words) {
    unsigned card = 0;
    unsigned long long id = 0;
    bool found = false;
    if (!tool_read_number(words[2], &id))
        return tool_wrong_use();
    if (!find_card(d, words[1], &card))
        return 1;
    sim_books_lock(books);
    for (unsigned i = 0; i < SIM_MAX_INSTANCES; i++) {
        struct sim_gpu_instance *instance = &books->cards[card].instances[i];
        if (!instance->in_use || instance->id != id)
            continue;
        instance->held = strcmp(words[0], "mig-hold") == 0;
        found = true;
    }
    sim_books_unlock(books);
    if (!found)
        fprintf(stderr, "sim-driver: card %s has no GPU instance %s\n", words[1], words[2]);
    return found ? 0 : 1;
}

static int run(const struct sim_description *d, char **words, int count) {
    char reason[512];
    int status = 0;
    if (tool_run_fault_command(d->state_directory, words, count, &status))
        return status;
    struct sim_books *books = sim_books_open(d->state_directory, reason, sizeof reason);
    if (books == NULL) {
        fprintf(stderr, "sim-driver: %s\n", reason);
        return 1;
    }
    if (strcmp(words[0], "books") == 0 && count == 1) {
        print_books(d, books);
        return 0;
    }
    if (strcmp(words[0], "nvml-delay") == 0 && (count == 2 || count == 3))
        return delay_queries(d, books, words, count);
    if (strcmp(words[0], "xid") == 0 && (count == 4 || (count == 3 && strcmp(words[1], "unknown") == 0)))
        return raise_xid_elsewhere(d, books, words, count);
    if ((strcmp(words[0], "mig-hold") == 0 || strcmp(words[0], "mig-release") == 0) && count == 3)
        return hold_instance(d, books, words);
    if (strcmp(words[0], "ecc") == 0 && count == 4)
        return run_ecc_command(d, books, words);
    if (strcmp(words[0], "xid") == 0 || strcmp(words[0], "lose") == 0 || strcmp(words[0], "restore") == 0 ||
        strcmp(words[0], "temperature") == 0 || strcmp(words[0], "double-bit-ecc") == 0)
        return run_card_command(d, books, words, count);
    return tool_wrong_use();
}

int main(int argc, char **argv) {
    static struct sim_description description;
    char reason[512];
    int first = 1;
    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        fputs(usage_text, stdout);
        return 0;
    }
    if (argc > 2 && strcmp(argv[1], "--description") == 0) {
        setenv("HAMI_SIM_DRIVER", argv[2], 1);
        first = 3;
    }
    if (argc <= first)
        return tool_wrong_use();
    const enum sim_load loaded = sim_description_load(&description, reason, sizeof reason);
    if (loaded == SIM_LOAD_NO_DRIVER) {
        fprintf(stderr, "sim-driver: %s; say --description FILE\n", reason);
        return 2;
    }
    if (loaded != SIM_LOAD_OK) {
        fprintf(stderr, "sim-driver: %s\n", reason);
        return 1;
    }
    if (strcmp(argv[first], "check") == 0) {
        printf("%u cards, state in %s\n", description.card_count, description.state_directory);
        return 0;
    }
    return run(&description, argv + first, argc - first);
}
