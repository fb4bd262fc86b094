/* Memory mapped into sparse arrays and arrays of deferred mapping: a tile at a time in the interface, whole here. */
#include <stdlib.h>

#include "objects.h"
#include "vmm.h"

struct array_mapping {
    const void *array;
    struct sim_handle *handle;
    struct array_mapping *next;
};

static struct array_mapping *mappings; /* guarded by sim.lock */

void sim_array_unmap_all(const void *array) {
    for (struct array_mapping **link = &mappings; *link != NULL;) {
        struct array_mapping *mapping = *link;
        if (mapping->array != array) {
            link = &mapping->next;
            continue;
        }
        *link = mapping->next;
        sim_handle_unmapped(mapping->handle);
        free(mapping);
    }
}

static bool is_mappable(const CUarrayMapInfo *info) {
    struct sim_object found;
    bool mipmap = info->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    return sim_object_find(mipmap ? SIM_MIPMAPPED : SIM_ARRAY, info->resource.array, &found) &&
           (found.array.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0;
}

static CUresult apply(const CUarrayMapInfo *info) {
    struct array_mapping *made = NULL;
    CUresult result = CUDA_SUCCESS;
    if (!is_mappable(info) ||
        (info->memOperationType != CU_MEM_OPERATION_TYPE_MAP && info->memOperationType != CU_MEM_OPERATION_TYPE_UNMAP))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    if (info->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP) {
        sim_array_unmap_all(info->resource.array);
    } else {
        struct sim_handle *handle = sim_handle_find(info->memHandle.memHandle);
        made = handle == NULL ? NULL : calloc(1, sizeof *made);
        if (made == NULL) {
            result = CUDA_ERROR_INVALID_VALUE;
        } else {
            *made = (struct array_mapping){.array = info->resource.array, .handle = handle, .next = mappings};
            mappings = made;
            handle->mappings++;
        }
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_API CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
    (void)stream;
    CUcontext context = NULL;
    CUresult result = sim_require_context(&context);
    if (result == CUDA_SUCCESS && (list == NULL || count == 0))
        result = CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = apply(&list[i]);
    return result;
}

SIM_API CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
    return cuMemMapArrayAsync(list, count, stream);
}
