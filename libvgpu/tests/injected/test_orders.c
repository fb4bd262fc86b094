/* Orders of events that other threads bring about seldom, brought about here at will: the driver's functions in the
 * table are stood in front of, and what another thread would do happens inside the call. */
#include <stdlib.h>

#include "account/account.h"
#include "check.h"
#include "hooks/capture.h"
#include "sandbox.h"

#define MIB (1024ull * 1024ull)
#define CONTEXT_MIB 300

static struct sandbox here;
static struct vgi_cuda_calls driver; /* as it is */
static void (*meanwhile)(void);      /* happens once */

static void let_it_happen(void) {
    void (*what)(void) = meanwhile;
    meanwhile = NULL;
    if (what != NULL)
        what();
}

static void check_accounts(const char *when) {
    uint64_t books = sandbox_books_used(&here, 0, 0);
    CHECK_EQUAL_THAT(vgi_region->slots[vgi_process->slot].used[0].total, books, when);
    CHECK_EQUAL_THAT(vg_card_used(vgi_region, 0), books, when);
}

static CUdeviceptr allocate(uint64_t mib) {
    CUdeviceptr pointer = 0;
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, mib * MIB), CUDA_SUCCESS);
    return pointer;
}

static void retain(void) {
    CUcontext context = NULL;
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(driver.cuCtxSetCurrent(context), CUDA_SUCCESS);
}

static void retain_and_allocate(void) {
    retain();
    (void)allocate(70);
}

/* ---- a primary context ends and begins anew, under its old handle ---- */

static CUresult state_then(CUdevice device, unsigned int *flags, int *active) {
    CUresult result = driver.cuDevicePrimaryCtxGetState(device, flags, active);
    let_it_happen();
    return result;
}

static void test_retained_after_the_last_release_was_noticed(void) {
    retain();
    (void)allocate(50);
    meanwhile = retain_and_allocate;
    vgi_cuda.cuDevicePrimaryCtxGetState = state_then;
    CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    vgi_cuda = driver;
    CHECK(meanwhile == NULL);
    check_accounts("what the new context holds stays charged, what the old one held does not");
    CHECK_EQUAL(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
    check_accounts("the new one ended");
}

static CUresult release_then(CUdevice device) {
    CUresult result = driver.cuDevicePrimaryCtxRelease_v2(device);
    let_it_happen();
    return result;
}

static void test_retained_before_the_last_release_was_noticed(void) {
    retain();
    CHECK_EQUAL(cuMemFree_v2(allocate(50)), CUDA_SUCCESS);
    meanwhile = retain_and_allocate;
    vgi_cuda.cuDevicePrimaryCtxRelease_v2 = release_then;
    CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    vgi_cuda = driver;
    CHECK(meanwhile == NULL);
    check_accounts("the context is charged once");
    CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    check_accounts("all is over");
}

static void release(void) {
    CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
}

/* The first of two releases is still on its way back when the second ends the context. */
static void test_two_releases(void) {
    retain();
    retain();
    (void)allocate(50);
    meanwhile = release;
    vgi_cuda.cuDevicePrimaryCtxRelease_v2 = release_then;
    CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    vgi_cuda = driver;
    check_accounts("both returned");
    CHECK_EQUAL(sandbox_books_used(&here, 0, 0), 0);
    retain();
    retain();
    (void)allocate(50);
    meanwhile = release;
    vgi_cuda.cuDevicePrimaryCtxGetState = state_then; /* it was still there */
    CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    vgi_cuda = driver;
    check_accounts("both returned");
    CHECK_EQUAL(sandbox_books_used(&here, 0, 0), 0);
}

static void test_failed_release(void) {
    retain();
    (void)allocate(50);
    CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(7), CUDA_ERROR_INVALID_DEVICE);
    CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(-1), CUDA_ERROR_INVALID_DEVICE);
    check_accounts("no such device");
    release();
    CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
    check_accounts("none to release");
}

/* ---- a context ends, and with it a stream that was captured ---- */

static CUresult not_captured(CUstream stream, CUstreamCaptureStatus *status) {
    (void)stream;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

static void test_captured_stream_goes_with_its_context(void) {
    CUcontext context = NULL;
    CUstream stream = NULL;
    CHECK_EQUAL(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamCreate(&stream, 1), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    vgi_cuda.cuStreamIsCapturing = not_captured; /* asked without need it would be believed */
    CHECK(vgi_capturing(stream, false));
    vgi_cuda = driver;
    CHECK_EQUAL(cuCtxDestroy_v2(context), CUDA_SUCCESS);
    CHECK(vgi_capturing(stream, false));         /* the driver says so */
    vgi_cuda.cuStreamIsCapturing = not_captured; /* a new one, with its handle */
    CHECK(!vgi_capturing(stream, false));
    vgi_cuda = driver;
    CHECK(!vgi_capturing(stream, false));
    CHECK(!vgi_any_capture());
    CHECK_EQUAL(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
}

static void describe(void) {
    char path[128];
    snprintf(path, sizeof path, "%s/node.json", here.directory);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    fprintf(file,
            "{\"cards\": [{\"uuid\": \"GPU-11111111-2222-3333-4444-000000000000\", \"name\": \"A\", "
            "\"memory_mib\": 40960, \"context_mib\": %d}]}\n",
            CONTEXT_MIB);
    fclose(file);
    setenv("HAMI_SIM_DRIVER", path, 1);
}

int main(void) {
    here = sandbox_make();
    describe();
    setenv("CUDA_DEVICE_MEMORY_SHARED_CACHE", here.region, 1);
    setenv("CUDA_DEVICE_MEMORY_LIMIT", "4096m", 1);
    driver = vgi_cuda;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    test_retained_after_the_last_release_was_noticed();
    test_retained_before_the_last_release_was_noticed();
    test_two_releases();
    test_failed_release();
    test_captured_stream_goes_with_its_context();
    sandbox_remove(&here);
    return check_done();
}
