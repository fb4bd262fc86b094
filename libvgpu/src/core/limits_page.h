/* Reading a limits page: what one container may have, written by the node-agent where the container cannot write. */
#ifndef VGPU_CORE_LIMITS_PAGE_H
#define VGPU_CORE_LIMITS_PAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "limits_page_layout.h"

/* Copies the page word by word. False: its writer was changing it meanwhile; every word is whole, but one may be of
 * before the change and the next of after it. */
bool vgi_limits_page_copy(const struct vg_limits_page *page, struct vg_limits_page *copy);

/* NULL when a copy keeps the rules of its layout, else what is wrong with it. */
const char *vgi_limits_page_fault(const struct vg_limits_page *copy);

/* The card of that UUID, or NULL. Reads only what never changes in a sound page. */
const struct vg_limits_card *vgi_limits_page_card(const struct vg_limits_page *page, const char *uuid);

#endif
