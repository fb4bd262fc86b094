/* Memory that another process made and shared by descriptor or fabric handle. The importer is charged too: the exporter
 * may release first, and the memory then lives on here. While both hold it, it is counted twice.
 *
 * The driver tells which card an imported handle is on, and nowhere how large it is. But as much of it as it has can be
 * mapped, and no more: that is tried, in a range reserved for it. Where it cannot be tried, what the program maps of it
 * is charged when it maps it (vmm.c). */
#include "vgpu/prim.h"
#include "vmm.h"

struct probe {
    CUdeviceptr base;
    CUmemGenericAllocationHandle handle;
    size_t unit;
};

static bool can_map(const struct probe *probe, size_t units) {
    if (VGI_CUDA(cuMemMap, probe->base, units * probe->unit, 0, probe->handle, 0) != CUDA_SUCCESS)
        return false;
    (void)VGI_CUDA(cuMemUnmap, probe->base, units * probe->unit);
    return true;
}

/* How many units can be mapped, by doubling and then halving. */
static size_t count_units(const struct probe *probe, size_t most) {
    size_t good = 0, bad = 1;
    while (bad <= most && can_map(probe, bad)) {
        good = bad;
        bad *= 2;
    }
    if (bad > most)
        bad = most + 1;
    while (good > 0 && bad - good > 1) {
        size_t middle = good + (bad - good) / 2;
        if (can_map(probe, middle))
            good = middle;
        else
            bad = middle;
    }
    return good;
}

/* 0 where it cannot be found out. */
static uint64_t find_size(CUmemGenericAllocationHandle handle, const CUmemAllocationProp *prop, CUdevice device) {
    struct probe probe = {.handle = handle};
    size_t card = 0;
    if (VGI_CUDA(cuMemGetAllocationGranularity, &probe.unit, prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS ||
        probe.unit == 0 || VGI_CUDA(cuDeviceTotalMem_v2, &card, device) != CUDA_SUCCESS || card < probe.unit)
        return 0;
    size_t most = card / probe.unit;
    if (VGI_CUDA(cuMemAddressReserve, &probe.base, most * probe.unit, 0, 0, 0) != CUDA_SUCCESS)
        return 0;
    size_t units = count_units(&probe, most);
    (void)VGI_CUDA(cuMemAddressFree, probe.base, most * probe.unit);
    return (uint64_t)units * probe.unit;
}

VGI_HOOK CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                                 CUmemAllocationHandleType type) {
    struct vgi_claim claim;
    CUmemAllocationProp prop;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    CUresult result = VGI_CUDA(cuMemImportFromShareableHandle, handle, shareable, type);
    if (result != CUDA_SUCCESS)
        return result;
    if (VGI_CUDA(cuMemGetAllocationPropertiesFromHandle, &prop, *handle) != CUDA_SUCCESS)
        return result; /* a multicast object: it has no memory of its own */
    CUdevice device = vgi_device_of_location(&prop.location);
    if (device < 0)
        return result;
    result = vgi_claim(device, find_size(*handle, &prop, device), &claim);
    if (result == CUDA_SUCCESS && claim.card >= 0 && !vgi_enter_handle(*handle, &claim)) {
        vgi_give_back(claim.card, claim.kind, claim.bytes);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS)
        (void)VGI_CUDA(cuMemRelease, *handle);
    return result;
}
