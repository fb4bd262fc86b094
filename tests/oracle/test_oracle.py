"""The oracle gives the values of the rules, knows nothing of the engine, and equals it where they once differed."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import comparing
import pytest
import random_cases
import shrinking
from oracle_model.checks import NodeState
from oracle_model.choice import choose, choose_groups, choose_modules, modules_usable
from oracle_model.float32 import float32_of, to_float32
from oracle_model.fragments import booked_shapes, fragmentation, weigh
from oracle_model.groups import group_gain
from oracle_model.order import Rank, card_score, node_score, sort_key
from oracle_model.usage import Amount, effective_usage
from oracle_model.values import Ask, Booking, Card, Family, Shape, Share
from oracle_side import OracleSide

HERE = Path(__file__).parent

CARD: dict[str, Any] = {
    "id": "a-0", "vendor": "NVIDIA", "model": "NVIDIA A100", "index": 0, "slots": 10, "memory_mib": 128,
    "cores_percent": 100,
}  # fmt: skip


def test_the_oracle_imports_the_standard_library_and_itself_only() -> None:
    for file in (HERE / "oracle_model").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level <= 1, f"{file.name}: {node.module}"
                names = [] if node.level == 1 else [str(node.module)]
            for name in names:
                assert name.split(".")[0] in sys.stdlib_module_names, f"{file.name} imports {name}"


@pytest.mark.parametrize(
    ("number", "rounded"),
    [
        pytest.param(0, 0.0, id="zero"),
        pytest.param(2**24 + 1, float(2**24), id="ties go to the even one"),
        pytest.param(2**24 + 3, float(2**24 + 4), id="upwards too"),
        pytest.param(-(2**24) - 3, -float(2**24 + 4), id="negative"),
        pytest.param(2**54 + 2**30 + 1, float(2**54 + 2**31), id="beyond 53 bits, where rounding twice goes wrong"),
        pytest.param(2**63 - 1, float(2**63), id="the largest weight"),
    ],
)
def test_integers_become_the_nearest_32_bit_number(number: int, rounded: float) -> None:
    assert float32_of(number) == rounded


def test_scores_of_the_formulas() -> None:
    total = Amount(16000, 200, 20)
    assert node_score(Amount(2000, 25, 1), total) == pytest.approx(3.0)
    assert node_score(Amount(6000, 75, 1), total) == pytest.approx(8.0)
    card = Card(**{**CARD, "model": "NVIDIA", "memory_mib": 8192, "cores_percent": 4})
    asks = [Ask("NVIDIA", 1, memory_mib=1024, cores_percent=1)]
    assert card_score(card, Amount(2048, 1, 2), asks, (1, 1, 1)) == 11.75
    assert card_score(card._replace(model="NVIDIA A100"), Amount(2048, 1, 2), asks, (1, 1, 1)) == 7.0
    assert to_float32(0.1) != 0.1


@pytest.mark.parametrize(
    ("policy", "numa_bind", "preferred"),
    [
        ("spread", False, ["b", "d", "a", "c"]),
        ("binpack", False, ["c", "a", "d", "b"]),
        ("mutex", False, ["b", "d", "a", "c"]),
        ("binpack", True, ["a", "b", "c", "d"]),
        ("spread", True, ["d", "c", "b", "a"]),
        ("numa", False, ["d", "c", "b", "a"]),
        ("numa,binpack", False, ["c", "d", "a", "b"]),
        ("spread,numa", True, ["d", "c", "b", "a"]),
        (",", False, ["b", "d", "a", "c"]),
    ],
)
def test_cards_in_the_order_of_the_policies(policy: str, numa_bind: bool, preferred: list[str]) -> None:
    ranks = {
        "a": Rank(score=2.0, numa=0, index=0, used_slots=2),
        "b": Rank(score=0.0, numa=0, index=1, used_slots=0),
        "c": Rank(score=3.0, numa=1, index=2, used_slots=3),
        "d": Rank(score=1.0, numa=1, index=3, used_slots=1),
    }
    order = sorted(ranks, key=lambda card: sort_key(policy, numa_bind=numa_bind)(ranks[card]))
    assert order[::-1] == preferred


def test_phases_of_a_pod_compete_and_sidecars_add() -> None:
    def share(memory: int) -> tuple[Share, ...]:
        return (Share("a", "NVIDIA", memory, 0),)

    containers = [("init", share(4000)), ("sidecar", share(3000)), ("init", share(2000)), ("app", share(1000))]
    assert effective_usage(containers, init_done=False) == {("a", "NVIDIA"): Amount(5000, 0, 2)}
    assert effective_usage(containers, init_done=True) == {("a", "NVIDIA"): Amount(4000, 0, 2)}
    assert effective_usage([("init", share(1) * 2)], init_done=False) == {("a", "NVIDIA"): Amount(2, 0, 2)}
    assert effective_usage([("init", share(1))], init_done=True) == {}


def seen(cards: str) -> list[Share]:
    return [Share(card, "NPU", 0, 0) for card in cards]


def test_cards_are_chosen_by_how_well_they_are_connected() -> None:
    passed = seen("fedcba")
    scores = {card: {peer: 1 for peer in "abcdef" if peer != card} for card in "abcdef"}
    for card, peer in ("fa", "fc"):
        scores[card][peer] = scores[peer][card] = 100
    assert choose(passed, 3, scores) == (seen("fca"), set())
    assert choose(passed, 1, scores) == (seen("e"), set())
    assert choose(passed, 2, {}) == (seen("fe"), {"PairScoresMissing"})


@pytest.mark.parametrize(
    ("groups", "count", "chosen"),
    [
        pytest.param("010101", 2, "ec", id="of equal groups the first"),
        pytest.param(("10", "10", "9", "9", "a", "a"), 3, "dcb", id="numbers by size, other names behind them"),
        pytest.param("000111", 4, "cbaf", id="as many as fit into the first group"),
        pytest.param("001111", 3, "fed", id="the largest group"),
        pytest.param(("", "", "", "1", "1", "0"), 4, "edfc", id="unreadable ones last"),
        pytest.param((None, "0", "1", "0", "1", "0"), 2, "fe", id="one that names none"),
        pytest.param("000111", 1, "f", id="one card"),
    ],
)
def test_cards_are_chosen_by_groups(groups: tuple[str | None, ...], count: int, chosen: str) -> None:
    of_card = dict(zip("abcdef", groups, strict=True))
    assert choose_groups(seen("fedcba"), count, of_card) == seen(chosen)


def test_modules_of_two_are_taken_whole() -> None:
    indexes = {card: number for number, card in enumerate("abcdef")}
    assert modules_usable(seen("fecb"), 2, indexes) == 2
    assert choose_modules(seen("fecb"), 2, indexes) == seen("fe")
    assert choose_modules(seen("fedcba"), 4, indexes) == seen("badc")
    assert modules_usable(seen("fdb"), 2, indexes) == 0
    assert modules_usable(seen("fedcba"), 3, indexes) == 4
    assert choose_modules(seen("fdb"), 1, indexes) == seen("f")


@pytest.mark.parametrize(
    ("groups", "gain"),
    [
        ("0000", 20.0),
        ("0010", 15.0),
        (("0", "", "1", "1"), 20.0),
        (("", "", "", ""), 0.0),
        (("0", "0", "0", None), 0.0),
    ],
)
def test_cards_of_one_group_improve_the_score(groups: tuple[str | None, ...], gain: float) -> None:
    cards = [Card(**{**CARD, "id": card, "group": group}) for card, group in zip("abcd", groups, strict=True)]
    assert group_gain(cards, [seen("ab"), seen("cd")], {"NPU": Family("NPU", group_weight=10)}) == gain


def test_free_cards_that_nobody_expected_can_use_are_fragments() -> None:
    families = {"NVIDIA": Family("NVIDIA")}
    cards = tuple(Card(**{**CARD, "id": card}) for card in "ab")
    whole, half = Ask("NVIDIA", 1, memory_percent=100), Ask("NVIDIA", 1, memory_mib=64)
    shapes = weigh([Shape(1, whole), Shape(3, half), Shape(4, Ask("NVIDIA", 1, memory_mib=999))], [cards], families)
    assert shapes == (Shape(1 << 17, whole), Shape(3 << 17, half))  # who can run nowhere keeps nothing free
    used = {"a": Amount(memory_mib=32, slots=1)}
    node = NodeState(cards, {}, used, frozenset(), {}, frozenset(), {}, shapes)
    assert fragmentation(node, families) == (1 << 17) * 750_000
    pair = weigh([Shape(1, Ask("NVIDIA", 2, memory_mib=100))], [cards], families)
    assert fragmentation(node._replace(shapes=pair), families) == pair[0].weight * 1_750_000


def test_booked_pods_are_the_expected_ones_in_steps() -> None:
    cards = [Card(**{**CARD, "id": card}) for card in "ab"]
    held = (Share("a", "NVIDIA", 7, 30), Share("b", "NVIDIA", 6, 51), Share("gone", "NVIDIA", 128, 100))
    booking = Booking("p", "x", "n", "bound", (("app", held),))
    expected = [Shape(64, Ask("NVIDIA", 2, memory_percent=10, cores_percent=55))]
    assert booked_shapes([booking], {"n": cards}, {"NVIDIA": Family("NVIDIA")}) == expected


@pytest.mark.parametrize(
    ("card", "running", "ask", "text"),
    [
        ({}, [], {"memory_mib": 512}, "1/1 CardInsufficientMemory"),
        ({}, [(0, 100)], {"cores_percent": 50}, "1/1 CardInsufficientCore"),
        ({}, [(0, 0)] * 10, {}, "1/1 CardTimeSlicingExhausted"),
        ({}, [(0, 0)], {"cores_percent": 100}, "1/1 ExclusiveDeviceAllocateConflict"),
        ({}, [(0, 100)], {}, "1/1 CardComputeUnitsExhausted"),
        ({"cordoned": True}, [], {}, "1/1 CardCordoned"),
        ({"healthy": False}, [], {}, "1/1 CardNotHealth"),
        ({}, [], {"count": 2}, "NodeInsufficientDevice"),
        ({}, [], {"mode": "mps"}, "1/1 ModeNotFit"),
        ({"model": "Tesla"}, [], {}, "NodeInsufficientDevice"),
        ({}, [], {"cores_percent": 120}, None),
    ],
)
def test_a_card_says_why(card: dict[str, Any], running: list[tuple[int, int]], ask: dict[str, Any], text: str) -> None:
    oracle = OracleSide([random_cases.NVIDIA_FAMILY])
    oracle.do({"do": "set_node", "node": "a", "cards": [{**CARD, **card}]})
    for number, (memory, cores) in enumerate(running):
        held = {"card_id": "a-0", "vendor": "NVIDIA", "memory_mib": memory, "cores_percent": cores}
        oracle.do({"do": "charge", "uid": f"r{number}", "namespace": "x", "node": "a",
                   "containers": [{"kind": "app", "slices": [held]}]})  # fmt: skip
    container = {"name": "c", "kind": "app", "asks": [{"vendor": "NVIDIA", "count": 1, **ask}]}
    answer = oracle.do({"do": "reserve", "pod": {"uid": "p", "namespace": "x", "containers": [container]}})
    assert isinstance(answer, dict)
    assert {**answer.get("not_now", {}), **answer.get("never", {})}.get("a") == text


@pytest.mark.parametrize("file", sorted((HERE / "regressions").glob("*.json")), ids=lambda file: file.stem)
def test_cases_that_once_differed_agree(file: Path) -> None:
    assert comparing.compare(json.loads(file.read_text())) is None


def test_a_seed_gives_the_same_case_and_many_agree() -> None:
    for number in range(200):
        case = random_cases.random_case(7, number)
        assert case == random_cases.random_case(7, number) == json.loads(json.dumps(case))
        assert comparing.compare(case) is None, case


def test_a_failing_case_is_made_small() -> None:
    def fails(smaller: dict[str, Any]) -> bool:
        return any(step["do"] == "reserve" for step in smaller["steps"])

    cases = (random_cases.random_case(7, number) for number in range(100))
    case = next(case for case in cases if fails(case) and len(case["steps"]) > 2)
    (only,) = shrinking.shrink(case, fails)["steps"]
    assert only["do"] == "reserve"


def test_a_run_that_meets_too_little_fails(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "run_oracle.py"), "--cases", "3", "--seed", "1", "--json"]
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert (done.returncode, report["cases"], report["failure"]) == (1, 3, None)
    assert "reason DeviceTypeNotFound" in report["not_met"]
