"""What we add to HAMi's wire, in one list. Comparisons with HAMi leave out exactly this; nothing else may differ.

Whoever adds a key, a variable or a mount adds its row here.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from hami_model import env, keys, register

Place = Literal["pod-annotation", "node-annotation", "node-register-field", "environment", "mount", "cdi-device"]


class Addition(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that HAMi does not write. Its readers ignore it."""

    place: Place
    name: str
    why: str


CDI_KIND: Final = "hami.io/slice"
"""Vendor and class of the CDI devices that Allocate answers with."""

ADDITIONS: Final[tuple[Addition, ...]] = (
    Addition(
        place="pod-annotation",
        name=keys.ALLOCATION_ID,
        why="names the reservation behind an allocation, so that its events can be tied together",
    ),
    Addition(
        place="pod-annotation",
        name=keys.WAKE,
        why="makes kube-scheduler try a rejected pod again when capacity grew by something that it does not watch",
    ),
    Addition(
        place="node-register-field",
        name=register.HANDOFF_FIELD,
        why="tells the scheduler that the node binds late and needs no node lock; absent means that it does",
    ),
    Addition(
        place="environment",
        name=env.HANDOFF,
        why="lets the library refuse to run without limits when a container starts before its hand-off",
    ),
    Addition(
        place="environment",
        name=env.CORES_LIMIT_OF,
        why="followed by a number: gives each card its own share of compute where a container's shares differ",
    ),
    Addition(
        place="mount",
        name="/vgpu/limits",
        why="after the hook path: the container's limits page, which it can read and not write",
    ),
    Addition(
        place="cdi-device",
        name=CDI_KIND,
        why="late binding: the device whose specification PreStartContainer writes",
    ),
)


def names(place: Place) -> frozenset[str]:
    """The names added in one place."""
    return frozenset(addition.name for addition in ADDITIONS if addition.place == place)
