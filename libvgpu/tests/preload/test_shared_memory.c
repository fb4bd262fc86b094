/* Memory of one process in another: which of them it counts for, and until when. */
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bodies.h"

/* ---- between processes: each has one end of a socket ---- */

static int other(void) {
    return atoi(getenv("VGPU_TEST_SOCKET"));
}

static void tell(const void *what, size_t bytes) {
    CHECK_EQUAL(write(other(), what, bytes), bytes);
}

static void hear(void *what, size_t bytes) {
    CHECK_EQUAL(read(other(), what, bytes), bytes);
}

static void step(void) { /* both have come this far */
    char byte = 's';
    tell(&byte, 1);
    hear(&byte, 1);
}

static void send_descriptor(int descriptor) {
    char byte = 'd';
    char control[CMSG_SPACE(sizeof descriptor)] __attribute__((aligned(8))) = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header =
        (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof descriptor), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    CHECK_EQUAL(sendmsg(other(), &message, 0), 1);
    close(descriptor);
}

static int receive_descriptor(void) {
    char byte = 0;
    int descriptor = -1;
    char control[CMSG_SPACE(sizeof descriptor)] __attribute__((aligned(8)));
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    CHECK_EQUAL(recvmsg(other(), &message, 0), 1);
    if (CHECK(CMSG_FIRSTHDR(&message) != NULL))
        memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
    return descriptor;
}

static CUmemAllocationProp on_card(int device, CUmemAllocationHandleType type) {
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = type,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

/* Card 1's memory, made and shared with card 0's context. */
static void export_memory(uint64_t imported) {
    CUmemAllocationProp prop = on_card(1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmemGenericAllocationHandle handle = 0;
    int descriptor = -1;
    use_device(0);
    CHECK_EQUAL(cuMemCreate(&handle, 40 * MIB, &prop, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                CUDA_SUCCESS);
    send_descriptor(descriptor);
    step(); /* imported */
    use_device(1);
    CHECK_EQUAL(seen_free(), 60 * MIB - imported); /* counted here and there */
    CHECK_EQUAL(cuMemRelease(handle), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 100 * MIB - imported);
    step(); /* released; the importer lets go */
    step();
    CHECK_EQUAL(seen_free(), 100 * MIB);
}

static void body_vmm_export(void) {
    export_memory(40 * MIB);
}

static void body_vmm_export_unmeasured(void) {
    export_memory(0);
}

static void body_vmm_import(void) {
    CUmemGenericAllocationHandle handle = 0, again = 0;
    CUdeviceptr where = 0;
    use_device(1);
    int descriptor = receive_descriptor();
    void *shareable = (void *)(intptr_t)descriptor;
    use_device(0);
    CHECK_EQUAL(cuMemImportFromShareableHandle(&handle, shareable, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 100 * MIB);
    use_device(1);
    CHECK_EQUAL(seen_free(), 20 * MIB);
    CHECK_EQUAL(cuMemImportFromShareableHandle(&again, shareable, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(seen_free(), 20 * MIB);
    close(descriptor);
    step();
    step(); /* the exporter has released */
    CHECK_EQUAL(seen_free(), 60 * MIB);
    CHECK_EQUAL(cuMemAddressReserve(&where, 40 * MIB, 0, 0, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemMap(where, 2 * MIB, 0, handle, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemMap(where + 2 * MIB, 42 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuMemRelease(handle), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 60 * MIB); /* all of it lives while a part is mapped */
    CHECK_EQUAL(cuMemUnmap(where, 2 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 100 * MIB);
    step();
}

/* The driver's size cannot be tried out: no address space is left. Charged is what is mapped. */
static void body_vmm_import_unmeasured(void) {
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr where = 0;
    use_device(1);
    CHECK_EQUAL(cuMemAddressReserve(&where, 40 * MIB, 0, 0, 0), CUDA_SUCCESS);
    void *shareable = (void *)(intptr_t)receive_descriptor();
    sandbox_fail(NULL, "cuMemAddressReserve", CUDA_ERROR_OUT_OF_MEMORY, 0, 0);
    CHECK_EQUAL(cuMemImportFromShareableHandle(&handle, shareable, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 60 * MIB); /* the exporter's */
    step();
    step();
    CHECK_EQUAL(seen_free(), 100 * MIB);
    CHECK_EQUAL(cuMemMap(where, 10 * MIB, 0, handle, 0), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 90 * MIB);
    CHECK_EQUAL(cuMemUnmap(where, 10 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemMap(where, 40 * MIB, 0, handle, 0), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 60 * MIB);
    CHECK_EQUAL(cuMemUnmap(where, 40 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemRelease(handle), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 100 * MIB);
    step();
}

/* Legacy handles: the exporter holds the charge, the opener is not charged. */
static void body_ipc_export(void) {
    CUdeviceptr pointer = 0, managed = 0;
    CUipcMemHandle handle, none;
    use_device(0);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 60 * MIB), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAllocManaged(&managed, MIB, 1), CUDA_SUCCESS);
    CHECK_EQUAL(cuIpcGetMemHandle(&none, managed), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuMemFree_v2(managed), CUDA_SUCCESS);
    CHECK_EQUAL(cuIpcGetMemHandle(&handle, pointer), CUDA_SUCCESS);
    CHECK_EQUAL(cuIpcOpenMemHandle_v2(&managed, handle, 1), CUDA_ERROR_INVALID_CONTEXT); /* its own */
    tell(&handle, sizeof handle);
    step(); /* opened and closed again */
    CHECK_EQUAL(seen_free(), 40 * MIB);
    CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 100 * MIB);
}

static void body_ipc_open(void) {
    CUdeviceptr pointer = 0, again = 0;
    CUipcMemHandle handle;
    use_device(0);
    hear(&handle, sizeof handle);
    CHECK_EQUAL(cuIpcOpenMemHandle_v2(&pointer, handle, 1), CUDA_SUCCESS);
    CHECK_EQUAL(cuIpcOpenMemHandle(&again, handle, 1), CUDA_SUCCESS);
    CHECK_EQUAL(seen_free(), 40 * MIB);
    CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuIpcCloseMemHandle(pointer), CUDA_SUCCESS);
    CHECK_EQUAL(cuIpcCloseMemHandle(again), CUDA_SUCCESS);
    CHECK_EQUAL(cuIpcCloseMemHandle(again), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(seen_free(), 40 * MIB);
    step();
}

static const struct body bodies[] = {
    {"vmm-export", body_vmm_export}, {"vmm-export-unmeasured", body_vmm_export_unmeasured},
    {"vmm-import", body_vmm_import}, {"vmm-import-unmeasured", body_vmm_import_unmeasured},
    {"ipc-export", body_ipc_export}, {"ipc-open", body_ipc_open},
};

int main(int argc, char **argv) {
    if (argc == 2)
        return RUN_BODY(bodies, argv[1]);
    static const char *const rows[][2] = {
        {"vmm-export", "vmm-import"}, {"vmm-export-unmeasured", "vmm-import-unmeasured"}, {"ipc-export", "ipc-open"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sandbox sandbox = make_machine(ORDINARY_MACHINE);
        struct sandbox_process members[2];
        char output[SANDBOX_OUTPUT], socket_of[2][32];
        int ends[2];
        CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
        for (int m = 0; m < 2; m++) {
            snprintf(socket_of[m], sizeof socket_of[m], "VGPU_TEST_SOCKET=%d", ends[m]);
            const char *environment[] = {BODIES_LIMIT, socket_of[m], NULL};
            const char *member[] = {sandbox_self(), rows[i][m], NULL};
            members[m] = sandbox_start(&sandbox, true, environment, member);
        }
        close(ends[0]);
        close(ends[1]);
        for (int m = 0; m < 2; m++)
            if (!CHECK_EQUAL_THAT(sandbox_finish(&members[m], output), 0, rows[i][m]))
                fputs(output, stderr);
        check_empty(&sandbox, rows[i][1]);
        sandbox_remove(&sandbox);
    }
    return check_done();
}
