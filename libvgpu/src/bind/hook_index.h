/* Which hook a name, or a pointer of the driver's, leads to. Two open hash tables: a program asks some 450 times while
 * it starts. */
#ifndef VGPU_BIND_HOOK_INDEX_H
#define VGPU_BIND_HOOK_INDEX_H

#include "table.h"

struct vgi_hook {
    const char *name;
    void *hook;
    enum vgi_library library;
};

/* The hook of that exported name, or NULL. */
const struct vgi_hook *vgi_hook_by_name(const char *name);

/* The hook that stands for that pointer of the driver, or NULL. */
void *vgi_hook_by_pointer(const void *pointer);

/* The driver's pointers of each CUDA hook: by name, and as cuGetProcAddress gives it, which may be another. */
struct vgi_driver_pointers {
    const void *by_name;
    const void *by_question;
};

/* Asks the driver for the pointers of every CUDA hook; the number of them is vgi_cuda_hook_count. */
extern const unsigned vgi_cuda_hook_count;
void vgi_ask_pointers(void *library, const struct vgi_cuda_calls *calls, struct vgi_driver_pointers *pointers);

/* Enters them for vgi_hook_by_pointer; once, before anybody asks. */
void vgi_learn_pointers(const struct vgi_driver_pointers *pointers);

#endif
