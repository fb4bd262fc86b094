/* The exported names of a simulated library, in front of the functions that do the work.
 *
 * In C, `cuMemAlloc_v2` is the working function, whose linker name is sim_body_cuMemAlloc_v2 (SIM_BODY in driver.h and
 * nvml.h). What programs find under the bare name is made here: two instructions that look whether anything is being
 * watched, and a jump to the body, whatever its arguments are. Otherwise sim_entry_answer is called first, with the
 * symbol's number, and its answer returned unless it is SIM_PASS.
 *
 * Included once by each library, which says `SIM_ENTRY(symbol)` for each row of its table, in order. */
#ifndef SIM_ENTRY_H
#define SIM_ENTRY_H

#include "entry_answer.h"

#define SIM_TEXT_OF(number) #number
#define SIM_ENTRY(symbol) SIM_ENTRY_NUMBERED(symbol, __COUNTER__)
#define SIM_ENTRY_NUMBERED(symbol, number) SIM_ENTRY_CODE(#symbol, SIM_TEXT_OF(number))
_Static_assert(__COUNTER__ == 0, "the entries are counted from here");

#if defined(__x86_64__)
#    define SIM_ENTRY_CODE(name, number)                                                                               \
        __asm__(".text\n"                                                                                              \
                ".globl " name "\n"                                                                                    \
                ".type " name ", @function\n" name ":\n"                                                               \
                "    .cfi_startproc\n"                                                                                 \
                "    endbr64\n"                                                                                        \
                "    movq sim_watched(%rip), %rax\n"                                                                   \
                "    cmpl $0, (%rax)\n"                                                                                \
                "    jne 1f\n"                                                                                         \
                "    jmp sim_body_" name "\n"                                                                          \
                "1:  movl $" number " - 1, %eax\n"                                                                     \
                "    call sim_entry_ask\n"                                                                             \
                "    cmpl $-1, %eax\n"                                                                                 \
                "    je 2f\n"                                                                                          \
                "    ret\n"                                                                                            \
                "2:  jmp sim_body_" name "\n"                                                                          \
                "    .cfi_endproc\n"                                                                                   \
                ".size " name ", . - " name "\n");

/* Keeps the arguments, which are all integers and pointers. */
__asm__(".text\n"
        ".type sim_entry_ask, @function\n"
        "sim_entry_ask:\n"
        "    .cfi_startproc\n"
        "    pushq %rdi\n    .cfi_adjust_cfa_offset 8\n"
        "    pushq %rsi\n    .cfi_adjust_cfa_offset 8\n"
        "    pushq %rdx\n    .cfi_adjust_cfa_offset 8\n"
        "    pushq %rcx\n    .cfi_adjust_cfa_offset 8\n"
        "    pushq %r8\n    .cfi_adjust_cfa_offset 8\n"
        "    pushq %r9\n    .cfi_adjust_cfa_offset 8\n"
        "    movl %eax, %edi\n"
        "    call sim_entry_answer\n"
        "    popq %r9\n    .cfi_adjust_cfa_offset -8\n"
        "    popq %r8\n    .cfi_adjust_cfa_offset -8\n"
        "    popq %rcx\n    .cfi_adjust_cfa_offset -8\n"
        "    popq %rdx\n    .cfi_adjust_cfa_offset -8\n"
        "    popq %rsi\n    .cfi_adjust_cfa_offset -8\n"
        "    popq %rdi\n    .cfi_adjust_cfa_offset -8\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size sim_entry_ask, . - sim_entry_ask\n");
#elif defined(__aarch64__)
#    define SIM_ENTRY_CODE(name, number)                                                                               \
        __asm__(".text\n"                                                                                              \
                ".globl " name "\n"                                                                                    \
                ".type " name ", %function\n" name ":\n"                                                               \
                "    .cfi_startproc\n"                                                                                 \
                "    adrp x9, sim_watched\n"                                                                           \
                "    ldr x9, [x9, :lo12:sim_watched]\n"                                                                \
                "    ldr w9, [x9]\n"                                                                                   \
                "    cbnz w9, 1f\n"                                                                                    \
                "    b sim_body_" name "\n"                                                                            \
                "1:  stp x29, x30, [sp, #-16]!\n"                                                                      \
                "    .cfi_def_cfa_offset 16\n"                                                                         \
                "    .cfi_offset 29, -16\n"                                                                            \
                "    .cfi_offset 30, -8\n"                                                                             \
                "    mov w9, #(" number " - 1)\n"                                                                      \
                "    bl sim_entry_ask\n"                                                                               \
                "    ldp x29, x30, [sp], #16\n"                                                                        \
                "    .cfi_def_cfa_offset 0\n"                                                                          \
                "    cmn w9, #1\n"                                                                                     \
                "    b.eq 2f\n"                                                                                        \
                "    mov w0, w9\n"                                                                                     \
                "    ret\n"                                                                                            \
                "2:  b sim_body_" name "\n"                                                                            \
                "    .cfi_endproc\n"                                                                                   \
                ".size " name ", . - " name "\n");

__asm__(".text\n"
        ".type sim_entry_ask, %function\n"
        "sim_entry_ask:\n"
        "    .cfi_startproc\n"
        "    stp x29, x30, [sp, #-80]!\n"
        "    .cfi_def_cfa_offset 80\n"
        "    .cfi_offset 29, -80\n"
        "    .cfi_offset 30, -72\n"
        "    stp x0, x1, [sp, #16]\n"
        "    stp x2, x3, [sp, #32]\n"
        "    stp x4, x5, [sp, #48]\n"
        "    stp x6, x7, [sp, #64]\n"
        "    mov w0, w9\n"
        "    bl sim_entry_answer\n"
        "    mov w9, w0\n"
        "    ldp x0, x1, [sp, #16]\n"
        "    ldp x2, x3, [sp, #32]\n"
        "    ldp x4, x5, [sp, #48]\n"
        "    ldp x6, x7, [sp, #64]\n"
        "    ldp x29, x30, [sp], #80\n"
        "    .cfi_def_cfa_offset 0\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size sim_entry_ask, . - sim_entry_ask\n");
#else
#    error "the entries' jumps are written for x86_64 and aarch64"
#endif

#endif
