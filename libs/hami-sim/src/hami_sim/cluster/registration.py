"""The objects that register the webhook, as its own command prints them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from hami_sim.cluster.errors import ClusterError
from hami_sim.cluster.objects import KubernetesObject


class _List(msgspec.Struct, frozen=True):
    items: list[KubernetesObject]


async def registration_objects(*, url: str, ca: Path, namespace: str) -> list[KubernetesObject]:
    """In the order in which they are to be applied. Raises ClusterError with what the command said."""
    command = Path(sys.executable).with_name("hami-webhook")
    process = await asyncio.create_subprocess_exec(
        command,
        "registration",
        f"--url={url}",
        f"--ca={ca}",
        f"--namespace={namespace}",
        "--output=json",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, said = await process.communicate()
    if process.returncode != 0:
        raise ClusterError(f"hami-webhook registration failed: {said.decode(errors='replace').strip()}")
    return msgspec.json.decode(printed, type=_List).items
