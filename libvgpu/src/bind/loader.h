/* The dynamic loader's own functions. libvgpu exports dlsym and dlvsym over libc's, so their names lead back to us:
 * libc's are found in its symbol table. */
#ifndef VGPU_BIND_LOADER_H
#define VGPU_BIND_LOADER_H

/* Never NULL once vgi_find_loader() returned; called through, or jumped to where the caller must stay who it is. */
extern void *(*vgi_real_dlsym)(void *handle, const char *name);
extern void *(*vgi_real_dlvsym)(void *handle, const char *name, const char *version);

/* Cheap when it was called before. Another library's constructor may come before ours. */
void vgi_find_loader(void);

#endif
