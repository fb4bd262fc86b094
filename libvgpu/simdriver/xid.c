#include "xid.h"

#include <stddef.h>

#include "vgpu/abi/cuda_types.h"

/* Numbers: NVIDIA's XID catalog. Codes: what the driver API reference says of each. */
static const struct {
    uint64_t xid;
    CUresult code;
} effects[] = {
    {13, CUDA_ERROR_LAUNCH_FAILED},        /* exception of the graphics engine */
    {31, CUDA_ERROR_ILLEGAL_ADDRESS},      /* fault of the memory management unit */
    {43, CUDA_ERROR_LAUNCH_FAILED},        /* the channel was reset */
    {48, CUDA_ERROR_ECC_UNCORRECTABLE},    /* double-bit error */
    {74, CUDA_ERROR_NVLINK_UNCORRECTABLE}, /* NVLink */
    {94, CUDA_ERROR_ECC_UNCORRECTABLE},    /* contained */
    {95, CUDA_ERROR_ECC_UNCORRECTABLE},    /* not contained */
};

int sim_xid_code(uint64_t xid) {
    for (size_t i = 0; i < sizeof effects / sizeof effects[0]; i++)
        if (effects[i].xid == xid)
            return (int)effects[i].code;
    return 0;
}
