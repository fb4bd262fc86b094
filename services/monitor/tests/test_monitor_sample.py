"""Joining regions with pods and cards: what is said of a slice and of a card, and what is left out."""

from __future__ import annotations

import struct

import pytest
from hami_model import events
from hami_monitor.core.announcements import usage_events
from hami_monitor.core.container_folder import FolderOwner
from hami_monitor.core.host import HostProcess
from hami_monitor.core.pods import MIRROR_KEY
from hami_monitor.core.region_layouts import V1
from hami_monitor.core.sample import Sample, SliceUse
from hypothesis import given
from hypothesis import strategies as st
from monitor_builders import (
    CARD_A,
    CARD_B,
    MIB,
    NODE,
    Slot,
    folder,
    host_card,
    pod,
    read_bytes,
    region,
    region_bytes,
    sample,
)

MAIN = FolderOwner(pod_uid="uid-p", container="main")


def only_slice(found: Sample) -> SliceUse:
    (use,) = found.slices
    return use


def test_a_slice_is_told_with_promise_limit_and_use() -> None:
    found = sample(
        [pod()],
        [folder(found=region(limits={0: 3000 * MIB}, cores={0: 30}, slots=[Slot(used={0: 7}, busy={0: 20})],
                             last_kernel_time=99))],
        [host_card()],
    )  # fmt: skip
    use = only_slice(found)
    assert (use.memory_promised_bytes, use.cores_promised_percent) == (3000 * MIB, 30)
    assert (use.memory_limit_bytes, use.cores_limit_percent) == (3000 * MIB, 30)
    assert (use.memory_used_bytes, use.cores_used_percent, use.processes) == (7, 20, 1)
    assert use.last_launch_at_seconds == 99


def test_without_a_region_only_the_promise_is_known() -> None:
    use = only_slice(sample([pod()], [folder()], [host_card()]))
    assert (use.memory_promised_bytes, use.memory_used_bytes, use.memory_limit_bytes) == (3000 * MIB, None, None)


def test_a_region_that_names_no_card_yet_tells_nothing_of_use() -> None:
    use = only_slice(sample([pod()], [folder(found=region(cards=(), limits={0: 5}))], [host_card()]))
    assert use.memory_used_bytes is None


def test_cards_are_matched_by_id_and_not_by_place() -> None:
    allocated = f"{CARD_B},NVIDIA,1000,0:{CARD_A},NVIDIA,2000,0:;"
    found = region(cards=(CARD_A, CARD_B), slots=[Slot(used={0: 1, 1: 2})])
    uses = {use.card_id: use for use in sample([pod(allocated=allocated)], [folder(found=found)]).slices}
    assert (uses[CARD_A].memory_promised_bytes, uses[CARD_A].memory_used_bytes) == (2000 * MIB, 1)
    assert (uses[CARD_B].memory_promised_bytes, uses[CARD_B].memory_used_bytes) == (1000 * MIB, 2)


def test_every_container_has_its_own_region() -> None:
    found = sample(
        [pod(allocated=f"{CARD_A},NVIDIA,10,0:;{CARD_A},NVIDIA,20,0:;", init=("setup",), containers=("main",))],
        [
            folder(container="setup", found=region(slots=[Slot(used={0: 1})])),
            folder(found=region(slots=[Slot(used={0: 2})])),
        ],
    )
    assert [
        (use.container, use.kind, use.memory_promised_bytes // MIB, use.memory_used_bytes) for use in found.slices
    ] == [
        ("setup", "init", 10, 1),
        ("main", "app", 20, 2),
    ]


def test_use_of_a_card_that_was_not_promised_is_told_when_the_node_has_the_card() -> None:
    found = region(cards=(CARD_A, CARD_B), slots=[Slot(used={1: 5})])
    told = sample([pod()], [folder(found=found)], [host_card(), host_card(CARD_B, 1)])
    assert [(use.card_id, use.memory_promised_bytes, use.memory_used_bytes) for use in told.slices] == [
        (CARD_A, 3000 * MIB, 0),
        (CARD_B, 0, 5),
    ]
    assert len(sample([pod()], [folder(found=found)], [host_card()]).slices) == 1


@pytest.mark.case("MON-01")
@pytest.mark.parametrize("name", [b"\xff\xfe", b"GPU-\x01", b"x" * 96, b"GPU-" + b"a" * 92, b'GPU-"} 1\n', b"GPU-"])
def test_what_is_no_id_of_a_card_has_no_row(name: bytes) -> None:
    found = region(cards=(name,), slots=[Slot(used={0: 5})])
    assert [use.card_id for use in sample([pod()], [folder(found=found)], [host_card()]).slices] == [CARD_A]


@pytest.mark.case("MON-01")
def test_a_field_before_the_ids_drops_their_rows() -> None:
    data = region_bytes(slots=[Slot(used={0: 5})])
    shifted = data[:56] + bytes(32) + data[56:]
    use = only_slice(sample([pod()], [folder(found=read_bytes(shifted))], [host_card()]))
    assert use.memory_used_bytes is None


def test_more_memory_than_the_card_has_is_no_fact() -> None:
    found = region(slots=[Slot(used={0: 2**64 - 4096})])
    told = sample([pod()], [folder(found=found)], [host_card()])
    assert only_slice(told).memory is None
    assert told.implausible == 1
    unseen = sample([pod()], [folder(found=found)], problem="no driver")
    assert only_slice(unseen).memory is None


def test_more_of_one_part_than_the_card_has_is_no_fact() -> None:
    data = bytearray(region_bytes(slots=[Slot(used={0: 5})]))
    struct.pack_into("<Q", data, V1.slots + V1.used.start + V1.used.context, 2**64 - 4096)
    told = sample([pod()], [folder(found=read_bytes(bytes(data)))], [host_card()])
    assert only_slice(told).memory is None
    assert told.implausible == 1


def test_an_annotation_of_thousands_of_cards_has_few_series() -> None:
    cards = [f"GPU-{number}" for number in range(3000)] + ["GPU-" + "x" * 200, 'GPU-"}']
    told = sample([pod(allocated="".join(f"{card},NVIDIA,1,1:" for card in cards) + ";")])
    assert [use.card_id for use in told.slices] == cards[:64]
    odd = sample([pod(allocated=f"{cards[-2]},NVIDIA,1,1:{cards[-1]},NVIDIA,1,1:;")])
    assert odd.slices == ()


@pytest.mark.case("MON-06")
@pytest.mark.parametrize(
    ("busy", "told"), [((100, 100, 100), 100), ((20, 30), 50), ((2**64 - 5,), None), ((2**63 + 1,), None)]
)
def test_utilisation_is_a_share_of_one_card(busy: tuple[int, ...], told: int | None) -> None:
    found = region(slots=[Slot(pid=number, busy={0: one}) for number, one in enumerate(busy)])
    assert only_slice(sample([pod()], [folder(found=found)])).cores_used_percent == told


def test_the_drivers_measure_of_a_containers_processes_comes_first() -> None:
    cards = [
        host_card(CARD_A, 0, HostProcess(pid=5, utilisation_percent=12), HostProcess(pid=6, utilisation_percent=80))
    ]
    found = folder(found=region(slots=[Slot(busy={0: 99})]))
    assert only_slice(sample([pod()], [found], cards, {5: MAIN})).cores_used_percent == 12


def test_finished_pods_and_ended_containers_use_nothing() -> None:
    used = region(slots=[Slot(used={0: 5})])
    assert sample([pod(phase="Succeeded")], [folder(found=used)], [host_card()]).slices == ()
    ended = sample([pod(ended=("main",))], [folder(found=used)], [host_card()])
    assert ended.slices == ()
    assert ended.folder_states == {"ended": 1}
    assert ended.cards[0].memory_promised_bytes == 3000 * MIB


@pytest.mark.case("MON-14")
def test_a_pod_that_is_gone_is_gone_from_the_next_sample() -> None:
    assert sample([pod()], [], [host_card()]).cards[0].memory_promised_bytes == 3000 * MIB
    after = sample([], [folder(found=region())], [host_card()])
    assert (after.slices, after.cards[0].memory_promised_bytes, after.cards[0].pods) == ((), 0, ())
    assert after.folder_states == {"unknown-pod": 1}


def test_a_card_carries_what_its_pods_are_promised_and_who_runs_on_it() -> None:
    cards = [host_card(CARD_A, 0, HostProcess(pid=5, memory_used_bytes=9), HostProcess(pid=6))]
    told = sample([pod(), pod("q", f"{CARD_A},NVIDIA,1000,10:;")], [], cards, {5: MAIN})
    (card,) = told.cards
    assert (card.memory_promised_bytes, card.cores_promised_percent) == (4000 * MIB, 40)
    assert [ref.name for ref in card.pods] == ["p", "q"]
    assert {pid: user.pod.name if user.pod else "" for pid, user in card.users.items()} == {5: "p", 6: ""}


def test_a_static_pod_is_found_by_the_uid_that_kubelet_uses() -> None:
    mirror = pod("static", annotations={MIRROR_KEY: "uid-p"})
    (use,) = sample([mirror], [folder(found=region(slots=[Slot(used={0: 5})]))], [host_card()]).slices
    assert (use.pod.name, use.memory_used_bytes) == ("static", 5)


def test_nobody_takes_a_region_by_calling_itself_a_mirror() -> None:
    thief = pod("a", annotations={MIRROR_KEY: "uid-p"})
    told = sample([thief, pod()], [folder(found=region(slots=[Slot(used={0: 5})]))], [host_card()])
    assert [(use.pod.name, use.memory_used_bytes) for use in told.slices] == [("a", None), ("p", 5)]
    second = pod("b", annotations={MIRROR_KEY: "uid-static"})
    told = sample([pod("a", annotations={MIRROR_KEY: "uid-static"}), second], [])
    assert [use.pod.name for use in told.slices] == ["a", "b"]


def test_a_malformed_allocation_is_told_as_far_as_it_can_be_read() -> None:
    told = sample([pod(allocated=f"{CARD_A},NVIDIA,3000:;")], [], [host_card()])
    assert (told.slices, told.cards[0].memory_promised_bytes) == ((), 0)


def test_events_of_a_sample() -> None:
    cards = [
        host_card(CARD_A, 0, HostProcess(pid=5, memory_used_bytes=9), temperature_celsius=40, power_milliwatts=50_000)
    ]
    told = sample([pod(), pod("idle", "")], [folder(found=region(slots=[Slot(used={0: 7})]))], cards, {5: MAIN})
    usage, node = usage_events(told, source="/hami/monitor/n1")
    assert isinstance(usage, events.UsageSampled)
    assert (usage.pod.name, usage.node, usage.subject()) == ("p", NODE, "hami.v1.usage.team.n1.uid-p")
    ((container,),) = [usage.containers]
    assert (container.container, container.cards[0].memory_used_bytes) == ("main", 7)
    assert isinstance(node, events.UsageNodeSampled)
    (card,) = node.cards
    assert (card.temperature_celsius, card.power_milliwatts, card.memory_promised_bytes) == (40, 50_000, 3000 * MIB)
    assert card.processes[0].used_by == usage.pod
    assert card.used_by == (usage.pod,)
    assert events.decode(events.encode(node)) == node


def test_without_a_driver_pods_are_told_and_cards_are_not() -> None:
    told = sample([pod()], [folder(found=region())], problem="no driver")
    assert [type(event) for event in usage_events(told, source="s")] == [events.UsageSampled]


@given(
    names=st.lists(st.binary(min_size=1, max_size=96), max_size=16),
    used=st.lists(st.integers(0, 2**64 - 1), min_size=16, max_size=16),
    busy=st.integers(0, 2**64 - 1),
)
def test_no_region_makes_a_sample_that_cannot_be_told(names: list[bytes], used: list[int], busy: int) -> None:
    slots = [Slot(used=dict(enumerate(used)), busy=dict.fromkeys(range(16), busy))]
    told = sample([pod()], [folder(found=region(cards=names, slots=slots))], [host_card()])
    for event in usage_events(told, source="s"):
        assert events.decode(events.encode(event)) == event
    for use in told.slices:
        assert use.memory_used_bytes is None or use.memory_used_bytes <= 40960 * MIB
        assert use.cores_used_percent is None or 0 <= use.cores_used_percent <= 100
