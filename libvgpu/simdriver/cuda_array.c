/* Arrays and mipmapped arrays. Their rows are laid out in steps of 512 bytes, so they take more than their texels; an
 * array whose mapping is deferred, or that is sparse, takes nothing of its own. */
#include "objects.h"

#define ROW_STEP 512u

static size_t texel_bytes(CUarray_format format, unsigned channels) {
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return (size_t)2 * channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return (size_t)4 * channels;
    default:
        return 0;
    }
}

static size_t at_level(size_t extent, unsigned level) {
    size_t shrunk = extent >> level;
    return shrunk == 0 ? 1 : shrunk;
}

/* Adds a level's bytes. False where they are more than can be counted. */
static bool add_level(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned level, size_t *sum) {
    size_t depth = (d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0 ? d->Depth : d->Depth >> level;
    size_t row = 0, bytes = 0;
    if (__builtin_mul_overflow(at_level(d->Width, level), texel_bytes(d->Format, d->NumChannels), &row) ||
        row > SIZE_MAX - ROW_STEP)
        return false;
    row = (row + ROW_STEP - 1) / ROW_STEP * ROW_STEP;
    return !__builtin_mul_overflow(row, at_level(d->Height, level), &bytes) &&
           !__builtin_mul_overflow(bytes, depth == 0 ? 1 : depth, &bytes) && !__builtin_add_overflow(*sum, bytes, sum);
}

static CUresult make(enum sim_object_kind kind, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels, void **handle) {
    CUcontext context = NULL;
    struct sim_object *made = NULL;
    size_t size = 0;
    bool countable = true;
    CUresult result = sim_require_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (d->Width == 0 || (d->NumChannels != 1 && d->NumChannels != 2 && d->NumChannels != 4) ||
        texel_bytes(d->Format, d->NumChannels) == 0 || levels == 0 || levels > 32)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned level = 0; level < levels && countable; level++)
        countable = add_level(d, level, &size);
    if (!countable)
        return CUDA_ERROR_OUT_OF_MEMORY;
    bool unbacked = (d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0;
    struct sim_object wanted = {
        .kind = kind, .bytes = unbacked ? 0 : size, .array = *d, .levels = levels, .size = size};
    result = sim_object_make(&wanted, &made);
    if (result == CUDA_SUCCESS)
        *handle = made;
    return result;
}

/* Where asked on behalf of a driver that lacks deferred mapping: all before CUDA 11.6. */
static bool has_deferred_mapping(void) {
    return sim.description.cuda_version >= 11060;
}

SIM_API CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    void *handle = NULL;
    if (array == NULL || descriptor == NULL ||
        ((descriptor->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) != 0 && !has_deferred_mapping()))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = make(SIM_ARRAY, descriptor, 1, &handle);
    if (result == CUDA_SUCCESS)
        *array = handle;
    return result;
}

SIM_API CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d) {
    if (d == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR whole = {
        .Width = d->Width, .Height = d->Height, .Format = d->Format, .NumChannels = d->NumChannels};
    return cuArray3DCreate_v2(array, &whole);
}

SIM_API CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *d) {
    if (d == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR whole = {
        .Width = d->Width, .Height = d->Height, .Format = d->Format, .NumChannels = d->NumChannels};
    return cuArray3DCreate_v2(array, &whole);
}

SIM_API CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d) {
    if (d == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR whole = {.Width = d->Width,
                                     .Height = d->Height,
                                     .Depth = d->Depth,
                                     .Format = d->Format,
                                     .NumChannels = d->NumChannels,
                                     .Flags = d->Flags};
    return cuArray3DCreate_v2(array, &whole);
}

SIM_API CUresult cuArrayDestroy(CUarray array) {
    return sim_object_destroy(SIM_ARRAY, array);
}

/* As documented: an array that is not of deferred mapping does not tell. */
static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, enum sim_object_kind kind, const void *handle,
                             CUdevice device) {
    struct sim_object found;
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (out == NULL || !sim_valid_device(device) || !sim_object_find(kind, handle, &found) ||
        (found.array.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = found.size, .alignment = ROW_STEP};
    return CUDA_SUCCESS;
}

SIM_API CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray array, CUdevice device) {
    return requirements(out, SIM_ARRAY, array, device);
}

SIM_API CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUmipmappedArray array,
                                                       CUdevice device) {
    return requirements(out, SIM_MIPMAPPED, array, device);
}

/* More levels than the extent has are as many as it has. */
static unsigned clamp_levels(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) {
    size_t longest = d->Width > d->Height ? d->Width : d->Height;
    bool layered = (d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    unsigned possible = 1;
    if (!layered && d->Depth > longest)
        longest = d->Depth;
    while (longest > 1) {
        longest >>= 1;
        possible++;
    }
    return levels < possible ? levels : possible;
}

SIM_API CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                        unsigned int levels) {
    void *handle = NULL;
    if (array == NULL || descriptor == NULL ||
        ((descriptor->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) != 0 && !has_deferred_mapping()))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = make(SIM_MIPMAPPED, descriptor, clamp_levels(descriptor, levels), &handle);
    if (result == CUDA_SUCCESS)
        *array = handle;
    return result;
}

SIM_API CUresult cuMipmappedArrayGetLevel(CUarray *levelArray, CUmipmappedArray array, unsigned int level) {
    struct sim_object found, *made = NULL;
    CUresult result = sim_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (!sim_object_find(SIM_MIPMAPPED, array, &found))
        return CUDA_ERROR_INVALID_HANDLE;
    if (levelArray == NULL || level >= found.levels)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_object wanted = {
        .kind = SIM_ARRAY, .array = found.array, .levels = 1, .parent = (const struct sim_object *)(void *)array};
    result = sim_object_make(&wanted, &made);
    if (result == CUDA_SUCCESS)
        *levelArray = (CUarray)(void *)made;
    return result;
}

SIM_API CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    return sim_object_destroy(SIM_MIPMAPPED, array);
}
