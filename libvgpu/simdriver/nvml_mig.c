/* MIG: the mode, GPU instances, and the one compute instance that each may have, which is all of it.
 *
 * Handles are slots of a card: what they stand for is looked up in the books at every call, so that all processes see
 * the same, and a handle whose instance is gone is answered NVML_ERROR_NOT_FOUND. */
#include <stdio.h>
#include <string.h>

#include "nvml.h"

#define COMPUTE_INSTANCE_ID 0u

static bool mode_of(nvmlDevice_t device) {
    unsigned mode = sim_nvml_state(device)->mig_mode;
    return mode == SIM_MIG_AS_DESCRIBED ? sim_nvml_card(device)->mig_enabled : mode == SIM_MIG_ON;
}

bool sim_nvml_has_mig_on(nvmlDevice_t device) {
    return sim_nvml_card(device)->mig_capable && mode_of(device);
}

/* Checks the handle of a card, and that it has MIG. */
static nvmlReturn_t capable(nvmlDevice_t device) {
    nvmlReturn_t result = sim_nvml_device(device);
    return result == NVML_SUCCESS && !sim_nvml_card(device)->mig_capable ? NVML_ERROR_NOT_SUPPORTED : result;
}

/* Checks it, and that the mode is on. */
static nvmlReturn_t enabled(nvmlDevice_t device) {
    nvmlReturn_t result = capable(device);
    return result == NVML_SUCCESS && !mode_of(device) ? NVML_ERROR_NOT_SUPPORTED : result;
}

static nvmlDevice_t parent_of(struct sim_mig_slot at) {
    return &sim_nvml.devices[at.device];
}

static struct sim_gpu_instance *instance_at(struct sim_mig_slot at) {
    return &sim_nvml_state(parent_of(at))->instances[at.slot];
}

static const struct sim_mig_profile *profile_of(struct sim_mig_slot at) {
    return &sim_nvml_card(parent_of(at))->mig_profiles[instance_at(at)->profile];
}

static unsigned device_index(nvmlDevice_t device) {
    return (unsigned)(device - sim_nvml.devices);
}

/* With the books locked where it matters. */
static nvmlReturn_t living(struct sim_mig_slot at) {
    nvmlReturn_t result = sim_nvml_device(parent_of(at));
    return result == NVML_SUCCESS && !instance_at(at)->in_use ? NVML_ERROR_NOT_FOUND : result;
}

static nvmlReturn_t gpu_instance(nvmlGpuInstance_t handle, struct sim_mig_slot *at) {
    nvmlReturn_t result = sim_nvml_ready();
    if (result != NVML_SUCCESS)
        return result;
    if (handle < &sim_nvml.gpu_instances[0][0] ||
        handle > &sim_nvml.gpu_instances[SIM_MAX_CARDS - 1][SIM_MAX_INSTANCES - 1])
        return NVML_ERROR_INVALID_ARGUMENT;
    *at = handle->at;
    return living(*at);
}

static nvmlReturn_t compute_instance(nvmlComputeInstance_t handle, struct sim_mig_slot *at) {
    nvmlReturn_t result = sim_nvml_ready();
    if (result != NVML_SUCCESS)
        return result;
    if (handle < &sim_nvml.compute_instances[0][0] ||
        handle > &sim_nvml.compute_instances[SIM_MAX_CARDS - 1][SIM_MAX_INSTANCES - 1])
        return NVML_ERROR_INVALID_ARGUMENT;
    *at = handle->at;
    result = living(*at);
    return result == NVML_SUCCESS && !instance_at(*at)->has_compute ? NVML_ERROR_NOT_FOUND : result;
}

static nvmlGpuInstance_t gpu_handle(struct sim_mig_slot at) {
    nvmlGpuInstance_t handle = &sim_nvml.gpu_instances[at.device][at.slot];
    handle->at = at;
    return handle;
}

static nvmlComputeInstance_t compute_handle(struct sim_mig_slot at) {
    nvmlComputeInstance_t handle = &sim_nvml.compute_instances[at.device][at.slot];
    handle->at = at;
    return handle;
}

/* ---- the mode ---------------------------------------------------------------------------------------------------- */

SIM_API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    nvmlReturn_t result = capable(device);
    if (result == NVML_SUCCESS && (current == NULL || pending == NULL))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *current = *pending = mode_of(device);
    return result;
}

/* A card in use keeps its mode. */
SIM_API nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation) {
    nvmlReturn_t result = capable(device);
    if (result == NVML_SUCCESS && (activation == NULL || mode > 1))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    struct sim_card_state *state = sim_nvml_state(device);
    sim_books_lock(sim_nvml.books);
    sim_books_reclaim(sim_nvml.books);
    bool in_use = false;
    for (unsigned i = 0; i < SIM_MAX_INSTANCES; i++)
        in_use = in_use || state->instances[i].in_use;
    for (unsigned i = 0; i < SIM_MAX_PROCESSES; i++)
        in_use = in_use ||
                 (sim_nvml.books->processes[i].in_use && sim_nvml.books->processes[i].cards[device->card].contexts > 0);
    if (mode_of(device) != (mode == 1) && in_use)
        result = NVML_ERROR_IN_USE;
    else
        state->mig_mode = mode == 1 ? SIM_MIG_ON : SIM_MIG_OFF;
    sim_books_unlock(sim_nvml.books);
    *activation = result;
    return result;
}

/* ---- what can be made -------------------------------------------------------------------------------------------- */

SIM_API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                                         nvmlGpuInstanceProfileInfo_t *info) {
    nvmlReturn_t result = capable(device);
    if (result == NVML_SUCCESS && (info == NULL || profile >= SIM_MIG_KINDS))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    const struct sim_card *card = sim_nvml_card(device);
    for (unsigned i = 0; i < card->mig_profile_count; i++) {
        const struct sim_mig_profile *found = &card->mig_profiles[i];
        if (found->kind != profile)
            continue;
        *info = (nvmlGpuInstanceProfileInfo_t){.id = found->id,
                                               .sliceCount = found->slices,
                                               .instanceCount = found->instances,
                                               .multiprocessorCount = found->sm_count,
                                               .copyEngineCount = found->slices,
                                               .memorySizeMB = found->memory_mib};
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_SUPPORTED;
}

static const struct sim_mig_profile *by_id(nvmlDevice_t device, unsigned id, unsigned *index) {
    const struct sim_card *card = sim_nvml_card(device);
    for (*index = 0; *index < card->mig_profile_count; (*index)++)
        if (card->mig_profiles[*index].id == id)
            return &card->mig_profiles[*index];
    return NULL;
}

SIM_API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int profileId,
                                                                   nvmlGpuInstancePlacement_t *placements,
                                                                   unsigned int *count) {
    unsigned index = 0;
    nvmlReturn_t result = capable(device);
    if (result != NVML_SUCCESS)
        return result;
    const struct sim_mig_profile *profile = by_id(device, profileId, &index);
    if (profile == NULL || count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (placements != NULL && *count < profile->start_count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; placements != NULL && i < profile->start_count; i++)
        placements[i] = (nvmlGpuInstancePlacement_t){.start = profile->starts[i], .size = profile->size};
    *count = profile->start_count;
    return NVML_SUCCESS;
}

/* ---- GPU instances ----------------------------------------------------------------------------------------------- */

static bool is_possible(const struct sim_mig_profile *profile, const nvmlGpuInstancePlacement_t *placement) {
    for (unsigned i = 0; i < profile->start_count; i++)
        if (profile->starts[i] == placement->start && profile->size == placement->size)
            return true;
    return false;
}

/* With the books locked: a slot for an instance there, or NULL where the card has no room. */
static struct sim_gpu_instance *room_for(struct sim_card_state *state, unsigned profile,
                                         const struct sim_mig_profile *kind,
                                         const nvmlGpuInstancePlacement_t *placement) {
    struct sim_gpu_instance *room = NULL;
    unsigned of_kind = 0;
    for (unsigned i = 0; i < SIM_MAX_INSTANCES; i++) {
        struct sim_gpu_instance *other = &state->instances[i];
        if (!other->in_use) {
            room = room == NULL ? other : room;
            continue;
        }
        of_kind += other->profile == profile;
        if (placement->start < other->start + other->size && other->start < placement->start + placement->size)
            return NULL;
    }
    return of_kind < kind->instances ? room : NULL;
}

SIM_API nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profileId,
                                                              const nvmlGpuInstancePlacement_t *placement,
                                                              nvmlGpuInstance_t *gpuInstance) {
    unsigned index = 0;
    nvmlReturn_t result = enabled(device);
    if (result != NVML_SUCCESS)
        return result;
    const struct sim_mig_profile *profile = by_id(device, profileId, &index);
    if (profile == NULL || placement == NULL || gpuInstance == NULL || !is_possible(profile, placement))
        return NVML_ERROR_INVALID_ARGUMENT;
    struct sim_card_state *state = sim_nvml_state(device);
    sim_books_lock(sim_nvml.books);
    struct sim_gpu_instance *room = room_for(state, index, profile, placement);
    if (room != NULL) {
        unsigned slot = (unsigned)(room - state->instances);
        *room = (struct sim_gpu_instance){.in_use = 1,
                                          .id = slot + 1,
                                          .profile = index,
                                          .start = placement->start,
                                          .size = placement->size,
                                          .number = ++state->instances_made};
        *gpuInstance = gpu_handle((struct sim_mig_slot){.device = device_index(device), .slot = slot});
    }
    sim_books_unlock(sim_nvml.books);
    return room != NULL ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_RESOURCES;
}

SIM_API nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profileId,
                                               nvmlGpuInstance_t *gpuInstances, unsigned int *count) {
    unsigned index = 0;
    nvmlReturn_t result = enabled(device);
    if (result != NVML_SUCCESS)
        return result;
    if (by_id(device, profileId, &index) == NULL || gpuInstances == NULL || count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    sim_books_lock(sim_nvml.books);
    for (unsigned slot = 0; slot < SIM_MAX_INSTANCES; slot++) {
        const struct sim_gpu_instance *instance = &sim_nvml_state(device)->instances[slot];
        if (instance->in_use && instance->profile == index)
            gpuInstances[(*count)++] = gpu_handle((struct sim_mig_slot){.device = device_index(device), .slot = slot});
    }
    sim_books_unlock(sim_nvml.books);
    return NVML_SUCCESS;
}

SIM_API nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id,
                                                  nvmlGpuInstance_t *gpuInstance) {
    nvmlReturn_t result = enabled(device);
    if (result != NVML_SUCCESS)
        return result;
    if (gpuInstance == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    struct sim_mig_slot at = {.device = device_index(device), .slot = id - 1};
    if (id == 0 || id > SIM_MAX_INSTANCES || !instance_at(at)->in_use)
        return NVML_ERROR_NOT_FOUND;
    *gpuInstance = gpu_handle(at);
    return NVML_SUCCESS;
}

SIM_API nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gpuInstance, nvmlGpuInstanceInfo_t *info) {
    struct sim_mig_slot at;
    nvmlReturn_t result = gpu_instance(gpuInstance, &at);
    if (result == NVML_SUCCESS && info == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    const struct sim_gpu_instance *instance = instance_at(at);
    *info = (nvmlGpuInstanceInfo_t){.device = parent_of(at),
                                    .id = instance->id,
                                    .profileId = profile_of(at)->id,
                                    .placement = {.start = instance->start, .size = instance->size}};
    return NVML_SUCCESS;
}

SIM_API nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t gpuInstance) {
    struct sim_mig_slot at;
    nvmlReturn_t result = gpu_instance(gpuInstance, &at);
    if (result != NVML_SUCCESS)
        return result;
    sim_books_lock(sim_nvml.books);
    if (instance_at(at)->has_compute)
        result = NVML_ERROR_IN_USE;
    else
        memset(instance_at(at), 0, sizeof *instance_at(at));
    sim_books_unlock(sim_nvml.books);
    return result;
}

/* ---- compute instances ------------------------------------------------------------------------------------------- */

/* The kind of a compute instance that is all of a GPU instance of so many slices. */
static unsigned compute_kind(unsigned slices) {
    static const unsigned kinds[] = {0, 0, 1, 2, 3, 0, 6, 4, 5}; /* NVML_COMPUTE_INSTANCE_PROFILE_* */
    return kinds[slices];
}

SIM_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t gpuInstance, unsigned int profile,
                                                                  unsigned int engineProfile,
                                                                  nvmlComputeInstanceProfileInfo_t *info) {
    struct sim_mig_slot at;
    nvmlReturn_t result = gpu_instance(gpuInstance, &at);
    if (result == NVML_SUCCESS && (info == NULL || engineProfile != 0))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    const struct sim_mig_profile *kind = profile_of(at);
    if (profile != compute_kind(kind->slices))
        return NVML_ERROR_NOT_SUPPORTED;
    *info = (nvmlComputeInstanceProfileInfo_t){
        .id = profile, .sliceCount = kind->slices, .instanceCount = 1, .multiprocessorCount = kind->sm_count};
    return NVML_SUCCESS;
}

SIM_API nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t gpuInstance, unsigned int profileId,
                                                          nvmlComputeInstance_t *computeInstance) {
    struct sim_mig_slot at;
    nvmlReturn_t result = gpu_instance(gpuInstance, &at);
    if (result == NVML_SUCCESS && (computeInstance == NULL || profileId != compute_kind(profile_of(at)->slices)))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    sim_books_lock(sim_nvml.books);
    if (instance_at(at)->has_compute)
        result = NVML_ERROR_INSUFFICIENT_RESOURCES;
    instance_at(at)->has_compute = 1;
    sim_books_unlock(sim_nvml.books);
    if (result == NVML_SUCCESS)
        *computeInstance = compute_handle(at);
    return result;
}

SIM_API nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t gpuInstance, unsigned int profileId,
                                                        nvmlComputeInstance_t *computeInstances, unsigned int *count) {
    struct sim_mig_slot at;
    nvmlReturn_t result = gpu_instance(gpuInstance, &at);
    if (result == NVML_SUCCESS && (computeInstances == NULL || count == NULL))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    *count = instance_at(at)->has_compute && profileId == compute_kind(profile_of(at)->slices);
    if (*count > 0)
        computeInstances[0] = compute_handle(at);
    return NVML_SUCCESS;
}

SIM_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gpuInstance, unsigned int id,
                                                           nvmlComputeInstance_t *computeInstance) {
    struct sim_mig_slot at;
    nvmlReturn_t result = gpu_instance(gpuInstance, &at);
    if (result == NVML_SUCCESS && computeInstance == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    if (id != COMPUTE_INSTANCE_ID || !instance_at(at)->has_compute)
        return NVML_ERROR_NOT_FOUND;
    *computeInstance = compute_handle(at);
    return NVML_SUCCESS;
}

SIM_API nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t computeInstance,
                                                   nvmlComputeInstanceInfo_t *info) {
    struct sim_mig_slot at;
    nvmlReturn_t result = compute_instance(computeInstance, &at);
    if (result == NVML_SUCCESS && info == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    unsigned slices = profile_of(at)->slices;
    *info = (nvmlComputeInstanceInfo_t){.device = parent_of(at),
                                        .gpuInstance = gpu_handle(at),
                                        .id = COMPUTE_INSTANCE_ID,
                                        .profileId = compute_kind(slices),
                                        .placement = {.start = 0, .size = slices}};
    return NVML_SUCCESS;
}

SIM_API nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t computeInstance) {
    struct sim_mig_slot at;
    nvmlReturn_t result = compute_instance(computeInstance, &at);
    if (result != NVML_SUCCESS)
        return result;
    sim_books_lock(sim_nvml.books);
    if (instance_at(at)->held)
        result = NVML_ERROR_IN_USE;
    else
        instance_at(at)->has_compute = 0;
    sim_books_unlock(sim_nvml.books);
    return result;
}

/* ---- MIG devices ------------------------------------------------------------------------------------------------- */

bool sim_nvml_is_mig(nvmlDevice_t device) {
    return device >= &sim_nvml.mig_devices[0][0] &&
           device <= &sim_nvml.mig_devices[SIM_MAX_CARDS - 1][SIM_MAX_INSTANCES - 1];
}

static struct sim_mig_slot slot_of(nvmlDevice_t device) {
    unsigned number = (unsigned)(device - &sim_nvml.mig_devices[0][0]);
    return (struct sim_mig_slot){.device = number / SIM_MAX_INSTANCES, .slot = number % SIM_MAX_INSTANCES};
}

/* Checks that the handle stands for a MIG device that there is. */
static nvmlReturn_t mig_device(nvmlDevice_t device, struct sim_mig_slot *at) {
    nvmlReturn_t result = sim_nvml_ready();
    if (result != NVML_SUCCESS)
        return result;
    if (!sim_nvml_is_mig(device))
        return NVML_ERROR_INVALID_ARGUMENT;
    *at = slot_of(device);
    result = living(*at);
    return result == NVML_SUCCESS && !instance_at(*at)->has_compute ? NVML_ERROR_NOT_FOUND : result;
}

nvmlReturn_t sim_nvml_mig_uuid(nvmlDevice_t device, char out[SIM_TEXT]) {
    struct sim_mig_slot at;
    nvmlReturn_t result = mig_device(device, &at);
    if (result == NVML_SUCCESS)
        snprintf(out, SIM_TEXT, "MIG-%08x-0000-5000-8000-%012x", parent_of(at)->card + 1, instance_at(at)->number);
    return result;
}

nvmlReturn_t sim_nvml_mig_memory(nvmlDevice_t device, nvmlMemory_t *memory) {
    struct sim_mig_slot at;
    nvmlReturn_t result = mig_device(device, &at);
    if (result == NVML_SUCCESS && memory == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        uint64_t total = profile_of(at)->memory_mib << 20;
        *memory = (nvmlMemory_t){.total = total, .free = total, .used = 0};
    }
    return result;
}

nvmlReturn_t sim_nvml_mig_name(nvmlDevice_t device, char out[SIM_TEXT]) {
    struct sim_mig_slot at;
    nvmlReturn_t result = mig_device(device, &at);
    if (result == NVML_SUCCESS)
        snprintf(out, SIM_TEXT, "%.64s MIG %ug.%ugb", sim_nvml_card(parent_of(at))->name, profile_of(at)->slices,
                 (unsigned)((profile_of(at)->memory_mib + 512) / 1024));
    return result;
}

nvmlReturn_t sim_nvml_find_mig(const char *uuid, nvmlDevice_t *device) {
    nvmlReturn_t result = sim_nvml_ready();
    if (result != NVML_SUCCESS)
        return result;
    for (unsigned card = 0; card < sim_nvml.device_count; card++)
        for (unsigned slot = 0; slot < SIM_MAX_INSTANCES; slot++) {
            char text[SIM_TEXT];
            if (sim_nvml_mig_uuid(&sim_nvml.mig_devices[card][slot], text) != NVML_SUCCESS || strcmp(text, uuid) != 0)
                continue;
            *device = &sim_nvml.mig_devices[card][slot];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

SIM_API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
    nvmlReturn_t result = sim_nvml_device(device);
    if (result == NVML_SUCCESS && count == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    *count = 0;
    const struct sim_card *card = sim_nvml_card(device);
    for (unsigned i = 0; i < card->mig_profile_count; i++)
        *count = card->mig_profiles[i].instances > *count ? card->mig_profiles[i].instances : *count;
    return NVML_SUCCESS;
}

SIM_API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *isMig) {
    nvmlReturn_t result = sim_nvml_is_mig(device) ? sim_nvml_ready() : sim_nvml_device(device);
    if (result == NVML_SUCCESS && isMig == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *isMig = sim_nvml_is_mig(device);
    return result;
}

SIM_API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                         nvmlDevice_t *migDevice) {
    nvmlReturn_t result = enabled(device);
    if (result != NVML_SUCCESS)
        return result;
    if (migDevice == NULL || index >= SIM_MAX_INSTANCES)
        return NVML_ERROR_INVALID_ARGUMENT;
    struct sim_mig_slot at;
    nvmlDevice_t found = &sim_nvml.mig_devices[device_index(device)][index];
    result = mig_device(found, &at);
    if (result == NVML_SUCCESS)
        *migDevice = found;
    return result;
}

SIM_API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t migDevice, nvmlDevice_t *device) {
    struct sim_mig_slot at;
    nvmlReturn_t result = mig_device(migDevice, &at);
    if (result == NVML_SUCCESS && device == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *device = parent_of(at);
    return result;
}

SIM_API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id) {
    struct sim_mig_slot at;
    nvmlReturn_t result = mig_device(device, &at);
    if (result == NVML_SUCCESS && id == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *id = instance_at(at)->id;
    return result;
}

SIM_API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id) {
    struct sim_mig_slot at;
    nvmlReturn_t result = mig_device(device, &at);
    if (result == NVML_SUCCESS && id == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *id = COMPUTE_INSTANCE_ID;
    return result;
}
