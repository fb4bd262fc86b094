"""Which containers' folders nobody needs any more.

The node-agent removes the folders of pods that are gone. This is for what it leaves: HAMi's agent removes none, since
HAMi's monitor does. So one is taken away only when it is certain that nobody will: its pod is not among the node's, it
has not changed for a while (kubelet makes containers before the API server shows their pods), and no process of it runs
(a pod that was deleted by force may go on).
"""

from __future__ import annotations

from collections.abc import Container, Iterable

import msgspec

from hami_monitor.core.container_folder import FolderOwner


class UnremovableFolderError(Exception):
    """The message says why."""


class FolderAge(msgspec.Struct, frozen=True, kw_only=True):
    owner: FolderOwner
    seconds: float
    """Since something was put in or taken out."""


def stale(folders: Iterable[FolderAge], *, known_uids: Container[str], keep_seconds: float) -> tuple[FolderOwner, ...]:
    """`known_uids`: of the node's pods, as kubelet knows them."""
    return tuple(
        folder.owner for folder in folders if folder.owner.pod_uid not in known_uids and folder.seconds > keep_seconds
    )
