/* Functions that before glibc 2.33 were no symbols of libc: defined here, hidden, so that no newer symbol is needed. */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* On 64-bit machines libc's struct stat is the kernel's. */
_Static_assert(sizeof(void *) == 8, "struct stat is the kernel's");

int fstatat(int directory, const char *restrict path, struct stat *restrict status, int flags) {
    return (int)syscall(SYS_newfstatat, directory, path, status, flags);
}

int stat(const char *restrict path, struct stat *restrict status) {
    return fstatat(AT_FDCWD, path, status, 0);
}

int lstat(const char *restrict path, struct stat *restrict status) {
    return fstatat(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}

int fstat(int descriptor, struct stat *status) {
    return (int)syscall(SYS_fstat, descriptor, status);
}
