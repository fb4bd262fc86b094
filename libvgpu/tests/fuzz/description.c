/* The simulated driver's description, of any content. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "description.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int file = -1;
    char path[64], reason[512];
    unsigned cards[SIM_MAX_CARDS];
    static struct sim_description description;
    if (file < 0)
        file = memfd_create("description", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    setenv("HAMI_SIM_DRIVER", path, 1);
    memset(reason, 1, sizeof reason);
    switch (sim_description_load(&description, reason, sizeof reason)) {
    case SIM_LOAD_OK:
        if (description.card_count > SIM_MAX_CARDS || sim_visible_to_cuda(&description, cards) > SIM_MAX_CARDS)
            abort();
        break;
    case SIM_LOAD_INVALID:
        if (memchr(reason, '\0', sizeof reason) == NULL || reason[0] == '\0')
            abort();
        break;
    case SIM_LOAD_NO_DRIVER:
        break;
    }
    return 0;
}
