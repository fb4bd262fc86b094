#include <pthread.h>

#include "vgpu/prim.h"

int vgi_hold_off_cancel(void) {
    int before = PTHREAD_CANCEL_ENABLE;
    (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

void vgi_let_cancel(int before) {
    (void)pthread_setcancelstate(before, NULL);
}
