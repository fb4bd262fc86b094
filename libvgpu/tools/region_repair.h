/* Making a region's accounts right again while nobody uses it. */
#ifndef VGPU_TOOL_REGION_REPAIR_H
#define VGPU_TOOL_REGION_REPAIR_H

#include <stdbool.h>

enum repair_outcome { REPAIRED, NOT_REPAIRABLE, CANNOT_OPEN, IN_USE };

/* Says on stdout what it did (with `json` as one object), on stderr why it did nothing. */
enum repair_outcome repair_region(const char *path, bool json);

#endif
