"""The handshake annotation of a node: HAMi's rules of whether a vendor's cards on it may be counted on.

Plugins that take part (`judge_answered`) write `Reported…` every half minute over the scheduler's `Requesting_<time>`;
a question that is not answered for a minute, on a node without allocatable cards, means that the plugin is gone.

NVIDIA's do not (`judge`): the scheduler writes `Requesting_<UTC time>`, and nobody answers. What really tells is
whether the node has allocatable cards, so the rule compares that over the passes, and the stamp covers the first
minute only.

    C, R: allocatable cards now and at the last pass that looked; A: the register annotation then.
    C = 0, R = 0   by the stamp
    C = 0, R > 0   unhealthy: the cards went away
    C ≠ R          healthy, to be read again
    A changed      by the stamp, to be read again
    else           by the stamp
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import msgspec

from hami_model import go_time

GRACE: Final = timedelta(seconds=60)
"""How long a stamp covers a node that has no allocatable cards."""
_REQUESTING: Final = "Requesting"


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass leaves to the next, for one vendor on one node. A node that is cleaned up starts anew."""

    allocatable: int = 0
    register: str = ""
    lost: bool = False
    """The cards went from allocatable to none and did not come back."""
    silent: bool = False
    """A question was not answered, and nothing was heard since."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    healthy: bool
    """By HAMi's rule."""
    need_update: bool
    """The register annotation must be read again."""
    stamp: str | None
    """Handshake to be written, or None."""
    memory: Memory

    @property
    def usable(self) -> bool:
        """Whether pods may be placed there. Cards that went away come back only with allocatable cards, and those of a
        plugin that fell silent with its next report too; HAMi's rules would let both back by a stamp alone."""
        return self.healthy and not self.memory.lost and not self.memory.silent


def stamp(now: datetime) -> str:
    """The value that the scheduler writes."""
    return f"{_REQUESTING}_{go_time.format_naive_utc(now)}"


def judge(
    memory: Memory,
    *,
    handshake: str | None,
    allocatable: int,
    register: str | None,
    now: datetime,
    has_handshake: bool = True,
) -> Verdict:
    """One pass over one vendor's cards on one node, whose plugin answers no handshakes.

    `handshake` and `register` are the annotations, `allocatable` the node's count of the vendor's count resource;
    `has_handshake` is false for a vendor that has no handshake key.
    """
    healthy, need_update, new_stamp = _by_stamp(handshake, allocatable, now) if has_handshake else (True, True, None)
    register = register or ""
    if allocatable == memory.allocatable and (allocatable == 0 or register == memory.register):
        after = memory
    elif allocatable == 0:
        healthy = False
        after = Memory(allocatable=0, register=register, lost=True)
    else:
        healthy, need_update = healthy or allocatable != memory.allocatable, True
        after = Memory(allocatable=allocatable, register=register)
    return Verdict(healthy=healthy, need_update=need_update, stamp=new_stamp, memory=after)


def judge_answered(memory: Memory, *, handshake: str | None, allocatable: int, now: datetime) -> Verdict:
    """One pass over the cards of one vendor whose plugin answers handshakes, on one node."""
    healthy, need_update, new_stamp = _by_stamp(handshake, allocatable, now)
    reported = bool(handshake) and handshake is not None and _REQUESTING not in handshake
    after = Memory(
        allocatable=allocatable,
        lost=allocatable == 0 and (memory.lost or memory.allocatable > 0),
        silent=not healthy or (memory.silent and allocatable == 0 and not reported),
    )
    return Verdict(healthy=healthy, need_update=need_update, stamp=new_stamp, memory=after)


def _by_stamp(handshake: str | None, allocatable: int, now: datetime) -> tuple[bool, bool, str | None]:
    """Healthy, to be read again, stamp to write."""
    if handshake is None or _REQUESTING not in handshake:
        return True, True, stamp(now)
    try:
        requested = go_time.parse_naive_utc(handshake.partition("_")[2])
    except go_time.MalformedTime:
        return True, False, None
    return now - requested < GRACE or allocatable > 0, False, None
