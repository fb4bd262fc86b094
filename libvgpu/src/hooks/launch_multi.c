/* One kernel on several devices at once: each device's part is paid for on its card. */
#include "allocation.h"
#include "compute/gate.h"

/* While a part is dealt with, its stream's context is the current one. A driver that does not tell it (of CUDA 9.1 and
 * older) has the part paid for on the current card. */
static bool enter(CUstream stream) {
    CUcontext context = NULL;
    return VGI_CUDA(cuStreamGetCtx, stream, &context) == CUDA_SUCCESS &&
           VGI_CUDA(cuCtxPushCurrent_v2, context) == CUDA_SUCCESS;
}

static void leave(bool entered) {
    CUcontext context = NULL;
    if (entered)
        (void)VGI_CUDA(cuCtxPopCurrent_v2, &context);
}

static struct vgi_sample *pay_for_part(const CUDA_LAUNCH_PARAMS *part) {
    struct vgi_work work = {
        .what = (uintptr_t)part->function,
        .threads = vgi_threads((unsigned[]){part->gridDimX, part->gridDimY, part->gridDimZ},
                               (unsigned[]){part->blockDimX, part->blockDimY, part->blockDimZ}),
        .stream = part->hStream,
    };
    bool entered = enter(part->hStream);
    int card = vgi_throttled_card();
    struct vgi_sample *sample = card < 0 ? NULL : vgi_pay_for((unsigned)card, &work);
    leave(entered);
    return sample;
}

static void end_part(const CUDA_LAUNCH_PARAMS *part, struct vgi_sample *sample, CUresult result) {
    if (sample == NULL)
        return;
    bool entered = enter(part->hStream);
    vgi_after_launch(sample, result);
    leave(entered);
}

VGI_HOOK CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList, unsigned int numDevices,
                                                       unsigned int flags) {
    struct vgi_sample *samples[VGI_MAX_DEVICES] = {NULL};
    if (!vgi_bind_cuda())
        return VGI_NO_DRIVER;
    (void)vgi_before_launch();
    /* More parts than devices are refused by the driver. */
    bool counts = vgi_is_limited() && launchParamsList != NULL && numDevices <= VGI_MAX_DEVICES;
    for (unsigned i = 0; counts && i < numDevices; i++)
        samples[i] = pay_for_part(&launchParamsList[i]);
    CUresult result = VGI_CUDA(cuLaunchCooperativeKernelMultiDevice, launchParamsList, numDevices, flags);
    for (unsigned i = 0; counts && i < numDevices; i++)
        end_part(&launchParamsList[i], samples[i], result);
    return result;
}
