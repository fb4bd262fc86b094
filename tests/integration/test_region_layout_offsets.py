"""The library's header, the monitor's table of offsets and the documented one say the same.

The header, compiled, prints its offsets.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hami_monitor.core import region_layouts
from hami_monitor.core.region_layouts import V1

ROOT = Path(__file__).parents[2]
INCLUDE = ROOT / "libvgpu/include"

PRINTER = r"""
#include <stdio.h>
#include "vgpu/shm_layout.h"
#define SHOW(name, value) printf("  \"%s\": %llu,\n", name, (unsigned long long)(value))
int main(void) {
    printf("{\n");
    SHOW("magic", VG_REGION_MAGIC);
    SHOW("cards", VG_MAX_CARDS);
    SHOW("slots_max", VG_MAX_SLOTS);
    SHOW("uuid_bytes", VG_UUID_BYTES);
    SHOW("size", sizeof(struct vg_region));
    SHOW("device_count", offsetof(struct vg_region, device_count));
    SHOW("uuids", offsetof(struct vg_region, uuids));
    SHOW("memory_limits", offsetof(struct vg_region, limit));
    SHOW("cores_limits", offsetof(struct vg_region, sm_limit));
    SHOW("slots", offsetof(struct vg_region, slots));
    SHOW("slot_bytes", sizeof(struct vg_slot));
    SHOW("status", offsetof(struct vg_slot, status));
    SHOW("used", offsetof(struct vg_slot, used));
    SHOW("used_stride", sizeof(struct vg_usage));
    SHOW("used_context", offsetof(struct vg_usage, context));
    SHOW("used_module", offsetof(struct vg_usage, module));
    SHOW("used_data", offsetof(struct vg_usage, data));
    SHOW("used_offset", offsetof(struct vg_usage, offset));
    SHOW("used_total", offsetof(struct vg_usage, total));
    SHOW("utilisation", offsetof(struct vg_slot, utilisation) + offsetof(struct vg_utilisation, sm));
    SHOW("utilisation_stride", sizeof(struct vg_utilisation));
    SHOW("slot_count", offsetof(struct vg_region, slot_count));
    SHOW("utilisation_switch", offsetof(struct vg_region, utilisation_switch));
    SHOW("recent_kernel", offsetof(struct vg_region, recent_kernel));
    SHOW("priority", offsetof(struct vg_region, priority));
    SHOW("last_kernel_time", offsetof(struct vg_region, last_kernel_time));
    SHOW("extension_magic", VG_EXTENSION_MAGIC);
    SHOW("extension", VG_EXTENSION_OFFSET);
    SHOW("major", VG_REGION_MAJOR);
    SHOW("minor", VG_REGION_MINOR);
    SHOW("owners", offsetof(struct vg_extension, owners));
    SHOW("owner_bytes", sizeof(struct vg_slot_owner));
    SHOW("owner_began", offsetof(struct vg_slot_owner, start_time));
    printf("  \"end\": 0\n}\n");
    return 0;
}
"""


TABLE = r"""
#include <stdio.h>
#include "vgpu/shm_layout.h"
#define ROW(plus, type, where, name) printf("| %s%llu | %s | `%s` |\n", plus, (unsigned long long)(where), type, name)
#define REGION(type, field) ROW("", type, offsetof(struct vg_region, field), #field)
#define SLOT(type, field) ROW("+ ", type, offsetof(struct vg_slot, field), #field)
#define EXTENSION(type, field) ROW("", type, VG_EXTENSION_OFFSET + offsetof(struct vg_extension, field), #field)
#define OWNER(type, field) ROW("+ ", type, offsetof(struct vg_slot_owner, field), #field)
int main(void) {
    REGION("i32", magic);
    REGION("u32", major);
    REGION("u32", minor);
    REGION("u64", device_count);
    REGION("text[96][16]", uuids);
    REGION("u64[16]", limit);
    REGION("u64[16]", sm_limit);
    REGION("slot[1024]", slots);
    SLOT("i32", pid);
    SLOT("i32", host_pid);
    SLOT("usage[16]", used);
    SLOT("u64[16]", monitor_used);
    SLOT("utilisation[16]", utilisation);
    SLOT("i32", status);
    REGION("i32", slot_count);
    REGION("i32", utilisation_switch);
    REGION("i32", recent_kernel);
    REGION("i32", priority);
    REGION("u64", last_kernel_time);
    EXTENSION("u64", magic);
    EXTENSION("u64", size);
    EXTENSION("u64", sampler_until_ns);
    EXTENSION("u32", sweep_cursor);
    EXTENSION("u64", unblock_at_ns);
    EXTENSION("sum[16]", sums);
    EXTENSION("compute[16]", compute);
    EXTENSION("owner[1024]", owners);
    OWNER("u64", start_time);
    OWNER("u64", pid_namespace);
    OWNER("i32", pid);
    OWNER("u32", holds_lock);
    printf("slot: %zu bytes, usage: %zu, utilisation: %zu, sum: %zu, compute: %zu, owner: %zu; the file: %llu\n",
           sizeof(struct vg_slot), sizeof(struct vg_usage), sizeof(struct vg_utilisation), sizeof(struct vg_card_sum),
           sizeof(struct vg_card_compute), sizeof(struct vg_slot_owner), (unsigned long long)VG_FILE_BYTES);
    return 0;
}
"""


def printed(program: str, folder: Path) -> str:
    """What the header says, compiled."""
    compiler = shutil.which("cc")
    assert compiler is not None, "a C compiler named cc is needed, as for the library itself"
    source, binary = folder / "printer.c", folder / "printer"
    source.write_text(program)
    subprocess.run([compiler, "-std=c11", f"-I{INCLUDE}", str(source), "-o", str(binary)], check=True)
    return subprocess.run([binary], check=True, capture_output=True, text=True).stdout


def test_the_table_of_offsets_in_the_documentation_is_the_header_s(tmp_path: Path) -> None:
    document = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert [line for line in printed(TABLE, tmp_path).splitlines() if line not in document] == []


@pytest.mark.case("MON-01")
def test_header_and_reader_agree(tmp_path: Path) -> None:
    written = json.loads(printed(PRINTER, tmp_path))
    assert written == {
        "magic": region_layouts.MAGIC,
        "cards": region_layouts.CARD_MAX,
        "slots_max": region_layouts.SLOT_MAX,
        "uuid_bytes": region_layouts.UUID_BYTES,
        "size": V1.size_bytes,
        "device_count": V1.device_count,
        "uuids": V1.uuids,
        "memory_limits": V1.memory_limits,
        "cores_limits": V1.cores_limits,
        "slots": V1.slots,
        "slot_bytes": V1.slot_bytes,
        "status": V1.status,
        "used": V1.used.start,
        "used_stride": V1.used.stride,
        "used_context": V1.used.context,
        "used_module": V1.used.module,
        "used_data": V1.used.data,
        "used_offset": V1.used.offset,
        "used_total": V1.used.total,
        "utilisation": V1.utilisation,
        "utilisation_stride": V1.utilisation_stride,
        "slot_count": V1.slot_count,
        "utilisation_switch": V1.utilisation_switch,
        "recent_kernel": V1.recent_kernel,
        "priority": V1.priority,
        "last_kernel_time": V1.last_kernel_time,
        "extension_magic": int.from_bytes(region_layouts.EXTENSION_MAGIC, "little"),
        "extension": region_layouts.EXTENSION_OFFSET,
        "major": 1,
        "minor": region_layouts.EXTENSION_MINOR,
        "owners": region_layouts.EXTENSION_OWNERS,
        "owner_bytes": region_layouts.EXTENSION_OWNER_BYTES,
        "owner_began": region_layouts.EXTENSION_OWNER_BEGAN,
        "end": 0,
    }
