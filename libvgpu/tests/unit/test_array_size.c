/* What arrays are reckoned to take where the driver does not tell. */
#include "check.h"
#include "core/array_size.h"

struct row {
    const char *name;
    struct vgi_array_shape shape;
    uint64_t bytes; /* 0 = more than can be counted */
};

static const struct row rows[] = {
    {"one row lies linear", {1000, 0, 0, 4, 1, false}, 4032},
    {"a row of one texel is a tile wide", {1, 0, 0, 1, 1, false}, 64},
    {"rows come in eights", {1000, 1001, 0, 4, 1, false}, 4032 * 1008},
    {"two rows", {16, 2, 0, 4, 1, false}, 64 * 8},
    {"whole tiles", {64, 64, 0, 1, 1, false}, 64 * 64},
    {"a volume", {64, 64, 64, 1, 1, false}, 64 * 64 * 64},
    {"layers", {64, 64, 6, 1, 1, true}, 64 * 64 * 6},
    {"layers of one row", {64, 0, 6, 1, 1, true}, 64 * 6},
    {"two levels", {128, 128, 0, 1, 2, false}, 128 * 128 + 64 * 64},
    {"levels of a volume lose depth too", {128, 128, 4, 1, 2, false}, 128 * 128 * 4 + 64 * 64 * 2},
    {"levels of layers do not", {128, 128, 4, 1, 2, true}, (128 * 128 + 64 * 64) * 4},
    {"more levels than can be halved", {4, 4, 0, 1, 99, false}, 64 * 8 * 3},
    {"depth can be halved longest", {1, 1, 8, 1, 99, false}, 64 * (8 + 4 + 2 + 1)},
    {"no level", {64, 64, 0, 1, 0, false}, 0},
    {"a width beyond counting", {UINT64_MAX, 1, 0, 4, 1, false}, 0},
    {"a width that cannot be rounded", {UINT64_MAX - 3, 1, 0, 1, 1, false}, 0},
    {"an area beyond counting", {1ull << 33, 1ull << 33, 0, 1, 1, false}, 0},
    {"a volume beyond counting", {1ull << 22, 1ull << 22, 1ull << 22, 1, 1, false}, 0},
    {"a sum beyond counting", {1ull << 31, 1ull << 32, 0, 1, 3, false}, (1ull << 63) / 16 * 21},
    {"a sum just beyond counting", {1ull << 31, 1ull << 32, 2, 1, 2, true}, 0},
};

int main(void) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t bytes = 0;
        bool countable = vgi_array_bytes(&rows[i].shape, &bytes);
        CHECK_EQUAL_THAT(countable, rows[i].bytes != 0 || rows[i].shape.levels == 0, rows[i].name);
        if (countable)
            CHECK_EQUAL_THAT(bytes, rows[i].bytes, rows[i].name);
    }
    return check_done();
}
