/* Many processes go for the last bytes at once: exactly as many allocations are granted as fit, at no moment more. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "reach.h"
#include "sandbox.h"
#include "vgpu/shm_layout.h"

#define PROCESSES 8
#define LIMIT (10ull * 1024 * 1024)

/* Waits for the start, grabs pieces until refused, says how many it got, holds them until told to end. */
static int run_child(size_t piece) {
    CUcontext context = NULL;
    char command = 0;
    unsigned granted = 0;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
    printf("ready\n");
    fflush(stdout);
    CHECK_EQUAL(read(STDIN_FILENO, &command, 1), 1);
    CUresult result;
    CUdeviceptr pointer = 0;
    while ((result = cuMemAlloc_v2(&pointer, piece)) == CUDA_SUCCESS)
        granted++;
    CHECK_EQUAL(result, CUDA_ERROR_OUT_OF_MEMORY);
    printf("granted %u\n", granted);
    fflush(stdout);
    CHECK_EQUAL(read(STDIN_FILENO, &command, 1), 0);
    return check_done();
}

static void run_race(size_t piece) {
    struct sandbox sandbox = sandbox_make();
    struct sandbox_process racers[PROCESSES];
    int inputs[PROCESSES];
    char text[32];
    unsigned granted = 0;
    snprintf(text, sizeof text, "%zu", piece);
    int saved = dup(STDIN_FILENO);
    for (int i = 0; i < PROCESSES; i++) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0)
            exit(1);
        dup2(ends[0], STDIN_FILENO);
        const char *environment[] = {"CUDA_DEVICE_MEMORY_LIMIT=10m", NULL};
        const char *argv[] = {sandbox_self(), text, NULL};
        racers[i] = sandbox_start(&sandbox, true, environment, argv);
        inputs[i] = ends[1];
        close(ends[0]);
    }
    dup2(saved, STDIN_FILENO);
    close(saved);
    for (int i = 0; i < PROCESSES; i++)
        CHECK(sandbox_await(&racers[i], "ready\n"));
    struct vg_region *region = sandbox_region(&sandbox);
    for (int i = 0; i < PROCESSES; i++)
        CHECK_EQUAL(write(inputs[i], "x", 1), 1);
    for (int i = 0; i < 20000; i++) /* while they run, and a little after */
        CHECK(vg_card_used(region, 0) <= LIMIT);
    for (int i = 0; i < PROCESSES; i++) {
        char digits[16] = "", c = 0;
        CHECK(sandbox_await(&racers[i], "granted "));
        for (size_t n = 0; n < sizeof digits - 1 && read(racers[i].output, &c, 1) == 1 && c != '\n'; n++)
            digits[n] = c;
        granted += (unsigned)atoi(digits);
    }
    CHECK_EQUAL_THAT(granted, LIMIT / piece, text);
    CHECK_EQUAL_THAT(vg_card_used(region, 0), granted * piece, text);
    CHECK_EQUAL_THAT(sandbox_books_used(&sandbox, 0, 0), granted * piece, text);
    for (int i = 0; i < PROCESSES; i++) {
        close(inputs[i]);
        CHECK_EQUAL(sandbox_finish(&racers[i], NULL), 0);
    }
    CHECK_EQUAL(vg_card_used(region, 0), 0);
    sandbox_remove(&sandbox);
}

int main(int argc, char **argv) {
    static const size_t pieces[] = {7777, 65536, 1024 * 1024, 3 * 1024 * 1024, LIMIT - 1, LIMIT};
    if (argc == 2)
        return run_child((size_t)strtoull(argv[1], NULL, 10));
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++)
        run_race(pieces[i]);
    return check_done();
}
