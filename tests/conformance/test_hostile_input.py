"""No text on a node or pod stops the scheduler or makes a card look free."""

import json
from datetime import UTC, datetime

from hami_model import device_config, kube
from hami_scheduler.core.filter import filter_pod
from hami_scheduler.core.ledger import Ledger
from hypothesis import given, settings
from hypothesis import strategies as st

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REGISTER = "hami.io/node-nvidia-register"
ALLOCATED = "hami.io/vgpu-devices-allocated"

NUMBERS = st.sampled_from([0, 1, 10, -1, 2**31 - 1, -(2**31), 2**32, 2**63 - 1, -(2**63), 2**64 - 1, 1.5])
CARDS = st.fixed_dictionaries(
    {"id": st.sampled_from(["A", "B", ""])},
    optional={
        "index": NUMBERS,
        "count": NUMBERS,
        "devmem": NUMBERS,
        "devcore": NUMBERS,
        "numa": NUMBERS,
        "type": st.sampled_from(["NVIDIA A100", "", "x" * 300]),
        "mode": st.sampled_from(["hami-core", "mig", ""]),
        "health": st.booleans(),
    },
)


def node(register: str, name: str = "n1") -> kube.Node:
    return kube.Node(
        metadata=kube.Metadata(name=name, annotations={REGISTER: register}),
        status=kube.NodeStatus(allocatable={"nvidia.com/gpu": "10"}),
    )


def pod(uid: str, limits: dict[str, str], **metadata: dict[str, str]) -> kube.Pod:
    return kube.Pod(
        metadata=kube.Metadata(name=uid, namespace="team", uid=uid, **metadata),
        spec=kube.PodSpec(containers=[kube.Container(name="c", resources=kube.Resources(limits=limits))]),
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(CARDS | st.none(), max_size=4).map(json.dumps) | st.text())
def test_any_register_annotation_is_taken_or_reported(register: str) -> None:
    book = Ledger(device_config.default_config())
    book.upsert_node(node(register), NOW)
    filter_pod(
        book,
        pod("p", {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}),
        ["n1"],
        allocation_id="a",
        now=NOW,
    )
    assert book.cluster.check_invariants() == []


ITEMS = st.sampled_from(
    [
        "A,NVIDIA,1000,10",
        "A,NVIDIA,-1,0",
        "A,NVIDIA,99999999999,0",
        "A,AMD,1,1",
        "A,NVIDIA",
        "A",
        "B,NVIDIA,500,0",
        ",,,",
        "",
    ]
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(ITEMS, st.sampled_from([":", ";", ":;", ""]))).map(lambda parts: "".join(map("".join, parts)))
)
def test_any_allocation_annotation_keeps_its_cards_from_others(text: str) -> None:
    book = Ledger(device_config.default_config())
    card = {"id": "A", "count": 10, "devmem": 1000, "devcore": 100, "type": "NVIDIA A100", "health": True}
    book.upsert_node(node(json.dumps([card])), NOW)
    held = pod("old", {"nvidia.com/gpu": "1"}, annotations={ALLOCATED: text})
    book.upsert_pod(
        kube.Pod(metadata=held.metadata, spec=kube.PodSpec(node_name="n1", containers=held.spec.containers)), NOW
    )
    answer = filter_pod(book, pod("new", {"nvidia.com/gpu": "1"}), ["n1"], allocation_id="a", now=NOW)
    names_the_card = any(item.split(",")[0] == "A" for item in text.replace(";", ":").split(":"))
    assert (answer.reservation is None) == names_the_card
    assert book.cluster.check_invariants() == []
