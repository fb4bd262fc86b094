"""Who is told of when something happens to a card."""

from __future__ import annotations

import msgspec
import pytest
from hami_model import device_config, kube, vendors
from hami_model.device_config import VendorSettings
from hami_node_agent.core.card_holders import holders_of
from hami_node_agent.core.handed_out import HandedContainer, HandedOut, HandedPod, HandedSlice
from node_agent_world import allocation_annotations

NVIDIA: VendorSettings = next(
    found for found in device_config.default_config().vendors if found.vendor.word == vendors.NVIDIA
)


def pod(uid: str, card: str, phase: str = "Running") -> kube.Pod:
    return msgspec.convert(
        {
            "metadata": {
                "name": f"pod-{uid}",
                "namespace": "ns",
                "uid": uid,
                "annotations": allocation_annotations(f"{card},NVIDIA,1000,10:;"),
            },
            "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
            "status": {"phase": phase},
        },
        kube.Pod,
    )


def handed(uid: str, card: str) -> HandedPod:
    piece = HandedSlice(card_id=card, memory_mib=1000, cores_percent=10)
    container = HandedContainer(slices=(piece,), region_name="r", position=0)
    return HandedPod(namespace="ns", name=f"pod-{uid}", allocation_id="", containers={"main": container})


@pytest.mark.parametrize(
    ("seen", "in_book", "expected"),
    [
        pytest.param([pod("u", "A")], {}, ["u"], id="allocated"),
        pytest.param([pod("u", "B")], {}, [], id="another card"),
        pytest.param([pod("u", "A", "Succeeded")], {"u": "A"}, [], id="it ended, though the book has it"),
        pytest.param([pod("u", "A")], {"u": "A"}, ["u"], id="handed over, told of once"),
        pytest.param([], {"u": "A", "v": "B"}, ["u"], id="handed over before the watch brought it"),
    ],
)
def test_pods_that_hold_slices_of_a_card(seen: list[kube.Pod], in_book: dict[str, str], expected: list[str]) -> None:
    book = HandedOut({uid: handed(uid, card) for uid, card in in_book.items()})

    found = holders_of("A", seen, NVIDIA, book)

    assert [(one.namespace, one.name, one.uid) for one in found] == [("ns", f"pod-{uid}", uid) for uid in expected]
