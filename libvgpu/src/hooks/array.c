/* Arrays and mipmapped arrays. How much one takes is the driver's secret, but it tells it of arrays whose mapping is
 * deferred: a twin of that kind is made first, asked, and destroyed; it takes nothing itself. Where there are no such
 * arrays (before CUDA 11.6, and in some formats) the size is reckoned. */
#include "allocation.h"
#include "core/array_size.h"
#include "vmm.h"

#define UNBACKED (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) /* memory is mapped into these later */

static bool ask_twin_array(CUDA_ARRAY3D_DESCRIPTOR twin, CUdevice device, uint64_t *bytes) {
    CUDA_ARRAY_MEMORY_REQUIREMENTS requirements = {.size = 0};
    CUarray array = NULL;
    if (VGI_CUDA(cuArray3DCreate_v2, &array, &twin) != CUDA_SUCCESS)
        return false;
    CUresult told = VGI_CUDA(cuArrayGetMemoryRequirements, &requirements, array, device);
    (void)VGI_CUDA(cuArrayDestroy, array);
    *bytes = requirements.size;
    return told == CUDA_SUCCESS && *bytes != 0;
}

static bool ask_twin_mipmap(CUDA_ARRAY3D_DESCRIPTOR twin, unsigned levels, CUdevice device, uint64_t *bytes) {
    CUDA_ARRAY_MEMORY_REQUIREMENTS requirements = {.size = 0};
    CUmipmappedArray array = NULL;
    if (VGI_CUDA(cuMipmappedArrayCreate, &array, &twin, levels) != CUDA_SUCCESS)
        return false;
    CUresult told = VGI_CUDA(cuMipmappedArrayGetMemoryRequirements, &requirements, array, device);
    (void)VGI_CUDA(cuMipmappedArrayDestroy, array);
    *bytes = requirements.size;
    return told == CUDA_SUCCESS && *bytes != 0;
}

/* By the numbers of the public reference. Formats it does not list count as the widest channel. */
static uint32_t channel_bytes(CUarray_format format) {
    switch ((unsigned)format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
    case 0xc0: /* normalised integers of 8 bits, one, two and four channels */
    case 0xc1:
    case 0xc2:
    case 0xc6:
    case 0xc7:
    case 0xc8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
    case 0xc3: /* and of 16 bits */
    case 0xc4:
    case 0xc5:
    case 0xc9:
    case 0xca:
    case 0xcb:
        return 2;
    default:
        return 4;
    }
}

/* `levels` 0: a plain array. False: the size cannot be counted, so no card has it. */
static bool size_of(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels, CUdevice device, uint64_t *bytes) {
    CUDA_ARRAY3D_DESCRIPTOR twin = *d;
    twin.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    if (levels == 0 ? ask_twin_array(twin, device, bytes) : ask_twin_mipmap(twin, levels, device, bytes))
        return true;
    struct vgi_array_shape shape = {.width = d->Width,
                                    .height = d->Height,
                                    .depth = d->Depth,
                                    .texel_bytes = channel_bytes(d->Format) * (d->NumChannels & 0xff),
                                    .levels = levels == 0 ? 1 : levels,
                                    .layered = (d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0};
    return vgi_array_bytes(&shape, bytes);
}

/* Claims what the array will take; `context` is then the current one. */
static CUresult claim_array(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels, struct vgi_claim *claim,
                            CUcontext *context) {
    CUdevice device = 0;
    uint64_t bytes = 0;
    CUresult result = VGI_CUDA(cuCtxGetDevice, &device);
    if (result == CUDA_SUCCESS)
        result = VGI_CUDA(cuCtxGetCurrent, context);
    if (result != CUDA_SUCCESS)
        return result;
    return size_of(d, levels, device, &bytes) ? vgi_claim(device, bytes, claim) : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult undo_array(CUdeviceptr handle) {
    return VGI_CUDA(cuArrayDestroy, (CUarray)(uintptr_t)handle);
}

static CUresult undo_mipmap(CUdeviceptr handle) {
    return VGI_CUDA(cuMipmappedArrayDestroy, (CUmipmappedArray)(uintptr_t)handle);
}

static bool is_backed(const void *out, const CUDA_ARRAY3D_DESCRIPTOR *d) {
    return out != NULL && (d->Flags & UNBACKED) == 0 && d->Width != 0;
}

#define CREATE(symbol, descriptor_type, ...)                                                                           \
    VGI_HOOK CUresult symbol(CUarray *array, const descriptor_type *descriptor) {                                      \
        struct vgi_claim claim;                                                                                        \
        CUcontext context = NULL;                                                                                      \
        if (!vgi_bind_cuda())                                                                                          \
            return VGI_NO_DRIVER;                                                                                      \
        const descriptor_type none = {.Width = 0}, *const d = descriptor != NULL ? descriptor : &none;                 \
        const CUDA_ARRAY3D_DESCRIPTOR whole = {                                                                        \
            .Width = d->Width, .Height = d->Height, .Format = d->Format, .NumChannels = d->NumChannels, __VA_ARGS__};  \
        if (!is_backed(array, &whole))                                                                                 \
            return VGI_CUDA(symbol, array, descriptor);                                                                \
        CUresult result = claim_array(&whole, 0, &claim, &context);                                                    \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        result = VGI_CUDA(symbol, array, descriptor);                                                                  \
        return vgi_settle(result, &claim, (uintptr_t)*array, (uintptr_t)context, undo_array);                          \
    }

CREATE(cuArrayCreate, CUDA_ARRAY_DESCRIPTOR_v1, .Depth = 0)
CREATE(cuArrayCreate_v2, CUDA_ARRAY_DESCRIPTOR, .Depth = 0)
CREATE(cuArray3DCreate, CUDA_ARRAY3D_DESCRIPTOR_v1, .Depth = d->Depth, .Flags = d->Flags)
CREATE(cuArray3DCreate_v2, CUDA_ARRAY3D_DESCRIPTOR, .Depth = d->Depth, .Flags = d->Flags)

VGI_HOOK CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                         unsigned int levels) {
    struct vgi_claim claim;
    CUcontext context = NULL;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    if (descriptor == NULL || levels == 0 || !is_backed(array, descriptor))
        return VGI_CUDA(cuMipmappedArrayCreate, array, descriptor, levels);
    CUresult result = claim_array(descriptor, levels, &claim, &context);
    if (result != CUDA_SUCCESS)
        return result;
    result = VGI_CUDA(cuMipmappedArrayCreate, array, descriptor, levels);
    return vgi_settle(result, &claim, (uintptr_t)*array, (uintptr_t)context, undo_mipmap);
}

static CUresult end(CUresult result, const void *array, const struct vgi_freeing *freeing) {
    if (result == CUDA_SUCCESS)
        vgi_array_ended(array);
    return vgi_end_free(result, freeing);
}

VGI_HOOK CUresult cuArrayDestroy(CUarray array) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    struct vgi_freeing freeing = vgi_begin_free((uintptr_t)array);
    return end(VGI_CUDA(cuArrayDestroy, array), array, &freeing);
}

VGI_HOOK CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    struct vgi_freeing freeing = vgi_begin_free((uintptr_t)array);
    return end(VGI_CUDA(cuMipmappedArrayDestroy, array), array, &freeing);
}
