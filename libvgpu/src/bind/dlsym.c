/* dlsym, exported over libc's: programs that look driver functions up by name get the hooks.
 *
 * libc's dlsym is asked first, and only an answer that is the driver's own function is replaced; everything else goes
 * to it by a jump, not a call, so that RTLD_NEXT and RTLD_DEFAULT still see the caller's object and not us. Nothing
 * is initialised here, no library is loaded: a program without CUDA never notices. */
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include "table.h"

void *(*vgi_real_dlsym)(void *handle, const char *name) __attribute__((visibility("hidden")));

/* Called by the assembler below. The hook to answer with, or NULL: then libc's dlsym answers. */
__attribute__((visibility("hidden"), used)) void *vgi_dlsym_hook(void *handle, const char *name);

static void *no_dlsym(void *handle, const char *name) {
    (void)handle, (void)name;
    return NULL;
}

/* dlvsym is not interposed, so it leads to libc's own. Versions: new glibc, old x86_64, old aarch64. */
__attribute__((constructor)) static void find_real_dlsym(void) {
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
    if (vgi_real_dlsym != NULL)
        return;
    void *found = NULL;
    for (size_t i = 0; i < sizeof versions / sizeof versions[0] && found == NULL; i++)
        found = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    if (found == NULL)
        vgi_real_dlsym = no_dlsym;
    else
        memcpy(&vgi_real_dlsym, &found, sizeof found);
}

void *vgi_dlsym_hook(void *handle, const char *name) {
    find_real_dlsym(); /* another library's constructor may come before ours */
    if (name == NULL || (strncmp(name, "cu", 2) != 0 && strncmp(name, "nvml", 4) != 0))
        return NULL;
    const struct vgi_hook *row = vgi_hook_by_name(name);
    if (row == NULL)
        return NULL;
    void *library = dlopen(vgi_library_name(row->library), RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        return NULL;
    void *drivers_own = vgi_real_dlsym(library, name);
    dlclose(library);
    if (drivers_own == NULL)
        return NULL;
    /* Whoever comes after us in the search order would skip us; ours calls the driver, never back. */
    if (handle == RTLD_NEXT)
        return row->hook;
    void *answer = vgi_real_dlsym(handle, name);
    return answer == drivers_own || answer == row->hook ? row->hook : NULL;
}

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, @function\n"
        "dlsym:\n"
        "    .cfi_startproc\n"
        "    endbr64\n"
        "    pushq %rdi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    pushq %rsi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    subq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    call vgi_dlsym_hook\n"
        "    addq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    popq %rsi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    popq %rdi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    testq %rax, %rax\n"
        "    jne 1f\n"
        "    jmp *vgi_real_dlsym(%rip)\n"
        "1:  ret\n"
        "    .cfi_endproc\n"
        ".size dlsym, . - dlsym\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, %function\n"
        "dlsym:\n"
        "    .cfi_startproc\n"
        "    stp x29, x30, [sp, #-32]!\n"
        "    .cfi_def_cfa_offset 32\n"
        "    .cfi_offset 29, -32\n"
        "    .cfi_offset 30, -24\n"
        "    stp x0, x1, [sp, #16]\n"
        "    bl vgi_dlsym_hook\n"
        "    mov x17, x0\n"
        "    ldp x0, x1, [sp, #16]\n"
        "    ldp x29, x30, [sp], #32\n"
        "    .cfi_def_cfa_offset 0\n"
        "    cbz x17, 1f\n"
        "    mov x0, x17\n"
        "    ret\n"
        "1:  adrp x16, vgi_real_dlsym\n"
        "    ldr x16, [x16, :lo12:vgi_real_dlsym]\n"
        "    br x16\n"
        "    .cfi_endproc\n"
        ".size dlsym, . - dlsym\n");
#else
#    error "dlsym's jump to libc is written for x86_64 and aarch64"
#endif
