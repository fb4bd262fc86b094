#include "array_size.h"

#define TILE_BYTES 64
#define TILE_ROWS 8

static uint64_t at_level(uint64_t extent, uint32_t level) {
    uint64_t shrunk = level < 64 ? extent >> level : 0;
    return shrunk == 0 ? 1 : shrunk;
}

static bool round_up(uint64_t *value, uint64_t step) {
    if (__builtin_add_overflow(*value, step - 1, value))
        return false;
    *value -= *value % step;
    return true;
}

static bool add_level(const struct vgi_array_shape *shape, uint32_t level, uint64_t *sum) {
    uint64_t row = 0, rows = at_level(shape->height, level), bytes = 0;
    uint64_t depth = at_level(shape->depth, shape->layered ? 0 : level);
    if (__builtin_mul_overflow(at_level(shape->width, level), (uint64_t)shape->texel_bytes, &row) ||
        !round_up(&row, TILE_BYTES))
        return false;
    if (shape->height > 1 && !round_up(&rows, TILE_ROWS)) /* one row alone lies linear */
        return false;
    return !__builtin_mul_overflow(row, rows, &bytes) && !__builtin_mul_overflow(bytes, depth, &bytes) &&
           !__builtin_add_overflow(*sum, bytes, sum);
}

/* More levels than the longest side can be halved to are as many as it can. */
static uint32_t possible_levels(const struct vgi_array_shape *shape) {
    uint64_t longest = shape->width > shape->height ? shape->width : shape->height;
    uint32_t possible = 1;
    if (!shape->layered && shape->depth > longest)
        longest = shape->depth;
    for (; longest > 1; longest >>= 1)
        possible++;
    return possible;
}

bool vgi_array_bytes(const struct vgi_array_shape *shape, uint64_t *bytes) {
    uint32_t levels = possible_levels(shape);
    if (shape->levels < levels)
        levels = shape->levels;
    *bytes = 0;
    for (uint32_t level = 0; level < levels; level++)
        if (!add_level(shape, level, bytes))
            return false;
    return true;
}
