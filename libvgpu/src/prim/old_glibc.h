/* Included before every file of libvgpu.so: it is built once and loaded into containers with any glibc since 2.17.
 *
 * Functions that newer releases moved between libraries (libdl and libpthread became part of libc in 2.34) or gave a
 * new version are asked for under the oldest one, which every release still has. tests/abi/versions.cmake checks the
 * result. */
#ifndef VGPU_OLD_GLIBC_H
#define VGPU_OLD_GLIBC_H

#include <features.h>

/* From 2.38 on the headers would turn strtol and sscanf into functions of that release. */
#undef __GLIBC_USE_C2X_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C23_STRTOL 0

#if defined(__x86_64__)
#    define VGI_OLDEST "GLIBC_2.2.5"
#elif defined(__aarch64__)
#    define VGI_OLDEST "GLIBC_2.17"
#endif

#define VGI_OLD_SYMBOL(name) __asm__(".symver " #name ", " #name "@" VGI_OLDEST)
VGI_OLD_SYMBOL(dladdr);
VGI_OLD_SYMBOL(dlclose);
VGI_OLD_SYMBOL(dlerror);
VGI_OLD_SYMBOL(dlopen);
VGI_OLD_SYMBOL(pthread_create);
VGI_OLD_SYMBOL(pthread_detach);
VGI_OLD_SYMBOL(pthread_getspecific);
VGI_OLD_SYMBOL(pthread_join);
VGI_OLD_SYMBOL(pthread_key_create);
VGI_OLD_SYMBOL(pthread_mutex_trylock);
VGI_OLD_SYMBOL(pthread_once);
VGI_OLD_SYMBOL(pthread_setspecific);
VGI_OLD_SYMBOL(pthread_sigmask);
#undef VGI_OLD_SYMBOL

#endif
