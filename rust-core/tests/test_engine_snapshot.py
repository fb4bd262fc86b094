"""Snapshots from Python, and the command that replays them."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hami_engine import Card, Cluster, ContainerSlices, Placement, PodAsk, Slice

COMMAND = [sys.executable, "-c", "import sys; from hami_engine.command import main; sys.exit(main())"]
MakeCards = Callable[..., list[Card]]
MakePod = Callable[..., PodAsk]


def hami_engine(*arguments: str, given: bytes | None = None) -> tuple[int, str, str]:
    done = subprocess.run([*COMMAND, *arguments], input=given, capture_output=True, check=False, timeout=60)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_a_state_comes_back_and_decides_alike(cluster: Cluster, pod: MakePod, cards: MakeCards) -> None:
    cluster.set_node("b", cards("b", 3), pair_scores={"b-0": {"b-1": 5}})
    cluster.set_quota("default", "NVIDIA", memory_mib=30_000)
    cluster.reserve(pod("one", (1, 4000, 10)))
    again = Cluster.from_snapshot(cluster.snapshot())
    assert again.snapshot() == cluster.snapshot()
    assert again.check_invariants() == []
    asked = pod("two", (2, 3000, 0), card_policy="topology-aware")
    ours, theirs = cluster.reserve(asked), again.reserve(asked)
    assert isinstance(ours, Placement)
    assert isinstance(theirs, Placement)
    assert (theirs.node, theirs.containers) == (ours.node, ours.containers)
    assert again.snapshot() == cluster.snapshot()


def test_questions_carry_their_answers_and_are_replayed(cluster: Cluster, pod: MakePod, tmp_path: Path) -> None:
    questions = [(pod("fits", (1, 4000, 0)), None), (pod("waits", (3, 1, 0)), ["a", "unknown"])]
    written = cluster.snapshot(questions=questions)
    assert cluster.snapshot() == Cluster.from_snapshot(written).snapshot()
    file = tmp_path / "state.json"
    file.write_bytes(written)
    status, out, err = hami_engine("replay", str(file))
    assert (status, err) == (0, "")
    assert "2 decisions, 0 differ" in out
    answers = [next(iter(step.values()))["answer"] for step in json.loads(written)["operations"]]
    assert answers[0]["placed"]["node"] == "a"
    assert answers[1]["rejected"]["reasons"] == {"NodeInsufficientDevice": 1, "NodeUnregistered": 1}


def test_an_anonymous_snapshot_names_nobody_and_answers_alike(cluster: Cluster, pod: MakePod) -> None:
    cluster.reserve(pod("secret-uid", (1, 4000, 0)))
    written = cluster.snapshot(questions=[(pod("secret-name", (1, 4000, 0)), ["a"])], anonymise=True)
    assert b"secret" not in written
    assert b"default" not in written
    assert hami_engine("replay", "-", given=written)[0] == 0


def test_the_command_answers_for_itself() -> None:
    status, out, _ = hami_engine("--help")
    assert status == 0
    assert "hami-engine replay FILE" in out
    status, out, err = hami_engine("replay", "no-such-file")
    assert (status, out) == (2, "")
    assert "no-such-file" in err


@pytest.mark.parametrize(
    ("written", "place"),
    [
        (b"", "line 1, column 0"),
        (b"\xff", "line 1, column 1"),
        (b'{"format": "else", "version": 1}', "format"),
        (b'{"format": "hami-engine-snapshot", "version": 9}', "version 9"),
        (b'{"format": "hami-engine-snapshot", "version": 1, "families": [{}]}', r"families\[0\]"),
    ],
)
def test_what_is_malformed_is_a_value_error_with_its_place(written: bytes, place: str) -> None:
    with pytest.raises(ValueError, match=place):
        Cluster.from_snapshot(written)


def test_a_snapshot_beside_decisions_is_a_state_that_was(cluster: Cluster, pod: MakePod) -> None:
    """Writing it takes no lock for long; what it holds is whole."""
    stop = threading.Event()

    def place() -> None:
        while not stop.is_set():
            cluster.reserve(pod("one", (2, 5000, 0)))
            cluster.release("one")

    worker = threading.Thread(target=place)
    worker.start()
    try:
        for _ in range(50):
            again = Cluster.from_snapshot(cluster.snapshot())
            assert again.check_invariants() == []
            assert again.booked("one") in ({}, {"a-0": (5000, 0, 1), "a-1": (5000, 0, 1)})
    finally:
        stop.set()
        worker.join()


def test_the_last_steps_are_kept_with_the_state_before_them(cluster: Cluster, pod: MakePod, cards: MakeCards) -> None:
    assert cluster.recorded() is None
    cluster.reserve(pod("before", (1, 1000, 0)))
    cluster.record(8)
    cluster.set_node("b", cards("b", 1), pair_scores={"b-0": {"b-1": 1}})
    with pytest.raises(ValueError, match="twice"):
        cluster.set_node("c", [*cards("c", 1), *cards("c", 1)])
    cluster.set_quota("default", "NVIDIA", memory_mib=9000)
    cluster.set_card_health("a", "a-0", healthy=False)
    cluster.set_node_host("a", (1000, 2000))
    cluster.set_workload(None)
    cluster.charge(
        uid="held",
        namespace="default",
        node="b",
        containers=[
            ContainerSlices(kind="init"),
            ContainerSlices(
                kind="app", slices=[Slice(card_id="b-0", vendor="NVIDIA", memory_mib=500, cores_percent=5)]
            ),
        ],
        blocked_cards=["b-7"],
    )
    cluster.reserve(pod("fits", (1, 1000, 0)), ["b", "a"])
    cluster.reserve(pod("waits", (1, 9000, 0)), ["a", "b"])
    cluster.confirm("fits")
    cluster.release("before")
    cluster.remove_node("b")
    recorded = cluster.recorded()
    assert recorded is not None
    steps = [next(iter(step)) for step in json.loads(recorded)["operations"]]
    assert steps == [
        "set_node_host", "set_workload", "charge", "reserve", "reserve", "confirm", "release", "remove_node"
    ]  # fmt: skip
    assert b'"before"' in recorded
    assert recorded.count(b'"candidates": null') == 2  # every registered node
    status, out, err = hami_engine("replay", "-", given=recorded)
    assert (status, err) == (0, "")
    assert "2 decisions, 0 differ" in out
    hidden = cluster.recorded(anonymise=True)
    assert hidden is not None
    assert b"fits" not in hidden.replace(b"fitting_nodes", b"")
    assert hami_engine("replay", "-", given=hidden)[0] == 0
    cluster.record(0)
    assert cluster.recorded() is None
