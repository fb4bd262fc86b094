/* dlsym and dlvsym, exported over libc's: programs that look driver functions up by name get the hooks.
 *
 * libc's is asked first, and only an answer that is the driver's own function is replaced; everything else goes to it
 * by a jump, not a call, so that RTLD_NEXT and RTLD_DEFAULT still see the caller's object and not us. Nothing is
 * initialised here, no library is loaded: a program without CUDA never notices. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "hook_index.h"
#include "loader.h"

/* What to do about a question: answer it with `pointer`, or leave it to libc. In two registers, for the assembler. */
struct answer {
    void *pointer;
    uintptr_t given;
};
static const struct answer left_to_libc = {NULL, 0};

/* Called by the assembler below. */
__attribute__((visibility("hidden"), used)) struct answer vgi_answer_dlsym(void *handle, const char *name);
__attribute__((visibility("hidden"), used)) struct answer vgi_answer_dlvsym(void *handle, const char *name,
                                                                            const char *version);

/* dlsym or, with a version, dlvsym. */
static void *look_up(void *handle, const char *name, const char *version) {
    return version == NULL ? vgi_real_dlsym(handle, name) : vgi_real_dlvsym(handle, name, version);
}

/* The driver's function of that name, where the driver is loaded. */
static void *drivers_own(const struct vgi_hook *row, const char *version) {
    void *library = dlopen(vgi_library_name(row->library), RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        return NULL;
    void *found = look_up(library, row->name, version);
    dlclose(library);
    return found;
}

/* libc's dlsym and dlvsym themselves, which a program may ask for (tools that stand in front of dlsym too do, by
 * version, which skips us): whoever has them would reach the driver past us. NULL: `found` is neither. */
static void *ours_for(const void *found) {
    extern char our_dlsym[] __asm__("dlsym"), our_dlvsym[] __asm__("dlvsym");
    if (found == NULL)
        return NULL;
    return found == (void *)vgi_real_dlsym ? our_dlsym : found == (void *)vgi_real_dlvsym ? our_dlvsym : NULL;
}

static bool is_loaders(const char *name) {
    return name[0] == 'd' && (strcmp(name, "dlsym") == 0 || strcmp(name, "dlvsym") == 0);
}

static struct answer answer(void *handle, const char *name, const char *version) {
    if (__builtin_expect(is_loaders(name), 0)) {
        void *ours = ours_for(look_up(handle, name, version));
        return ours != NULL ? (struct answer){ours, 1} : left_to_libc;
    }
    const struct vgi_hook *row = vgi_hook_by_name(name);
    if (row == NULL)
        return left_to_libc;
    /* Whoever comes after us in the search order would skip us; ours calls the driver, never back. */
    if (handle == RTLD_NEXT)
        return drivers_own(row, version) != NULL ? (struct answer){row->hook, 1} : left_to_libc;
    void *found = look_up(handle, name, version);
    if (found == NULL)
        return left_to_libc;
    if (found != row->hook)
        return found == drivers_own(row, version) ? (struct answer){row->hook, 1} : left_to_libc;
    /* We were found because we export the name. What would be found without us? In a program that has no driver, or has
     * it in a scope of its own, nothing; then dlerror() tells so. */
    void *behind_us = look_up(RTLD_NEXT, name, version);
    bool driver = behind_us != NULL && behind_us == drivers_own(row, version);
    return (struct answer){driver ? row->hook : behind_us, 1};
}

struct answer vgi_answer_dlsym(void *handle, const char *name) {
    vgi_find_loader();
    return name == NULL ? left_to_libc : answer(handle, name, NULL);
}

struct answer vgi_answer_dlvsym(void *handle, const char *name, const char *version) {
    vgi_find_loader();
    return name == NULL || version == NULL ? left_to_libc : answer(handle, name, version);
}

/* The three argument registers are kept over the question, and the jump leaves everything as the caller made it. */
#if defined(__x86_64__)
#    define INTERPOSE(name, question, real)                                                                            \
        __asm__(".text\n"                                                                                              \
                ".globl " name "\n"                                                                                    \
                ".type " name ", @function\n" name ":\n"                                                               \
                "    .cfi_startproc\n"                                                                                 \
                "    endbr64\n"                                                                                        \
                "    pushq %rdi\n"                                                                                     \
                "    .cfi_adjust_cfa_offset 8\n"                                                                       \
                "    pushq %rsi\n"                                                                                     \
                "    .cfi_adjust_cfa_offset 8\n"                                                                       \
                "    pushq %rdx\n"                                                                                     \
                "    .cfi_adjust_cfa_offset 8\n"                                                                       \
                "    call " question "\n"                                                                              \
                "    movq %rdx, %r11\n"                                                                                \
                "    popq %rdx\n"                                                                                      \
                "    .cfi_adjust_cfa_offset -8\n"                                                                      \
                "    popq %rsi\n"                                                                                      \
                "    .cfi_adjust_cfa_offset -8\n"                                                                      \
                "    popq %rdi\n"                                                                                      \
                "    .cfi_adjust_cfa_offset -8\n"                                                                      \
                "    testq %r11, %r11\n"                                                                               \
                "    jne 1f\n"                                                                                         \
                "    jmp *" real "(%rip)\n"                                                                            \
                "1:  ret\n"                                                                                            \
                "    .cfi_endproc\n"                                                                                   \
                ".size " name ", . - " name "\n")
#elif defined(__aarch64__)
#    define INTERPOSE(name, question, real)                                                                            \
        __asm__(".text\n"                                                                                              \
                ".globl " name "\n"                                                                                    \
                ".type " name ", %function\n" name ":\n"                                                               \
                "    .cfi_startproc\n"                                                                                 \
                "    hint #34\n" /* bti c */                                                                           \
                "    stp x29, x30, [sp, #-48]!\n"                                                                      \
                "    .cfi_def_cfa_offset 48\n"                                                                         \
                "    .cfi_offset 29, -48\n"                                                                            \
                "    .cfi_offset 30, -40\n"                                                                            \
                "    stp x0, x1, [sp, #16]\n"                                                                          \
                "    str x2, [sp, #32]\n"                                                                              \
                "    bl " question "\n"                                                                                \
                "    mov x16, x0\n"                                                                                    \
                "    mov x17, x1\n"                                                                                    \
                "    ldr x2, [sp, #32]\n"                                                                              \
                "    ldp x0, x1, [sp, #16]\n"                                                                          \
                "    ldp x29, x30, [sp], #48\n"                                                                        \
                "    .cfi_def_cfa_offset 0\n"                                                                          \
                "    cbz x17, 1f\n"                                                                                    \
                "    mov x0, x16\n"                                                                                    \
                "    ret\n"                                                                                            \
                "1:  adrp x16, " real "\n"                                                                             \
                "    ldr x16, [x16, :lo12:" real "]\n"                                                                 \
                "    br x16\n"                                                                                         \
                "    .cfi_endproc\n"                                                                                   \
                ".size " name ", . - " name "\n")
#else
#    error "the jump to libc is written for x86_64 and aarch64"
#endif

INTERPOSE("dlsym", "vgi_answer_dlsym", "vgi_real_dlsym");
INTERPOSE("dlvsym", "vgi_answer_dlvsym", "vgi_real_dlvsym");
