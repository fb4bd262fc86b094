"""The engine's state as a file, handed out in parts that fit one NATS message each.

The file carries the pods that wait, with what the state answers to them now: `hami-engine replay` compares.
"""

from __future__ import annotations

import gzip
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

import hami_engine as engine
import msgspec

from hami_scheduler.core import engine_values
from hami_scheduler.core.waking import RejectedPod

WAITING_MAX: Final = 20
PART_BYTES: Final = 600_000
"""In base64 some 800,000: below the 1 MiB that NATS takes unless told otherwise."""
_KEPT_MAX: Final = 4
_COMPRESSION: Final = 4
"""Four times as fast as the best, and a fifth larger."""


class SnapshotQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    anonymise: bool = False
    """Names and UIDs become numbers that sort as they did."""
    recorded: bool = False
    """The last steps and the state before them, where they are recorded, in place of the present state."""
    ticket: str = ""
    """From the answer to the first question. Empty: take a snapshot now."""
    part: int = 0
    """Which part of it, from 0."""


class SnapshotAnswer(msgspec.Struct, frozen=True, kw_only=True):
    ticket: str
    parts: int
    part: int
    data: bytes
    """Base64 on the wire. All parts one after the other are the file, compressed by gzip."""


class Snapshots:
    """The last few snapshots, compressed, until all of their parts have been fetched."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, list[bytes]] = OrderedDict()

    def keep(self, written: bytes) -> SnapshotAnswer:
        """Keeps a snapshot; the answer is its first part."""
        ticket = sha256(written).hexdigest()[:16]
        self._kept[ticket] = [written[start : start + PART_BYTES] for start in range(0, len(written), PART_BYTES)]
        self._kept.move_to_end(ticket)
        if len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)
        return self._answer(ticket, 0)

    def part(self, question: SnapshotQuestion) -> SnapshotAnswer | None:
        """None: the snapshot is not kept any more, or has no such part."""
        parts = self._kept.get(question.ticket)
        if parts is None or not 0 <= question.part < len(parts):
            return None
        return self._answer(question.ticket, question.part)

    def _answer(self, ticket: str, part: int) -> SnapshotAnswer:
        parts = self._kept[ticket]
        if part == len(parts) - 1:
            del self._kept[ticket]
        return SnapshotAnswer(ticket=ticket, parts=len(parts), part=part, data=parts[part])


def waiting(cluster: engine.Cluster, rejected: Iterable[RejectedPod]) -> list[tuple[engine.PodAsk, list[str] | None]]:
    """The questions of pods that wait: the most important, then the oldest ones, with their candidates."""
    every = set(cluster.nodes())
    ordered = sorted(rejected, key=lambda pod: (-pod.priority, pod.created_at, pod.uid))
    return [
        (engine_values.pod_ask(pod.request), None if set(pod.candidates) == every else list(pod.candidates))
        for pod in ordered[:WAITING_MAX]
    ]


def write(
    cluster: engine.Cluster, questions: list[tuple[engine.PodAsk, list[str] | None]], *, anonymise: bool
) -> bytes:
    """The file, compressed. Takes long where the cluster is large; may run beside the loop."""
    return gzip.compress(cluster.snapshot(questions=questions, anonymise=anonymise), _COMPRESSION, mtime=0)


def write_recorded(cluster: engine.Cluster, *, anonymise: bool) -> bytes | None:
    """The recorded steps as a file, compressed; None where none are recorded."""
    recorded = cluster.recorded(anonymise=anonymise)
    return gzip.compress(recorded, _COMPRESSION, mtime=0) if recorded is not None else None
