/* A library of its own place in the search order: what comes after it is not what comes after the program. */
#include <dlfcn.h>
#include <stddef.h>

__attribute__((visibility("default"))) void *find_next(const char *name);

void *find_next(const char *name) {
    void *volatile found = dlsym(RTLD_NEXT, name); /* a tail call would make our caller the one who asks */
    return found;
}
