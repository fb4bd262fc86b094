"""Claims are kept, and a change of the pod or of the book is always seen."""

from __future__ import annotations

import msgspec
from hami_model import allocations, device_config, kube, vendors
from hami_model.cards import Slice
from hami_model.ids import AllocationId, CardId, NodeName
from hami_node_agent.core.claims import Claims
from hami_node_agent.core.handed_out import HandedContainer, HandedOut, HandedPod, as_handed

CARD = CardId("GPU-1")
SETTINGS = next(found for found in device_config.default_config().vendors if found.vendor.word == vendors.NVIDIA)


def a_slice(memory_mib: int) -> Slice:
    return Slice(card_id=CARD, vendor=vendors.NVIDIA, memory_mib=memory_mib, cores_percent=5)


def pod(memory_mib: int, name: str = "p") -> kube.Pod:
    written = allocations.binding_annotations(
        NodeName("n"),
        {vendors.NVIDIA: ((a_slice(memory_mib),),)},
        device_config.default_config(),
        allocation_id=AllocationId("a"),
        now_seconds=1,
    )
    return kube.Pod(
        metadata=kube.Metadata(name=name, namespace="ns", uid="u", annotations=written.annotations),
        spec=kube.PodSpec(node_name="n", containers=[kube.Container(name="main")]),
        status=kube.PodStatus(phase="Pending"),
    )


def handed(memory_mib: int, name: str = "p") -> HandedPod:
    container = HandedContainer(slices=as_handed((a_slice(memory_mib),)), region_name="a.cache", position=0)
    return HandedPod(namespace="ns", name=name, allocation_id="a", containers={"main": container})


def test_the_same_pod_and_entry_have_the_same_claim() -> None:
    book, one = HandedOut(), pod(1000)
    claims = Claims(book, SETTINGS)
    assert claims.of(one) is claims.of(one)
    book.put("u", handed(1000))
    assert claims.of(one) is claims.of(one)


def test_a_change_of_pod_or_book_is_seen() -> None:
    book, one = HandedOut(), pod(1000)
    claims = Claims(book, SETTINGS)

    def of(found: kube.Pod) -> tuple[int, bool]:
        claim = claims.of(found)
        return claim.usage[CARD].memory_mib, claim.handed_out

    assert of(one) == (1000, False)
    assert of(pod(2000)) == (2000, False)
    book.put("u", handed(3000))
    assert of(one) == (3000, True)
    book.put("u", msgspec.structs.replace(handed(4000)))
    assert of(one) == (4000, True)
    book.put("u", handed(5000, name="another"))
    assert of(one) == (1000, False)
    book.put("u", handed(6000))
    assert of(one) == (6000, True)
