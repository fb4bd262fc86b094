/* Limits from an environment of any content: lines NAME=VALUE. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/limits.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *lines;

static const char *environment(const char *name) {
    size_t length = strlen(name);
    for (char *line = lines; line != NULL; line = strchr(line, '\0')[1] == '\1' ? NULL : strchr(line, '\0') + 1)
        if (strncmp(line, name, length) == 0 && line[length] == '=')
            return line + length + 1;
    return NULL;
}

static void require(int promise) {
    if (!promise)
        abort();
}

static void check_sizes(const char *text) {
    uint64_t value = 0;
    if (vgi_parse_percent(text, &value) == NULL)
        require(value <= 100);
    (void)vgi_parse_size(text, &value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct vgi_limits limits;
    char reason[96];
    lines = malloc(size + 2);
    if (lines == NULL)
        return 0;
    memcpy(lines, data, size);
    lines[size] = '\0';
    lines[size + 1] = '\1'; /* the end of the last line */
    for (size_t i = 0; i < size; i++)
        if (lines[i] == '\n' || lines[i] == '\1')
            lines[i] = '\0';
    memset(reason, 1, sizeof reason);
    if (vgi_read_limits(environment, &limits, reason, sizeof reason)) {
        for (unsigned card = 0; card < VG_MAX_CARDS; card++) {
            require(limits.cores_percent[card] <= 100);
            require(limits.any_memory || limits.memory_bytes[card] == 0);
        }
    } else {
        require(memchr(reason, '\0', sizeof reason) != NULL && reason[0] != '\0');
    }
    for (char *line = lines;; line = strchr(line, '\0') + 1) {
        char *value = strchr(line, '=');
        check_sizes(value == NULL ? line : value + 1);
        if (strchr(line, '\0')[1] == '\1')
            break;
    }
    free(lines);
    return 0;
}
