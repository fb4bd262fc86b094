/* libvgpu-sniff.so: what the loader calls (rtld-audit(7)) in a process that vgpu-sniff watches. It notes which of the
 * driver's symbols are reached, by whom and how, and changes nothing; cuGetProcAddress and cuGetExportTable, which the
 * loader knows nothing of, are called through functions of ours. */
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "log.h"
#include "vgpu/abi/cuda_fn.h"

#define AUDIT __attribute__((visibility("default")))

/* ---- noting ---- */

static struct sniff_log *sniffed;

static void note(struct sniff_event event) {
    uint32_t at = atomic_fetch_add(&sniffed->events, 1);
    if (at >= SNIFF_EVENTS)
        return; /* the tool says how many */
    struct sniff_event *place = &sniffed->event[at];
    event.written = 0;
    *place = event;
    atomic_store_explicit(&place->written, 1, memory_order_release);
}

static struct sniff_event event_of(enum sniff_how how, const char *name, const char *asked_by) {
    struct sniff_event event = {.how = (uint8_t)how};
    snprintf(event.name, sizeof event.name, "%s", name);
    snprintf(event.asked_by, sizeof event.asked_by, "%s", asked_by);
    return event;
}

static struct sniff_log *open_log(void) {
    const char *path = getenv(SNIFF_LOG_VARIABLE);
    int file = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return NULL;
    void *mapped = mmap(NULL, sizeof(struct sniff_log), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return mapped == MAP_FAILED ? NULL : mapped;
}

AUDIT unsigned int la_version(unsigned int version) {
    sniffed = open_log();
    if (sniffed == NULL)
        return 0; /* the loader then leaves us out */
    atomic_fetch_add(&sniffed->programs, 1);
    return version < LAV_CURRENT ? version : LAV_CURRENT;
}

/* ---- objects ---- */

enum kind { OTHER, GLIBC, DRIVER, LIBVGPU, KINDS };

struct object {
    enum kind kind;
    char name[48];
};

#define MAX_OBJECTS 4096
static struct object objects[MAX_OBJECTS]; /* the last place stands for all that are too many */
static _Atomic uint32_t object_count;

static bool begins_with(const char *text, const char *beginning) {
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

static enum kind kind_of(const char *name) {
    if (begins_with(name, "libcuda.so") || begins_with(name, "libnvidia-ml.so"))
        return DRIVER;
    if (begins_with(name, "libvgpu.so"))
        return LIBVGPU;
    return begins_with(name, "libc.so.") || begins_with(name, "libdl.so.") ? GLIBC : OTHER;
}

static bool is_driver_name(const char *name) {
    bool cuda = name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
    return cuda || (begins_with(name, "nvml") && name[4] >= 'A' && name[4] <= 'Z');
}

/* glibc relocates addresses of the dynamic section in place, but not yet for every object when it is shown to us. */
static const void *at(const struct link_map *map, ElfW(Addr) address) {
    return (const void *)(address < map->l_addr ? map->l_addr + address : address);
}

/* Names the object leaves to others. They precede all that its hash table holds. */
static void note_linked(const struct link_map *map, const struct object *object) {
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *hash = NULL;
    bool needs_driver = false;
    for (const ElfW(Dyn) *entry = map->l_ld; entry != NULL && entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB)
            symbols = at(map, entry->d_un.d_ptr);
        else if (entry->d_tag == DT_STRTAB)
            strings = at(map, entry->d_un.d_ptr);
        else if (entry->d_tag == DT_GNU_HASH)
            hash = at(map, entry->d_un.d_ptr);
    }
    if (symbols == NULL || strings == NULL || hash == NULL)
        return;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++)
        needs_driver = needs_driver || (entry->d_tag == DT_NEEDED && kind_of(strings + entry->d_un.d_val) == DRIVER);
    for (uint32_t i = 1; i < hash[1]; i++)
        if (symbols[i].st_shndx == SHN_UNDEF && is_driver_name(strings + symbols[i].st_name)) {
            struct sniff_event event = event_of(SNIFF_LINKED, strings + symbols[i].st_name, object->name);
            event.needs_driver = needs_driver;
            note(event);
        }
}

AUDIT unsigned int la_objopen(struct link_map *map, Lmid_t lmid, uintptr_t *cookie) {
    char program[512] = "program";
    uint32_t index = atomic_fetch_add(&object_count, 1);
    const char *path = map->l_name;
    (void)lmid;
    if (path[0] == '\0') {
        ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
        program[length > 0 ? length : 7] = '\0';
        path = program;
    }
    struct object *object = &objects[index < MAX_OBJECTS ? index : MAX_OBJECTS - 1];
    const char *slash = strrchr(path, '/');
    snprintf(object->name, sizeof object->name, "%s", slash == NULL ? path : slash + 1);
    object->kind = kind_of(object->name);
    *cookie = (uintptr_t)object;
    if (object->kind == OTHER)
        note_linked(map, object);
    return object->kind == OTHER ? LA_FLG_BINDFROM : LA_FLG_BINDFROM | LA_FLG_BINDTO;
}

/* ---- the driver's own ways: functions that stand before its own, one set for each library they may lead to ---- */

static PFN_cuGetProcAddress_v11030 real_v1[KINDS];
static PFN_cuGetProcAddress_v12000 real_v2[KINDS], real_v2_ptsz[KINDS];
typedef CUresult (*get_export_table)(const void **table, const CUuuid *id);
static get_export_table real_export_table[KINDS];

static uintptr_t stand_before(const char *name, uintptr_t address, enum kind kind);

/* What asks for the driver's own ways gets ours of the newer kind, too. */
static void note_question(const char *name, void **found, int version, cuuint64_t flags, CUresult result,
                          enum kind kind) {
    struct sniff_event event = event_of(SNIFF_GET_PROC_ADDRESS, name == NULL ? "" : name, "");
    event.version = version;
    event.flags = (uint16_t)flags;
    event.result = (int32_t)result;
    note(event);
    if (name == NULL || result != CUDA_SUCCESS || found == NULL || *found == NULL)
        return;
    if (strcmp(name, "cuGetProcAddress") == 0)
        *found = (void *)stand_before(version >= 12000 ? "cuGetProcAddress_v2" : name, (uintptr_t)*found, kind);
    else if (strcmp(name, "cuGetExportTable") == 0)
        *found = (void *)stand_before(name, (uintptr_t)*found, kind);
}

static void note_table(const CUuuid *id) {
    char text[40] = "";
    for (int i = 0, used = 0; id != NULL && i < 16; i++)
        used += snprintf(text + used, sizeof text - (size_t)used,
                         i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", (unsigned char)id->bytes[i]);
    note(event_of(SNIFF_EXPORT_TABLE, text, ""));
}

#define FUNCTIONS(kind)                                                                                                \
    static CUresult ask_v1_##kind(const char *name, void **found, int version, cuuint64_t flags) {                     \
        CUresult result = real_v1[kind](name, found, version, flags);                                                  \
        note_question(name, found, version, flags, result, kind);                                                      \
        return result;                                                                                                 \
    }                                                                                                                  \
    static CUresult ask_v2_##kind(const char *name, void **found, int version, cuuint64_t flags,                       \
                                  CUdriverProcAddressQueryResult *status) {                                            \
        CUresult result = real_v2[kind](name, found, version, flags, status);                                          \
        note_question(name, found, version, flags, result, kind);                                                      \
        return result;                                                                                                 \
    }                                                                                                                  \
    static CUresult ask_v2_ptsz_##kind(const char *name, void **found, int version, cuuint64_t flags,                  \
                                       CUdriverProcAddressQueryResult *status) {                                       \
        CUresult result = real_v2_ptsz[kind](name, found, version, flags, status);                                     \
        note_question(name, found, version, (flags & 3) == 0 ? flags | 2 : flags, result, kind);                       \
        return result;                                                                                                 \
    }                                                                                                                  \
    static CUresult export_table_##kind(const void **table, const CUuuid *id) {                                        \
        note_table(id);                                                                                                \
        return real_export_table[kind](table, id);                                                                     \
    }
FUNCTIONS(DRIVER)
FUNCTIONS(LIBVGPU)

static uintptr_t stand_before(const char *name, uintptr_t address, enum kind kind) {
#define STAND_BEFORE(symbol, real, ours)                                                                               \
    if (strcmp(name, symbol) == 0) {                                                                                   \
        if (address != (uintptr_t)ours##_DRIVER && address != (uintptr_t)ours##_LIBVGPU)                               \
            memcpy(&real[kind], &address, sizeof address);                                                             \
        else                                                                                                           \
            return address;                                                                                            \
        return kind == DRIVER ? (uintptr_t)ours##_DRIVER : (uintptr_t)ours##_LIBVGPU;                                  \
    }
    STAND_BEFORE("cuGetProcAddress", real_v1, ask_v1)
    STAND_BEFORE("cuGetProcAddress_v2", real_v2, ask_v2)
    STAND_BEFORE("cuGetProcAddress_v2_ptsz", real_v2_ptsz, ask_v2_ptsz)
    STAND_BEFORE("cuGetExportTable", real_export_table, export_table)
#undef STAND_BEFORE
    return address;
}

/* ---- dlsym and dlvsym: the loader shows both as one; which it is, is noted before and after by a jump ---- */

__attribute__((visibility("hidden"), used)) void *sniff_real_dlvsym;
__attribute__((visibility("hidden"), used)) void sniff_note_dlvsym(void *handle, const char *name);

static _Thread_local uint32_t asked_with_version; /* hash of the name */

static uint32_t hash_name(const char *name) {
    uint32_t hash = 2166136261u;
    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return hash | 1;
}

void sniff_note_dlvsym(void *handle, const char *name) {
    (void)handle;
    asked_with_version = name == NULL ? 0 : hash_name(name);
}

extern void sniff_dlvsym(void);
#if defined(__x86_64__)
__asm__(".text\n"
        "sniff_dlvsym:\n"
        "    endbr64\n"
        "    pushq %rdi\n"
        "    pushq %rsi\n"
        "    pushq %rdx\n"
        "    call sniff_note_dlvsym\n"
        "    popq %rdx\n"
        "    popq %rsi\n"
        "    popq %rdi\n"
        "    jmp *sniff_real_dlvsym(%rip)\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        "sniff_dlvsym:\n"
        "    hint #34\n"
        "    stp x29, x30, [sp, #-48]!\n"
        "    stp x0, x1, [sp, #16]\n"
        "    str x2, [sp, #32]\n"
        "    bl sniff_note_dlvsym\n"
        "    ldr x2, [sp, #32]\n"
        "    ldp x0, x1, [sp, #16]\n"
        "    ldp x29, x30, [sp], #48\n"
        "    adrp x16, sniff_real_dlvsym\n"
        "    ldr x16, [x16, :lo12:sniff_real_dlvsym]\n"
        "    br x16\n");
#else
#    error "the jump to dlvsym is written for x86_64 and aarch64"
#endif

AUDIT uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned int index, uintptr_t *asker, uintptr_t *definer,
                             unsigned int *flags, const char *name) {
    const struct object *from = (const struct object *)*asker, *in = (const struct object *)*definer;
    (void)index;
    if (in->kind == GLIBC) {
        if (from->kind != OTHER || (*flags & LA_SYMB_DLSYM) != 0 || strcmp(name, "dlvsym") != 0)
            return symbol->st_value;
        sniff_real_dlvsym = (void *)symbol->st_value;
        return (uintptr_t)sniff_dlvsym;
    }
    if (from->kind == DRIVER || (in->kind != DRIVER && in->kind != LIBVGPU) || !is_driver_name(name))
        return symbol->st_value;
    if ((*flags & LA_SYMB_DLSYM) != 0) {
        bool with_version = asked_with_version == hash_name(name);
        note(event_of(with_version ? SNIFF_DLVSYM : SNIFF_DLSYM, name, from->name));
        asked_with_version = 0;
    }
    return stand_before(name, symbol->st_value, in->kind);
}
