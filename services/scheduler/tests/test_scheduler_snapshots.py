"""Snapshots in parts: whole, bounded, and gone once they were fetched."""

from __future__ import annotations

import gzip
import random

import hami_engine as engine
import msgspec
import pytest
from hami_scheduler.core import snapshots
from hami_scheduler.core.snapshots import SnapshotQuestion, Snapshots


@pytest.mark.parametrize("size", [1, snapshots.PART_BYTES, snapshots.PART_BYTES + 1, 3 * snapshots.PART_BYTES])
def test_the_parts_are_the_whole_and_fit_a_message(size: int) -> None:
    kept = Snapshots()
    whole = random.Random(size).randbytes(size)  # noqa: S311
    first = kept.keep(whole)
    answers = [first]
    for number in range(1, first.parts):
        answer = kept.part(SnapshotQuestion(ticket=first.ticket, part=number))
        assert answer is not None
        answers.append(answer)
    assert b"".join(answer.data for answer in answers) == whole
    assert all(len(msgspec.json.encode(answer)) < 1_000_000 for answer in answers)
    assert kept.part(SnapshotQuestion(ticket=first.ticket, part=0)) is None


def test_only_the_last_few_are_kept() -> None:
    kept = Snapshots()
    answers = [kept.keep(bytes([number]) * (snapshots.PART_BYTES + 1)) for number in range(6)]
    found = [kept.part(SnapshotQuestion(ticket=answer.ticket, part=1)) is not None for answer in answers]
    assert found == [False, False, True, True, True, True]
    assert kept.part(SnapshotQuestion(ticket="unknown", part=0)) is None
    assert kept.part(SnapshotQuestion(ticket=answers[0].ticket, part=-1)) is None


def test_equal_states_give_equal_files() -> None:
    cluster = engine.Cluster(families=[engine.Family(word="V")])
    written = snapshots.write(cluster, [], anonymise=False)
    assert snapshots.write(cluster.copy(), [], anonymise=True) == written
    assert engine.Cluster.from_snapshot(gzip.decompress(written)).nodes() == []
