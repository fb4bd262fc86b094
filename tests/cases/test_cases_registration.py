"""Cases of how a node's cards come into the scheduler's book and go: the handshake, of which there must be no war."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hami_model import device_config, kube
from hami_model.ids import AllocationId
from hami_scheduler.core.filter import filter_pod
from hami_scheduler.core.ledger import Ledger
from hami_scheduler.core.records import NodeChange

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HANDSHAKE = "hami.io/node-handshake"
REGISTER = json.dumps([{"id": "A", "count": 10, "devmem": 1000, "devcore": 100, "type": "NVIDIA L4", "health": True}])


class Node:
    """A node with one card. What the scheduler asks to be stamped is stamped, as the leader does."""

    def __init__(self) -> None:
        self.book = Ledger(device_config.default_config())
        self.handshakes: list[str] = []

    def see(self, handshake: str | None, allocatable: int, now: datetime = NOW) -> NodeChange:
        annotations = {"hami.io/node-nvidia-register": REGISTER}
        if handshake is not None:
            annotations[HANDSHAKE] = handshake
        found = kube.Node(
            metadata=kube.Metadata(name="n1", annotations=annotations),
            status=kube.NodeStatus(allocatable={"nvidia.com/gpu": str(allocatable)}),
        )
        change = self.book.upsert_node(found, now)
        self.handshakes += [change.stamps[HANDSHAKE]] if HANDSHAKE in change.stamps else []
        return change

    def takes_a_pod(self, now: datetime = NOW) -> bool:
        limits: dict[str, str | int | float] = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10"}
        asked = kube.Pod(
            metadata=kube.Metadata(name="p", namespace="default", uid="u"),
            spec=kube.PodSpec(containers=[kube.Container(name="c", resources=kube.Resources(limits=limits))]),
        )
        return filter_pod(self.book, asked, ["n1"], allocation_id=AllocationId("i"), now=now).reservation is not None


def requested(before: timedelta) -> str:
    return (NOW - before).strftime("Requesting_%Y-%m-%d %H:%M:%S")


@pytest.mark.case("REG-01")
def test_a_marker_of_a_node_that_was_given_up_does_not_keep_it_out() -> None:
    node = Node()

    node.see("Deleted_2026-01-01 00:00:00", allocatable=2)

    assert node.takes_a_pod()
    assert node.handshakes == ["Requesting_2026-01-01 12:00:00"]


@pytest.mark.case("REG-02")
@pytest.mark.parametrize(
    ("handshake", "allocatable", "is_taken"),
    [
        pytest.param(requested(timedelta(seconds=61)), 0, False, id="nobody answers and kubelet has no cards"),
        pytest.param(requested(timedelta(seconds=61)), 10, True, id="kubelet has cards"),
        pytest.param("Requesting_yesterday", 10, True, id="unparsable time"),
        pytest.param(None, 10, True, id="no handshake"),
    ],
)
def test_a_node_without_a_plugin_is_not_used(handshake: str | None, allocatable: int, is_taken: bool) -> None:
    node = Node()

    node.see(handshake, allocatable)

    assert node.takes_a_pod() is is_taken


@pytest.mark.case("REG-02")
def test_cards_that_kubelet_lost_go_at_once_and_come_back_with_it() -> None:
    node, taken = Node(), []
    for allocatable in (10, 0, 10):
        node.see(requested(timedelta(seconds=61)), allocatable)
        taken.append(node.takes_a_pod())

    assert taken == [True, False, True]


@pytest.mark.case("REG-03")
def test_its_own_stamp_is_not_written_again() -> None:
    node = Node()
    node.see(None, 10)
    for seconds in range(0, 150, 15):
        node.see(node.handshakes[-1], 10, NOW + timedelta(seconds=seconds))

    assert node.handshakes == ["Requesting_2026-01-01 12:00:00"]
