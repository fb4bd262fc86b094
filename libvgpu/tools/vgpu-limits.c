/* vgpu-limits: prints a limits page, by the rules that the library reads it by. Plain reads only. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/limits_page.h"

static const char usage_text[] =
    "usage: vgpu-limits PAGE\n"
    "\n"
    "Prints one JSON object: what the limits page gives the container (a limit of 0 bytes is none).\n"
    "exit status: 0 sound, 1 the library would refuse CUDA over it, 2 wrong use, 3 it cannot be read\n";

enum exit_status { SOUND = 0, NOT_SOUND = 1, WRONG_USE = 2, UNREADABLE = 3 };

static int report(enum exit_status status, const char *path, const char *what) {
    fprintf(stderr, "vgpu-limits: %s: %s\n", path, what);
    return status;
}

static void print_text(const char *text) {
    putchar('"');
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == 0x7f || c == '"' || c == '\\')
            printf("\\u%04x", c);
        else
            putchar(c); /* beyond ASCII it is what the path is */
    }
    putchar('"');
}

static void print_card(const struct vg_limits_card *card) {
    printf("{\"uuid\": ");
    print_text(card->uuid);
    printf(", \"memory_limit_bytes\": %" PRIu64 ", \"cores_percent\": %" PRIu64 ", \"context_bytes\": %" PRIu64
           ", \"withheld\": %s}",
           card->memory_limit_bytes, card->cores_percent, card->context_bytes,
           (card->flags & VG_LIMITS_CARD_WITHHELD) != 0 ? "true" : "false");
}

static void print_page(const struct vg_limits_page *page) {
    static const char *const policies[] = {"default", "force", "disable"};
    printf("{\"sequence\": %" PRIu64 ", \"change_under_way\": %s, \"writer_generation\": %" PRIu64
           ", \"control\": \"%s\", \"policy\": \"%s\", \"priority\": %d, \"region_file\": ",
           page->sequence, page->sequence % 2 != 0 ? "true" : "false", page->writer_generation,
           page->control == VG_LIMITS_CONTROL_DISABLED ? "disabled" : "held", policies[page->policy],
           (int)page->priority);
    print_text(page->region_file);
    printf(", \"cards\": [");
    for (unsigned i = 0; i < page->card_count; i++) {
        printf("%s", i > 0 ? ", " : "");
        print_card(&page->cards[i]);
    }
    printf("]}\n");
}

int main(int argc, char **argv) {
    struct vg_limits_page page;
    struct stat status;
    if (argc != 2 || argv[1][0] == '-') {
        fputs(usage_text, argc == 2 && strcmp(argv[1], "--help") == 0 ? stdout : stderr);
        return argc == 2 && strcmp(argv[1], "--help") == 0 ? SOUND : WRONG_USE;
    }
    int file = open(argv[1], O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0 || fstat(file, &status) != 0)
        return report(UNREADABLE, argv[1], strerror(errno));
    if (!S_ISREG(status.st_mode))
        return report(UNREADABLE, argv[1], "it is no regular file");
    bool whole = status.st_size == (off_t)sizeof page && pread(file, &page, sizeof page, 0) == (ssize_t)sizeof page;
    close(file);
    const char *fault = whole ? vgi_limits_page_fault(&page) : "it has another size than a limits page";
    if (fault == NULL && (status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        fault = "others than its owner may write it";
    if (fault != NULL)
        return report(NOT_SOUND, argv[1], fault);
    print_page(&page);
    return SOUND;
}
