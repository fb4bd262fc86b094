"""Takes away mounts that a cluster leaves on the machine."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

from hami_sim.cluster.errors import ClusterError

_MNT_DETACH = 2
_MOUNT_POINT_FIELD = 4


def mount_points_below(folders: Iterable[Path]) -> list[Path]:
    """Mount points in any of the folders, inner ones first."""
    roots = [folder.absolute() for folder in folders]
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [Path(line.split()[_MOUNT_POINT_FIELD].encode().decode("unicode_escape")) for line in lines]
    found = [point for point in points if any(point == root or root in point.parents for root in roots)]
    return sorted(found, key=lambda point: len(point.parts), reverse=True)


def unmount_below(folders: Iterable[Path]) -> None:
    """Raises ClusterError when a mount cannot be taken away: removing files would then reach through it."""
    libc = ctypes.CDLL(None, use_errno=True)
    for point in mount_points_below(folders):
        if libc.umount2(os.fsencode(point), _MNT_DETACH) != 0:
            raise ClusterError(f"{point} cannot be unmounted: {os.strerror(ctypes.get_errno())}")
