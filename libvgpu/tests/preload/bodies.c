#include "bodies.h"

#include <stdio.h>
#include <string.h>

#include "vgpu/shm_layout.h"

void use_device(int device) {
    CUcontext context = NULL;
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

uint64_t seen_free(void) {
    size_t free_bytes = 0, total = 0;
    CHECK_EQUAL(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    return free_bytes;
}

int run_body(const struct body *bodies, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(bodies[i].name, name) == 0) {
            bodies[i].run();
            return check_done();
        }
    return 99;
}

struct sandbox make_machine(const char *description) {
    struct sandbox made = sandbox_make();
    char path[128];
    snprintf(path, sizeof path, "%s/node.json", made.directory);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(description, file) >= 0 && fclose(file) == 0);
    return made;
}

void check_empty(const struct sandbox *sandbox, const char *what) {
    struct vg_region *region = sandbox_region(sandbox);
    for (unsigned card = 0; card < 2 && CHECK_THAT(region != NULL, what); card++) {
        CHECK_EQUAL_THAT(vg_card_used(region, card), 0, what);
        CHECK_EQUAL_THAT(sandbox_books_used(sandbox, card, 0), 0, what);
    }
}

void check_body(const char *name, const char *description, const char *variable) {
    struct sandbox sandbox = make_machine(description);
    const char *argv[] = {sandbox_self(), name, NULL};
    const char *environment[] = {BODIES_LIMIT, variable, NULL};
    char output[SANDBOX_OUTPUT];
    if (!CHECK_EQUAL_THAT(sandbox_run(&sandbox, true, environment, argv, output), 0, name))
        fputs(output, stderr);
    check_empty(&sandbox, name);
    sandbox_remove(&sandbox);
}
