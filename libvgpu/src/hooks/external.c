/* Memory that another interface (Vulkan, OpenGL's and D3D's kind) allocated: nobody counts it but us, here. The buffers
 * and mipmaps mapped from it are the same memory; their pointers are strangers to us, and their frees pass. So are
 * those of legacy IPC handles: the process that exported them holds the charge, and may not free before they are
 * closed. */
#include "allocation.h"

static CUresult undo_import(CUdeviceptr handle) {
    return VGI_CUDA(cuDestroyExternalMemory, (CUexternalMemory)(uintptr_t)handle);
}

VGI_HOOK CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *descriptor) {
    struct vgi_claim claim;
    CUcontext context = NULL;
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    if (memory == NULL || descriptor == NULL || descriptor->size == 0)
        return VGI_CUDA(cuImportExternalMemory, memory, descriptor);
    CUresult result = vgi_claim_current(descriptor->size, &claim, &context);
    if (result != CUDA_SUCCESS)
        return result;
    result = VGI_CUDA(cuImportExternalMemory, memory, descriptor);
    return vgi_settle(result, &claim, (uintptr_t)*memory, (uintptr_t)context, undo_import);
}

VGI_HOOK CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    struct vgi_freeing freeing = vgi_begin_free((uintptr_t)memory);
    return vgi_end_free(VGI_CUDA(cuDestroyExternalMemory, memory), &freeing);
}
