/* From the first driver call that matters to a slot in the region; forks and exits. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "account.h"
#include "core/region.h"
#include "vgpu/prim.h"

#define LOCK_MS 10000

static struct vgi_process before_attach; /* until the wiped page exists */
struct vgi_process *vgi_process = &before_attach;
struct vg_region *vgi_region;
struct vgi_limits vgi_limits;
int8_t vgi_card_of_device[VGI_MAX_DEVICES];

static pthread_mutex_t attach_mutex = PTHREAD_MUTEX_INITIALIZER; /* one thread attaches */
static pthread_mutex_t region_mutex = PTHREAD_MUTEX_INITIALIZER; /* threads share the file's lock */
static struct vgi_region_file file = {.descriptor = -1};
static int holders_cancel_state; /* before it took region_mutex, which guards this */

static void let_region_mutex_go(void) {
    int before = holders_cancel_state;
    pthread_mutex_unlock(&region_mutex);
    vgi_let_cancel(before);
}

/* Who holds it cannot be cancelled: the whole container would wait for that thread's lock. */
bool vgi_region_lock(unsigned milliseconds) {
    int before = vgi_hold_off_cancel();
    for (unsigned waited = 0; pthread_mutex_trylock(&region_mutex) != 0; waited++) {
        if (waited >= milliseconds) {
            vgi_let_cancel(before);
            return false;
        }
        vgi_sleep_microseconds(1000);
    }
    holders_cancel_state = before;
    if (vgi_region_file_lock(&file, milliseconds))
        return true;
    let_region_mutex_go();
    return false;
}

void vgi_region_unlock(void) {
    vgi_region_file_unlock(&file);
    let_region_mutex_go();
}

static void after_fork_in_child(void) {
    /* Whatever another thread of the parent held is free here. The state itself is wiped by the kernel; without that
     * this is where the child becomes detached. */
    pthread_mutex_init(&attach_mutex, NULL);
    pthread_mutex_init(&region_mutex, NULL);
    if (vgi_state() != VGI_DETACHED)
        atomic_store(&vgi_process->state, VGI_DETACHED);
}

static void prepare_once(void) {
    static bool prepared;
    if (prepared)
        return;
    void *page = vgi_page_wiped_on_fork();
    if (page != NULL)
        __atomic_store_n(&vgi_process, page, __ATOMIC_RELEASE);
    else
        vgi_say(VGI_INFO, "this kernel cannot wipe a page on fork; children of a raw clone() are not told apart");
    pthread_atfork(NULL, NULL, after_fork_in_child);
    prepared = true;
}

/* Opens the region unless this very process has it open: a fork's child needs a lock of its own. */
static bool open_region(const struct vgi_found_limits *found, char *reason, size_t reason_size) {
    if (file.region != NULL && file.opener_pid == vgi_own_pid())
        return true;
    vgi_region_file_close(&file);
    return vgi_region_file_open(&file, vgi_region_path(found), &found->limits, reason, reason_size);
}

/* ---- which card is which: CUDA's ordinals by UUID onto the region's table, which is in NVML's order ---- */

struct uuid_list {
    int count;
    char texts[VGI_MAX_DEVICES][VG_UUID_BYTES];
};

static void format_uuid(const CUuuid *uuid, char text[VG_UUID_BYTES]) {
    static const char digits[] = "0123456789abcdef";
    char *out = text;
    memcpy(out, "GPU-", 4);
    out += 4;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *out++ = '-';
        *out++ = digits[(unsigned char)uuid->bytes[i] >> 4];
        *out++ = digits[(unsigned char)uuid->bytes[i] & 15];
    }
    *out = '\0';
}

static CUresult list_cuda(struct uuid_list *list) {
    CUresult result = VGI_CUDA(cuDeviceGetCount, &list->count);
    if (result != CUDA_SUCCESS)
        return result;
    if (list->count > VGI_MAX_DEVICES)
        list->count = VGI_MAX_DEVICES;
    for (int i = 0; i < list->count; i++) {
        CUuuid uuid;
        result = vgi_cuda.cuDeviceGetUuid_v2 != NULL ? vgi_cuda.cuDeviceGetUuid_v2(&uuid, i)
                                                     : VGI_CUDA(cuDeviceGetUuid, &uuid, i);
        if (result != CUDA_SUCCESS)
            return result;
        format_uuid(&uuid, list->texts[i]);
    }
    return CUDA_SUCCESS;
}

static void list_nvml(struct uuid_list *list) {
    unsigned count = 0;
    list->count = 0;
    if (!vgi_bind_nvml() || VGI_NVML(nvmlInit_v2) != NVML_SUCCESS)
        return;
    if (VGI_NVML(nvmlDeviceGetCount_v2, &count) == NVML_SUCCESS)
        for (unsigned i = 0; i < count && i < VG_MAX_CARDS; i++) {
            nvmlDevice_t device;
            char *text = list->texts[list->count];
            /* A lost card keeps its place, so that those after it keep theirs. */
            if (VGI_NVML(nvmlDeviceGetHandleByIndex_v2, i, &device) != NVML_SUCCESS ||
                VGI_NVML(nvmlDeviceGetUUID, device, text, VG_UUID_BYTES) != NVML_SUCCESS)
                snprintf(text, VG_UUID_BYTES, "unknown-%u", i);
            list->count++;
        }
    (void)VGI_NVML(nvmlShutdown);
}

static bool all_known(struct vg_region *region, const struct uuid_list *cuda) {
    for (int i = 0; i < cuda->count; i++)
        if (vgi_region_find_card(region, cuda->texts[i]) < 0)
            return false;
    return true;
}

/* With the region locked. False: a device has no place in the table of sixteen. */
static bool map_devices(struct vg_region *region, const struct uuid_list *cuda, const struct uuid_list *nvml) {
    memset(vgi_card_of_device, -1, sizeof vgi_card_of_device);
    for (int i = 0; i < nvml->count; i++)
        if (vgi_region_find_card(region, nvml->texts[i]) < 0)
            (void)vgi_region_add_card(region, nvml->texts[i]);
    for (int i = 0; i < cuda->count; i++) {
        int card = vgi_region_find_card(region, cuda->texts[i]);
        if (card < 0)
            card = vgi_region_add_card(region, cuda->texts[i]);
        if (card < 0)
            return false;
        vgi_card_of_device[i] = (int8_t)card;
    }
    return true;
}

/* ---- where the limits come from ---- */

/* The limits in force by UUID, as the driver told it of what CUDA shows; of other cards the region's table must do. */
static void follow_page(const struct vg_limits_page *page, struct vg_region *region, const struct uuid_list *cuda) {
    const char *uuids[VG_MAX_CARDS];
    for (unsigned card = 0; card < VG_MAX_CARDS; card++)
        uuids[card] = region != NULL && card < atomic_load(&region->device_count) ? region->uuids[card] : NULL;
    for (int i = 0; cuda != NULL && i < cuda->count; i++)
        if (vgi_card_of_device[i] >= 0)
            uuids[vgi_card_of_device[i]] = cuda->texts[i];
    vgi_limits_follow_page(page, uuids, region);
}

static void follow_limits(const struct vgi_found_limits *found, struct vg_region *region,
                          const struct uuid_list *cuda) {
    if (found->page != NULL)
        follow_page(found->page, region, cuda);
    else
        vgi_limits_follow_region(region, &found->limits);
}

/* ---- the slot ---- */

/* The lock tells it of any process that still lives under the program that took the slot, the pid of those whose
 * children keep the lock. */
static bool is_gone(void *context, unsigned slot, const struct vgi_identity *owner) {
    const uint64_t *own_namespace = context;
    if (vgi_state() == VGI_ATTACHED && slot == vgi_process->slot)
        return false; /* nobody's own lock stands in his way */
    return (owner->holds_lock && vgi_region_file_slot_is_let_go(&file, slot)) || vgi_is_gone(owner, *own_namespace);
}

struct vgi_judge vgi_judge_of_owners(uint64_t *own_namespace) {
    *own_namespace = vgi_pid_namespace();
    return (struct vgi_judge){own_namespace, is_gone};
}

static CUresult bar(const char *reason) {
    vgi_say(VGI_ERROR, "CUDA is refused: %s", reason);
    atomic_store(&vgi_process->state, VGI_BARRED);
    return CUDA_ERROR_NOT_PERMITTED;
}

/* With attach_mutex held and the region open. */
static CUresult take_slot(const struct vgi_found_limits *found, const struct uuid_list *cuda,
                          const struct uuid_list *nvml) {
    struct vgi_identity self = vgi_identify_self();
    uint64_t own_namespace;
    struct vgi_judge judge = vgi_judge_of_owners(&own_namespace);
    uint32_t cards = 0;
    if (!vgi_region_lock(LOCK_MS))
        return bar("the region stays locked by another process");
    vgi_region = file.region;
    if (found->page == NULL)
        vgi_region_adopt_limits(vgi_region, &found->limits);
    bool mapped = map_devices(vgi_region, cuda, nvml);
    if (mapped)
        follow_limits(found, vgi_region, cuda);
    int slot = mapped ? vgi_region_claim(vgi_region, &self, &judge, &cards) : -1;
    if (slot >= 0 && vgi_region_file_hold_slot(&file, (unsigned)slot))
        atomic_store(&vg_extension_of(vgi_region)->owners[slot].holds_lock, 1);
    vgi_region_unlock();
    if (!mapped)
        return bar("more than 16 cards are visible");
    if (slot < 0)
        return bar("1024 processes already use this slice");
    vgi_forget_allocations();
    vgi_forget_mappings();
    vgi_forget_contexts();
    vgi_forget_heaps();
    vgi_forget_captures();
    vgi_forget_launches();
    vgi_forget_pools();
    vgi_forget_pooled();
    vgi_forget_streams();
    vgi_forget_graphs();
    vgi_process->slot = (uint32_t)slot;
    vgi_add_up(cards);
    atomic_store_explicit(&vgi_process->state, VGI_ATTACHED, memory_order_release);
    vgi_say(VGI_INFO, "attached to %s, slot %d", vgi_region_path(found), slot);
    return CUDA_SUCCESS;
}

static CUresult told_of(enum vgi_state state) {
    switch (state) {
    case VGI_BARRED:
        return CUDA_ERROR_NOT_PERMITTED;
    case VGI_ENDED:
        return CUDA_ERROR_DEINITIALIZED;
    default:
        return CUDA_SUCCESS;
    }
}

static CUresult pass_through(enum vgi_level level, const char *why) {
    vgi_say(level, "nothing is counted: %s", why);
    atomic_store(&vgi_process->state, VGI_UNLIMITED);
    return CUDA_SUCCESS;
}

static CUresult attach_locked(const struct uuid_list *cuda) {
    static struct uuid_list nvml; /* not on the stack: threads may have little */
    char reason[384];
    struct vgi_found_limits found;
    nvml.count = 0;
    prepare_once();
    if (vgi_state() != VGI_DETACHED)
        return told_of(vgi_state());
    if (!vgi_find_limits(&found, reason, sizeof reason))
        return bar(reason);
    vgi_limits = found.limits;
    if (found.disabled)
        return pass_through(VGI_INFO, "the pod's specification keeps the library out");
    if (!open_region(&found, reason, sizeof reason)) {
        if (found.page != NULL || found.limits.any_memory || found.limits.any_cores)
            return bar(reason);
        return pass_through(VGI_WARNING, reason);
    }
    if (!all_known(file.region, cuda))
        list_nvml(&nvml);
    return take_slot(&found, cuda, &nvml);
}

/* Apart from its caller, which also calls what needs as much of the stack. */
__attribute__((noinline)) static CUresult list_and_attach(void) {
    struct uuid_list cuda;
    CUresult result = list_cuda(&cuda); /* the driver's own answer where CUDA is not initialised */
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&attach_mutex);
    result = attach_locked(&cuda);
    pthread_mutex_unlock(&attach_mutex);
    return result;
}

CUresult vgi_attach(void) {
    enum vgi_state state = vgi_state();
    if (state != VGI_DETACHED)
        return told_of(state);
    int before = vgi_hold_off_cancel();
    CUresult result = vgi_limits_are_valid() ? list_and_attach() : CUDA_ERROR_NOT_PERMITTED;
    vgi_let_cancel(before);
    return result;
}

static struct vg_region *look(void) {
    char reason[384];
    struct vgi_found_limits found;
    if (!vgi_find_limits(&found, reason, sizeof reason) || found.disabled)
        return NULL;
    pthread_mutex_lock(&attach_mutex);
    struct vg_region *region = open_region(&found, reason, sizeof reason) ? file.region : NULL;
    if (region == NULL)
        vgi_say(VGI_INFO, "%s", reason);
    if (vgi_state() != VGI_ATTACHED) /* another thread may have come first */
        follow_limits(&found, region, NULL);
    pthread_mutex_unlock(&attach_mutex);
    return region;
}

struct vg_region *vgi_look(void) {
    if (vgi_state() == VGI_ATTACHED)
        return vgi_region;
    int before = vgi_hold_off_cancel();
    struct vg_region *region = look();
    vgi_let_cancel(before);
    return region;
}

/* Threads may still run while exit() is under way: from here on nothing is granted. A fork's child that never used
 * CUDA is detached and leaves its parent's slot alone. */
__attribute__((destructor)) static void leave_at_exit(void) {
    uint32_t attached = VGI_ATTACHED;
    if (file.opener_pid == vgi_own_pid() &&
        atomic_compare_exchange_strong(&vgi_process->state, &attached, (uint32_t)VGI_ENDED))
        vgi_leave();
}
