/* A limits page of any content: the bytes lie over a sound page, from the offset that the first two say. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/limits_page.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct vg_limits_page *page = calloc(1, sizeof *page), *copy = calloc(1, sizeof *copy);
    if (page == NULL || copy == NULL)
        abort();
    size_t offset = size < 2 ? 0 : (data[0] | (size_t)data[1] << 8) % sizeof *page;
    size_t count = size < 2 ? 0 : size - 2 < sizeof *page - offset ? size - 2 : sizeof *page - offset;
    if (count > 0)
        memcpy((unsigned char *)page + offset, data + 2, count);
    if (vgi_limits_page_copy(page, copy)) {
        const char *fault = vgi_limits_page_fault(copy);
        if (fault == NULL) { /* a sound page names cards that can be found */
            (void)vgi_limits_page_card(copy, "GPU-11111111-2222-3333-4444-000000000000");
            (void)vgi_limits_page_card(copy, "");
        } else if (*fault == '\0') {
            abort();
        }
    }
    free(page);
    free(copy);
    return 0;
}
