"""Who may launch: containers that share a card, by priority and by who is at work.

Once a period the monitor looks at every region. A container that launched since the look before is active. On each
card:

    blocked     a container of more urgent priority (a smaller number) is active: launches wait
    contended   blocked, or another one of its own priority is active too: its share of compute is held

Alone on its cards a container is not contended, and under the default policy its library lets it have what is free.
The library writes 2 into `recent_kernel` at a launch; each look takes one away, so that 1 is left of whoever launched
since the last. HAMi's library does not write it while its compute is not limited: there `last_kernel_time` tells, which
it moves on at every launch.

A container stays active for `hold_ticks` looks after its last launch, so that short pauses of urgent work do not let
others in and out. HAMi's monitor has no such thing: 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from hami_monitor.core.container_folder import FolderOwner
from hami_monitor.core.region_words import RegionWords, WordChange, layout_named

BLOCKED: Final = -1
HELD: Final = 1
"""The utilisation switch: compute is limited."""
FREE: Final = 0


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """One container, as the look finds it."""

    owner: FolderOwner
    card_ids: frozenset[str]
    """Cards that it may use and that its region names."""
    priority: int
    words: RegionWords


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of one container until the next look."""

    quiet_ticks: int
    """Looks since it launched; 0: it launched before this one."""
    last_kernel_time_seconds: int


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of one container's words."""

    owner: FolderOwner
    is_active: bool
    is_blocked: bool
    is_contended: bool
    recent_kernel: int
    utilisation_switch: int
    blocked_by: FolderOwner | None = None
    """The most urgent of those that are active on its cards."""


class Feedback(msgspec.Struct, frozen=True, kw_only=True):
    """One look's outcome."""

    verdicts: tuple[Verdict, ...] = ()
    activities: dict[FolderOwner, Activity] = {}
    """For the next look."""


def decide(before: Mapping[FolderOwner, Activity], contenders: Iterable[Contender], *, hold_ticks: int) -> Feedback:
    """`before`: the activities of the look before."""
    contenders = tuple(contenders)
    activities = {one.owner: _activity(one.words, before.get(one.owner), hold_ticks) for one in contenders}
    active = [one for one in contenders if activities[one.owner].quiet_ticks <= hold_ticks]
    by_card: dict[str, list[Contender]] = {}
    for one in active:
        for card_id in one.card_ids:
            by_card.setdefault(card_id, []).append(one)
    most_urgent = {card_id: min(there, key=lambda one: one.priority) for card_id, there in by_card.items()}
    counts = Counter((card_id, one.priority) for card_id, there in by_card.items() for one in there)
    return Feedback(
        verdicts=tuple(
            _verdict(one, activities[one.owner].quiet_ticks <= hold_ticks, most_urgent, counts) for one in contenders
        ),
        activities=activities,
    )


def changes(words: RegionWords, verdict: Verdict) -> tuple[WordChange, ...]:
    """What is to be written so that the words say what was decided. A launch that comes in between is not undone,
    unless the container is to be blocked."""
    layout = layout_named(words.layout)
    wanted = (
        (layout.recent_kernel, words.recent_kernel, verdict.recent_kernel),
        (layout.utilisation_switch, words.utilisation_switch, verdict.utilisation_switch),
    )
    return tuple(
        WordChange(offset=offset, value=value, expected=None if value < 0 else found)
        for offset, found, value in wanted
        if found != value
    )


def released(words: RegionWords) -> tuple[WordChange, ...]:
    """What is to be written when nobody looks any more: nobody waits, and everybody is held to his share."""
    layout = layout_named(words.layout)
    found = []
    if words.recent_kernel < 0:
        found.append(WordChange(offset=layout.recent_kernel, value=0, expected=words.recent_kernel))
    if words.utilisation_switch == FREE:
        found.append(WordChange(offset=layout.utilisation_switch, value=HELD, expected=FREE))
    return tuple(found)


def _activity(words: RegionWords, before: Activity | None, hold_ticks: int) -> Activity:
    never = hold_ticks + 1
    launched = words.recent_kernel > 1 or (
        before is not None and words.last_kernel_time_seconds > before.last_kernel_time_seconds
    )
    if words.recent_kernel < 0:
        quiet = never  # it waits: whoever it would keep out need not wait for it
    elif launched:
        quiet = 0
    else:
        quiet = min(before.quiet_ticks + 1, never) if before is not None else never
    return Activity(quiet_ticks=quiet, last_kernel_time_seconds=words.last_kernel_time_seconds)


def _verdict(
    one: Contender, is_active: bool, most_urgent: Mapping[str, Contender], counts: Mapping[tuple[str, int], int]
) -> Verdict:
    ahead = [
        most_urgent[card_id]
        for card_id in sorted(one.card_ids)
        if card_id in most_urgent and most_urgent[card_id].priority < one.priority
    ]
    contended = bool(ahead) or any(counts.get((card_id, one.priority), 0) > 1 for card_id in one.card_ids)
    counted_down = one.words.recent_kernel - 1 if one.words.recent_kernel > 0 else one.words.recent_kernel
    return Verdict(
        owner=one.owner,
        is_active=is_active,
        is_blocked=bool(ahead),
        is_contended=contended,
        recent_kernel=min(counted_down, BLOCKED) if ahead else max(counted_down, 0),
        utilisation_switch=HELD if contended else FREE,
        blocked_by=min(ahead, key=lambda urgent: urgent.priority).owner if ahead else None,
    )
