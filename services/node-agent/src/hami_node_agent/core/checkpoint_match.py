"""Whose devices these are: kubelet's ids against its checkpoint."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from hami_model import env
from kubelet_api.checkpoint import CheckpointError, CheckpointView

from hami_node_agent.core import cdi_spec, mig_uuid


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A container that holds the ids."""

    pod_uid: str
    container: str
    cdi_name: str | None
    """Short name of the device that Allocate answered with; None: it was handed over at once, by a node lock."""
    region_file: str = ""
    """Path of the region file in an answer that was complete."""
    mig_devices: tuple[str, ...] = ()
    """UUIDs of the MIG instances in an answer that was complete."""


class Unmatched(msgspec.Struct, frozen=True, kw_only=True):
    """Nobody can be told to hold the ids; kubelet asks again."""

    reason: str


def holders(
    view: CheckpointView, resource: str, device_ids: Iterable[str], region_variable: str
) -> tuple[Holder, ...] | Unmatched:
    """All containers with exactly these ids: several where a one-shot init container's ids were given again.

    They are always of one pod, since kubelet gives an id to a second pod only when the first is gone; where a gone
    pod's entry is still there, the caller tells them apart.
    """
    wanted = frozenset(device_ids)
    found: list[Holder] = []
    for entry in view.holding(resource, wanted):
        try:
            response = entry.allocate_response()
        except CheckpointError as error:
            return Unmatched(reason=str(error))
        names = [cdi_spec.own_name(device.name) for device in response.cdi_devices]
        found.append(
            Holder(
                pod_uid=entry.pod_uid,
                container=entry.container_name,
                cdi_name=next((name for name in names if name is not None), None),
                region_file=response.envs.get(region_variable, ""),
                mig_devices=_mig_devices(response.envs.get(env.VISIBLE_CARDS, "")),
            )
        )
    if found:
        return tuple(found)
    unreadable = f" ({len(view.unreadable)} entries cannot be read)" if view.unreadable else ""
    return Unmatched(reason=f"kubelet's checkpoint names no container with these {len(wanted)} devices{unreadable}")


def _mig_devices(visible: str) -> tuple[str, ...]:
    return tuple(name for name in visible.split(",") if mig_uuid.is_mig(name))
