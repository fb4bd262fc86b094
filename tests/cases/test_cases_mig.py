"""Cases of cards in MIG mode, as far as placing goes, by what the ledger decides and books."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hami_model import device_config, keys, kube
from hami_model.cards import MigPlacement
from hami_model.ids import AllocationId
from hami_scheduler.core import binding, queries
from hami_scheduler.core.filter import FilterAnswer, filter_pod
from hami_scheduler.core.ledger import Ledger

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ALLOCATED = "hami.io/vgpu-devices-allocated"
RESERVED = "hami.io/vgpu-mig-allocations"
PROFILES = [
    {
        "name": name,
        "memoryMB": memory,
        "core": cores,
        "sliceCount": slices,
        "placements": [{"start": start, "size": size} for start in starts],
    }
    for name, memory, cores, slices, size, starts in (
        ("1g.5gb", 4864, 15, 1, 1, range(7)),
        ("2g.10gb", 9856, 29, 2, 2, (0, 2, 4)),
        ("3g.20gb", 19968, 43, 3, 4, (0, 4)),
    )
]


def card(card_id: str, **fields: Any) -> dict[str, Any]:
    own = {"id": card_id, "count": 7, "devmem": 40960, "devcore": 100, "type": "NVIDIA A100", "health": True}
    return {**own, "mode": "mig", "migProfiles": PROFILES, **fields}


def book_of(*cards: dict[str, Any]) -> Ledger:
    book = Ledger(device_config.default_config())
    annotations = {"hami.io/node-nvidia-register": json.dumps(cards)}
    allocatable: dict[str, str | int | float] = {"nvidia.com/gpu": "14"}
    found = kube.Node(
        metadata=kube.Metadata(name="n1", annotations=annotations), status=kube.NodeStatus(allocatable=allocatable)
    )
    book.upsert_node(found, NOW)
    return book


def pod(name: str, *memories: int, node: str = "", annotations: dict[str, str] | None = None) -> kube.Pod:
    containers = [
        kube.Container(
            name=f"c{number}",
            resources=kube.Resources(limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(memory)}),
        )
        for number, memory in enumerate(memories)
    ]
    return kube.Pod(
        metadata=kube.Metadata(name=name, namespace="default", uid=name, annotations=annotations or {}),
        spec=kube.PodSpec(node_name=node, containers=containers),
    )


def place(book: Ledger, wanted: kube.Pod) -> FilterAnswer:
    return filter_pod(book, wanted, ["n1"], allocation_id=AllocationId(f"id-{wanted.uid}"), now=NOW)


def reason(book: Ledger, wanted: kube.Pod) -> str:
    answer = place(book, wanted)
    return {**answer.failed_nodes, **answer.unresolvable_nodes}["n1"]


def reserved(*slices: tuple[str, int, str, int, int]) -> str:
    """Card, container, profile, start and size of each."""
    found = [
        {
            "containerIndex": container,
            "deviceIndex": 0,
            "gpuUUID": card_id,
            "profile": profile,
            "placement": {"start": start, "size": size},
        }
        for card_id, container, profile, start, size in slices
    ]
    return json.dumps(found, separators=(",", ":"))


@pytest.mark.case("MIG-01")
@pytest.mark.parametrize("suffix", ["[0-1]", "[0-3]"])
def test_an_instance_named_by_a_layout_of_old_blocks_its_card(suffix: str) -> None:
    # Nodes tell no such layout any more, so nobody can say which slices slot 1 or 3 is: none of the card is free.
    book = book_of(card("A"), card("B"))
    book.upsert_pod(pod("old", 4864, node="n1", annotations={ALLOCATED: f"A{suffix},NVIDIA,4864,15:;"}), NOW)
    assert place(book, pod("p", 1000)).annotations[ALLOCATED].startswith("B,")
    assert reason(book, pod("q", 40960)) == "1/2 CardInsufficientMemory, 1/2 CardNotHealth"
    book.remove_pod("old")
    assert place(book, pod("r", 1000, 1000)).reservation is not None
    # On a card in another mode the id names nothing.
    plain = book_of(card("A", mode="hami-core", migProfiles=[]))
    plain.upsert_pod(pod("old", 4864, node="n1", annotations={ALLOCATED: f"A{suffix},NVIDIA,4864,15:;"}), NOW)
    assert place(plain, pod("p", 40960)).reservation is not None


@pytest.mark.case("MIG-02")
@pytest.mark.parametrize(("asked", "given"), [(4864, "4864,15"), (5000, "9856,29"), (5120, "9856,29")])
def test_the_smallest_profile_that_has_the_memory_is_given(asked: int, given: str) -> None:
    assert place(book_of(card("A")), pod("p", asked)).annotations[ALLOCATED] == f"A,NVIDIA,{given}:;"


@pytest.mark.case("MIG-02")
def test_more_memory_than_any_profile_has_finds_no_place() -> None:
    assert reason(book_of(card("A")), pod("p", 19969)) == "1/1 CardMigTopologyInfeasible"


@pytest.mark.case("MIG-09")
def test_running_instances_keep_their_places() -> None:
    book = book_of(card("A"))
    held = reserved(("A", 0, "1g.5gb", 1, 1), ("A", 1, "1g.5gb", 5, 1))
    devices = "A,NVIDIA,4864,15:;A,NVIDIA,4864,15:;"
    book.upsert_pod(pod("old", 4864, 4864, node="n1", annotations={ALLOCATED: devices, RESERVED: held}), NOW)
    assert reason(book, pod("p", 19968)) == "1/1 CardMigTopologyInfeasible"
    assert place(book, pod("q", 9000)).annotations[RESERVED] == reserved(("A", 0, "2g.10gb", 2, 2))


def test_a_reservation_holds_its_place_from_the_decision_on_and_the_binding_carries_it() -> None:
    book = book_of(card("A"))
    answer = place(book, pod("p", 10000, 4000))
    expected = reserved(("A", 0, "3g.20gb", 4, 4), ("A", 1, "1g.5gb", 3, 1))
    assert answer.annotations[RESERVED] == expected
    assert place(book, pod("q", 4000)).annotations[RESERVED] == reserved(("A", 0, "1g.5gb", 2, 1))

    assert answer.reservation is not None
    carried = binding.binding_map(answer.reservation, book.config, NOW).annotations
    assert carried[RESERVED] == expected
    book.confirm("p", answer.reservation.allocation_id)
    bound = pod("p", 10000, 4000, node="n1", annotations={**carried, keys.ALLOCATION_ID: "id-p"})
    book.upsert_pod(bound, NOW)
    filled = carried[RESERVED].replace(
        '"size":4}', '"size":4},"migUUID":"MIG-1","gpuInstanceID":0,"computeInstanceID":0'
    )
    book.upsert_pod(pod("p", 10000, 4000, node="n1", annotations={**carried, RESERVED: filled}), NOW)
    state = queries.state(book, queries.StateQuestion(node="n1"), 0).nodes[0].cards[0]
    assert [(held.profile, held.placement) for held in state.instances] == [
        ("1g.5gb", MigPlacement(start=2, size=1)),
        ("1g.5gb", MigPlacement(start=3, size=1)),
        ("3g.20gb", MigPlacement(start=4, size=4)),
    ]
    assert (state.mode, state.used_memory_mib) == ("mig", 19968 + 2 * 4864)


@pytest.mark.parametrize(
    "text",
    ["{", "[null]", reserved(("A", 0, "1g.5gb", 3, 0)), reserved(("A", 0, "1g.5gb", 64, 1))],
    ids=["no JSON", "null", "size 0", "beyond any card"],
)
def test_an_unreadable_reservation_blocks_the_pods_card_until_it_is_mended(text: str) -> None:
    book = book_of(card("A"), card("B"))
    broken = {ALLOCATED: "A,NVIDIA,4864,15:;", RESERVED: text}
    change = book.upsert_pod(pod("old", 4864, node="n1", annotations=broken), NOW)
    assert change.new_problem is not None
    assert RESERVED in change.new_problem
    assert place(book, pod("p", 1000)).annotations[ALLOCATED].startswith("B,")
    assert reason(book, pod("q", 40960)) == "1/2 CardInsufficientMemory, 1/2 CardNotHealth"
    mended = {**broken, RESERVED: reserved(("A", 0, "1g.5gb", 3, 1))}
    book.upsert_pod(pod("old", 4864, node="n1", annotations=mended), NOW)
    assert book.cluster.node_cards("n1")[0].instances == [("1g.5gb", (3, 1))]
    assert not book.cluster.node_cards("n1")[0].blocked


def test_a_reservation_that_another_writer_left_does_not_go_with_a_new_placement() -> None:
    book = book_of(card("A", mode="hami-core", migProfiles=[]))
    answer = place(book, pod("p", 1000, annotations={RESERVED: reserved(("A", 0, "1g.5gb", 0, 1))}))
    assert answer.reservation is not None
    assert binding.binding_map(answer.reservation, book.config, NOW).annotations[RESERVED] == ""
