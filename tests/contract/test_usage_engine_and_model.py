"""What a pod holds: the engine books what `hami_model.usage` says, card by card."""

import pytest
from hami_engine import Cluster
from hami_model import usage
from hami_model.cards import ContainerKind, ContainerShape, Slice, Slots
from hami_model.device_config import default_config
from hami_model.ids import CardId
from hami_scheduler.core.engine_values import container_slices, families
from hypothesis import given
from hypothesis import strategies as st

VENDOR = "NVIDIA"
FAMILIES = families(default_config())
slices = st.builds(
    Slice,
    card_id=st.sampled_from(["A", "B", "C"]),
    vendor=st.just(VENDOR),
    memory_mib=st.integers(0, 2**31),
    cores_percent=st.integers(0, 100),
)
init_kinds: st.SearchStrategy[ContainerKind] = st.sampled_from(["init", "sidecar"])


Containers = list[tuple[ContainerKind, tuple[Slice, ...]]]


def containers(kinds: st.SearchStrategy[ContainerKind], most: int) -> st.SearchStrategy[Containers]:
    """Containers in order; one may hold several slices of one card."""
    return st.lists(st.tuples(kinds, st.lists(slices, max_size=4).map(tuple)), max_size=most)


def shape_of(found: Containers) -> tuple[list[ContainerShape], Slots]:
    names = [ContainerShape(name=f"c{number}", kind=kind) for number, (kind, _) in enumerate(found)]
    return names, tuple(slot for _, slot in found)


app_kinds: st.SearchStrategy[ContainerKind] = st.just("app")


@given(containers(init_kinds, 4), containers(app_kinds, 3), st.booleans())
def test_engine_and_model_agree_on_what_a_pod_holds(init: Containers, apps: Containers, init_done: bool) -> None:
    shapes, slots = shape_of([*init, *apps])
    expected = usage.effective(slots, shapes, init_done=init_done)
    cluster = Cluster(families=FAMILIES)
    cluster.charge(uid="p", namespace="team", node="n", containers=container_slices(shapes, slots), init_done=init_done)
    assert cluster.booked("p") == {
        card_id: (held.memory_mib, held.cores_percent, held.slots) for card_id, held in expected.items()
    }
    sums = (sum(held.memory_mib for held in expected.values()), sum(held.cores_percent for held in expected.values()))
    assert cluster.quota_used("team", VENDOR) == sums
    assert cluster.check_invariants() == []


@pytest.mark.parametrize("kind", ["init", "sidecar", "app"])
def test_one_container_with_two_slices_of_one_card_holds_both(kind: ContainerKind) -> None:
    slot = tuple(
        Slice(card_id=CardId("A"), vendor=VENDOR, memory_mib=memory, cores_percent=10) for memory in (3000, 2000)
    )
    shapes, slots = shape_of([(kind, slot)])
    cluster = Cluster(families=FAMILIES)
    cluster.charge(uid="p", namespace="team", node="n", containers=container_slices(shapes, slots))
    assert cluster.booked("p") == {"A": (5000, 20, 2)}
