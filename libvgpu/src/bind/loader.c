#include "loader.h"

#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

void *(*vgi_real_dlsym)(void *handle, const char *name);
void *(*vgi_real_dlvsym)(void *handle, const char *name, const char *version);

static void *no_dlsym(void *handle, const char *name) {
    (void)handle, (void)name;
    return NULL;
}

static void *no_dlvsym(void *handle, const char *name, const char *version) {
    (void)handle, (void)name, (void)version;
    return NULL;
}

/* What a loaded object's dynamic section leads to. */
struct object {
    const ElfW(Sym) * symbols;
    const char *strings;
    const uint32_t *hash;     /* DT_GNU_HASH */
    const uint16_t *versions; /* NULL where the object has none */
    uintptr_t base;
    const char *name; /* its soname */
};

/* glibc relocates these addresses in place; the kernel's vDSO, and other loaders, leave them relative. */
static const void *at(uintptr_t base, ElfW(Addr) address) {
    return (const void *)(address < base ? base + address : address);
}

static bool open_object(const struct dl_phdr_info *info, struct object *object) {
    const ElfW(Dyn) *entry = NULL;
    ElfW(Addr) soname = 0;
    *object = (struct object){.base = info->dlpi_addr, .name = ""};
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            entry = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    for (; entry != NULL && entry->d_tag != DT_NULL; entry++)
        switch (entry->d_tag) {
        case DT_SYMTAB:
            object->symbols = at(object->base, entry->d_un.d_ptr);
            break;
        case DT_STRTAB:
            object->strings = at(object->base, entry->d_un.d_ptr);
            break;
        case DT_GNU_HASH:
            object->hash = at(object->base, entry->d_un.d_ptr);
            break;
        case DT_VERSYM:
            object->versions = at(object->base, entry->d_un.d_ptr);
            break;
        case DT_SONAME:
            soname = entry->d_un.d_val;
            break;
        default:
            break;
        }
    if (object->symbols == NULL || object->strings == NULL || object->hash == NULL)
        return false;
    object->name = object->strings + soname;
    return true;
}

static uint32_t gnu_hash(const char *name) {
    uint32_t hash = 5381;
    for (; *name != '\0'; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

/* The function of that name; of several versions the default one. */
static void *find_function(const struct object *object, const char *name) {
    uint32_t wanted = gnu_hash(name), buckets = object->hash[0], first = object->hash[1];
    const uint32_t *bucket = object->hash + 4 + object->hash[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chain = bucket + buckets;
    void *found = NULL;
    if (buckets == 0)
        return NULL;
    for (uint32_t i = bucket[wanted % buckets]; i >= first; i++) {
        const ElfW(Sym) *symbol = &object->symbols[i];
        bool old_version = object->versions != NULL && (object->versions[i] & 0x8000) != 0;
        if ((chain[i - first] | 1) == (wanted | 1) && symbol->st_shndx != SHN_UNDEF &&
            (symbol->st_info & 15) == STT_FUNC && strcmp(object->strings + symbol->st_name, name) == 0 &&
            (found == NULL || !old_version))
            found = (void *)(object->base + symbol->st_value);
        if ((chain[i - first] & 1) != 0)
            break;
    }
    return found;
}

struct search {
    void *dlsym;
    void *dlvsym;
    bool in_any_object;
};

static bool is_glibc(const char *soname) {
    return strcmp(soname, "libc.so.6") == 0 || strcmp(soname, "libdl.so.2") == 0;
}

static int visit(struct dl_phdr_info *info, size_t size, void *context) {
    const uintptr_t own = (uintptr_t)&vgi_real_dlsym;
    struct search *search = context;
    struct object object;
    (void)size;
    if (!open_object(info, &object) || (!search->in_any_object && !is_glibc(object.name)))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) /* not ourselves */
        if (info->dlpi_phdr[i].p_type == PT_LOAD &&
            own - object.base - info->dlpi_phdr[i].p_vaddr < info->dlpi_phdr[i].p_memsz)
            return 0;
    if (search->dlsym == NULL)
        search->dlsym = find_function(&object, "dlsym");
    if (search->dlvsym == NULL)
        search->dlvsym = find_function(&object, "dlvsym");
    return search->dlsym != NULL && search->dlvsym != NULL;
}

__attribute__((constructor)) void vgi_find_loader(void) {
    static int found;
    if (__builtin_expect(__atomic_load_n(&found, __ATOMIC_ACQUIRE), 1))
        return;
    struct search search = {.in_any_object = false};
    (void)dl_iterate_phdr(visit, &search);
    if (search.dlsym == NULL) { /* a libc of another name */
        search.in_any_object = true;
        (void)dl_iterate_phdr(visit, &search);
    }
    /* Object pointers become function pointers by their bytes: ISO C has no cast for it. */
    void *(*real_dlsym)(void *, const char *) = no_dlsym;
    void *(*real_dlvsym)(void *, const char *, const char *) = no_dlvsym;
    if (search.dlsym != NULL)
        memcpy(&real_dlsym, &search.dlsym, sizeof search.dlsym);
    if (search.dlvsym != NULL)
        memcpy(&real_dlvsym, &search.dlvsym, sizeof search.dlvsym);
    __atomic_store_n(&vgi_real_dlsym, real_dlsym, __ATOMIC_RELAXED);
    __atomic_store_n(&vgi_real_dlvsym, real_dlvsym, __ATOMIC_RELAXED);
    __atomic_store_n(&found, 1, __ATOMIC_RELEASE);
}
