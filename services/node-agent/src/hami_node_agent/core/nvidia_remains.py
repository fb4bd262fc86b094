"""What is left on a node of NVIDIA's device plugin, or still runs there, and what it means.

Sockets and resource names are the same as ours, so both cannot serve one node; everything else may stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

RIVAL: Final = "DevicePluginConflict"
REMAINS: Final = "DevicePluginRemains"
_DEPLOY_LABEL: Final = "nvidia.com/gpu.deploy.device-plugin"
"""GPU Operator's: whether it runs NVIDIA's device plugin on the node."""
_CONFIG_LABEL: Final = "nvidia.com/device-plugin.config"
_MIG_CONFIG_LABEL: Final = "nvidia.com/mig.config"
_SHARED: Final = ".shared"
"""Ending of resources that NVIDIA's plugin shares in time."""
_MIG_RESOURCE: Final = "nvidia.com/mig-"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was found. `reason` is RIVAL where it takes pods from us."""

    reason: str
    message: str


class Traces(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine and its Node show."""

    labels: Mapping[str, str] = {}
    allocatable: Mapping[str, str | int | float] = {}
    sockets: Mapping[str, bool] = {}
    """Names of nvidia's sockets beside kubelet's, before ours is made; whether somebody answers there."""
    cdi_files: tuple[str, ...] = ()
    """Paths of CDI specifications of NVIDIA's device plugin."""


class Ours(msgspec.Struct, frozen=True, kw_only=True):
    """What we serve."""

    resources: frozenset[str]
    sockets: frozenset[str]
    writes_card_specs: bool
    mig_is_ours: bool
    """We make and destroy MIG devices."""


def remains(traces: Traces, ours: Ours) -> list[Found]:
    """In a fixed order."""
    return [*_rivals(traces, ours), *_resources(traces, ours), *_files(traces, ours)]


def _rivals(traces: Traces, ours: Ours) -> Iterable[Found]:
    for name in sorted(name for name, answers in traces.sockets.items() if answers and name in ours.sockets):
        yield Found(
            reason=RIVAL,
            message=f"another device plugin serves {name}: it and this agent take kubelet from each other, and pods "
            "get whole cards from it; remove NVIDIA's device plugin from this node",
        )
    if traces.labels.get(_DEPLOY_LABEL) == "true":
        yield Found(
            reason=RIVAL,
            message=f"label {_DEPLOY_LABEL}=true makes GPU Operator run NVIDIA's device plugin on this node; set it to "
            "false",
        )
    if ours.mig_is_ours and _MIG_CONFIG_LABEL in traces.labels:
        yield Found(
            reason=RIVAL,
            message=f"label {_MIG_CONFIG_LABEL} makes NVIDIA's MIG manager change MIG devices, as this agent does; "
            "remove the label",
        )


def _resources(traces: Traces, ours: Ours) -> Iterable[Found]:
    others = sorted(
        name
        for name, count in traces.allocatable.items()
        if name not in ours.resources
        and (name.startswith(_MIG_RESOURCE) or (name.startswith("nvidia.com/") and name.endswith(_SHARED)))
        and str(count) not in ("", "0")
    )
    if others:
        yield Found(
            reason=REMAINS,
            message=f"the node still counts {', '.join(others)}, which nobody serves any more: pods that ask for them "
            "never start; kubelet forgets them when it starts anew",
        )
    if _CONFIG_LABEL in traces.labels:
        yield Found(
            reason=REMAINS,
            message=f"label {_CONFIG_LABEL} chooses a configuration of NVIDIA's device plugin and has no effect here",
        )


def _files(traces: Traces, ours: Ours) -> Iterable[Found]:
    dead = sorted(name for name, answers in traces.sockets.items() if not answers and name not in ours.sockets)
    if dead:
        yield Found(reason=REMAINS, message=f"nobody answers at {', '.join(dead)}; kubelet removes them when it starts")
    if traces.cdi_files and not ours.writes_card_specs:
        yield Found(
            reason=REMAINS,
            message=f"CDI specifications of NVIDIA's device plugin are here and not kept up to date: "
            f"{', '.join(sorted(traces.cdi_files))}; containers are shown cards by them where no nvidia.com/gpu "
            "specification is; remove them, or name a cdi strategy in devices.list_strategies",
        )
