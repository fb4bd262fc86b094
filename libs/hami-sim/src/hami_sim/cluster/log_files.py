"""Logs of the cluster's programs, line by line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from hami_sim.cluster.errors import ClusterError
from hami_sim.cluster.local_cluster import LocalCluster
from hami_sim.cluster.observe import CONTROL_PLANE

POLL_SECONDS = 0.2


def service_log(cluster: LocalCluster, name: str) -> Path:
    """The log of a service; a name that only begins like one service is enough. Raises ClusterError."""
    known = [*CONTROL_PLANE, *cluster.specs]
    matching = [name] if name in known else [one for one in known if one.startswith(name)]
    if len(matching) != 1:
        raise ClusterError(f"{name} is none of {', '.join(matching or known)}; for a pod write pod/NAME")
    return cluster.layout.log(matching[0])


async def log_lines(path: Path, *, following: bool) -> AsyncIterator[bytes]:
    """Lines without their ends; with `following` for ever. Raises ClusterError when there is no such file."""
    try:
        log = path.open("rb")
    except OSError as error:
        raise ClusterError(f"{path}: {error.strerror}") from error
    with log:
        rest = b""
        while True:
            chunk = log.read(65_536)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line
            if chunk:
                continue
            if not following:
                if rest:
                    yield rest
                return
            await asyncio.sleep(POLL_SECONDS)
