#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "env_names.h"
#include "vgpu/prim.h"

#define LINE_BYTES 512

static int wanted_level(void) {
    static int cached = -1;
    int level = __atomic_load_n(&cached, __ATOMIC_RELAXED);
    if (level < 0) {
        const char *setting = getenv(VG_ENV_LOG_LEVEL);
        level = setting == NULL || *setting == '\0' ? VGI_WARNING : atoi(setting);
        if (level < 0)
            level = 0;
        __atomic_store_n(&cached, level, __ATOMIC_RELAXED);
    }
    return level;
}

void vgi_say(enum vgi_level level, const char *format, ...) {
    static const char *const names[] = {"", "error", "warning", "info", "debug"};
    static _Thread_local int speaking; /* whatever writing leads to, it does not come back here */
    char line[LINE_BYTES];
    va_list arguments;
    if ((level != VGI_ERROR && (int)level > wanted_level()) || speaking)
        return;
    speaking = 1;
    int used = snprintf(line, sizeof line, "[libvgpu %s %d] ", names[level], (int)getpid());
    va_start(arguments, format);
    int more = vsnprintf(line + used, sizeof line - (size_t)used, format, arguments);
    va_end(arguments);
    size_t length = (size_t)used + (more < 0 ? 0 : (size_t)more);
    if (length > sizeof line - 2)
        length = sizeof line - 2;
    line[length] = '\n';
    int before = vgi_hold_off_cancel();
    ssize_t written = write(STDERR_FILENO, line, length + 1);
    (void)written; /* nothing can be done about a closed stderr */
    vgi_let_cancel(before);
    speaking = 0;
}
