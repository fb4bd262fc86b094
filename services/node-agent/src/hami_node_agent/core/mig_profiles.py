"""Which MIG profiles a card is offered with: what its driver can make, restricted to what the configuration allows.

The configuration names profiles as people do, `1g.10gb` or `1g.10gb+me`; the driver numbers its kinds. A name stands
for the driver's profile of as many slices whose memory is nearest to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from hami_model.cards import MigPlacement, MigProfile
from hami_model.device_config import MigAllowance

_NAME: Final = re.compile(
    r"(?P<slices>[0-9]{1,2})g\.(?:(?P<gigabytes>[0-9]{1,4})gb)?(?P<rest>[^+]*)(?:\+(?P<extra>.+))?",
    re.ASCII | re.DOTALL,
)
_PLAIN_KINDS: Final = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7, 5: 8, 6: 6, 9: 1}
"""NVML_GPU_INSTANCE_PROFILE_*: slices by the kinds without anything extra; 9 is one slice with double memory."""
_MEDIA_KINDS: Final = {7: 1, 8: 2}
"""The kinds with media engines, `+me`."""
_MIB_OF_GIGABYTE: Final = 1024
_TOLERANCE: Final = 1.5
"""Names round; a profile with this many times the named memory, or as many times less, is another one."""


class InstanceProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of instance that a card's driver can make."""

    kind: int
    """NVML_GPU_INSTANCE_PROFILE_*, the same for every card."""
    driver_id: int
    """The driver's own number for it on this card, by which instances are made."""
    slice_count: int
    instance_count: int
    """How many the card can hold at most."""
    sm_count: int
    memory_mib: int
    placements: tuple[MigPlacement, ...] = ()


class ProfileOffer(msgspec.Struct, frozen=True, kw_only=True):
    """What is published of a card in MIG mode."""

    profiles: tuple[MigProfile, ...] = ()
    """In the order of the configuration; empty: the card cannot be offered."""
    slots: int = 0
    """The most instances that one of the profiles allows."""
    problems: tuple[str, ...] = ()


def profiles_to_offer(made: Sequence[InstanceProfile], model: str, allowances: Iterable[MigAllowance]) -> ProfileOffer:
    """The profiles of a card of that model. Of several allowances that name the model the first counts."""
    allowed = next((entry.profiles for entry in allowances if any(name in model for name in entry.models)), None)
    if allowed is None:
        return ProfileOffer(problems=(f"no entry of migProfileAllowlist names the model {model!r}; add one",))
    if not made:
        return ProfileOffer(problems=(f"its driver has no MIG profiles for the model {model!r}",))
    largest = max(profile.sm_count for profile in made)
    found: list[MigProfile] = []
    slots = 0
    problems: list[str] = []
    for name in dict.fromkeys(allowed):
        profile = named(made, name)
        if profile is None:
            problems.append(f"MIG profile {name!r} of migProfileAllowlist is none of this card's")
            continue
        slots = max(slots, profile.instance_count)
        found.append(
            MigProfile(
                name=name,
                memory_mib=profile.memory_mib,
                cores_percent=-(-profile.sm_count * 100 // largest) if largest > 0 else 0,
                slice_count=profile.slice_count,
                placements=profile.placements,
            )
        )
    return ProfileOffer(profiles=tuple(found), slots=slots, problems=tuple(problems))


def named(made: Iterable[InstanceProfile], name: str) -> InstanceProfile | None:
    """The profile that a name stands for on this card."""
    match = _NAME.fullmatch(name)
    if match is None or match["extra"] not in (None, "me"):
        return None
    kinds = _PLAIN_KINDS if match["extra"] is None else _MEDIA_KINDS
    candidates = [profile for profile in made if kinds.get(profile.kind) == int(match["slices"])]
    if match["gigabytes"] is None:  # the name says nothing of memory
        return candidates[0] if candidates else None
    wanted = int(match["gigabytes"]) * _MIB_OF_GIGABYTE
    nearest = min(candidates, key=lambda profile: abs(profile.memory_mib - wanted), default=None)
    if nearest is None or not wanted / _TOLERANCE <= nearest.memory_mib <= wanted * _TOLERANCE:
        return None
    return nearest
