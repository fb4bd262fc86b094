/* A decoder with a fault that chance alone does not find: it shows that the fuzzer does. */
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    volatile uint8_t behind = 0;
    if (size >= 6 && data[0] == 'G' && data[1] == 'P' && data[2] == 'U' && data[3] == '-' && data[4] == 0xfe)
        behind = data[size + data[5] % 2]; /* one byte too far, sometimes */
    (void)behind;
    return 0;
}
