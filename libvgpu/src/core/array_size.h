/* What an array takes of a card where its driver does not tell. */
#ifndef VGPU_CORE_ARRAY_SIZE_H
#define VGPU_CORE_ARRAY_SIZE_H

#include <stdbool.h>
#include <stdint.h>

struct vgi_array_shape {
    uint64_t width, height, depth; /* 0 = one */
    uint32_t texel_bytes;
    uint32_t levels; /* of a mipmap; 1 = a plain array */
    bool layered;    /* depth counts layers or faces: no level has fewer */
};

/* Texels in whole tiles of 64 bytes by 8 rows, as cards keep arrays. False: more than can be counted. */
bool vgi_array_bytes(const struct vgi_array_shape *shape, uint64_t *bytes);

#endif
