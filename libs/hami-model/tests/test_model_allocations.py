"""Device annotations of pods: writing, tolerant reading, failing closed."""

import pytest
from hami_model import allocations, device_config, keys, kube, mig_allocations, vendors
from hami_model.cards import MigPlacement, Slice, Slots, shapes
from hami_model.errors import MalformedError
from hypothesis import given
from hypothesis import strategies as st

CONFIG = device_config.default_config()
NVIDIA = CONFIG.vendor(vendors.NVIDIA)
assert NVIDIA is not None
KEY = NVIDIA.vendor.allocated_key


def container(gpus: int | str | None, *, sidecar: bool = False) -> kube.Container:
    limits = {} if gpus is None else {"nvidia.com/gpu": str(gpus), "nvidia.com/gpumem": "1000"}
    return kube.Container(
        name="c", resources=kube.Resources(limits=limits), restart_policy="Always" if sidecar else None
    )


def pod(text: str | None, app: list[int | str | None], init: list[int | str | None] = ()) -> kube.Pod:
    return kube.Pod(
        metadata=kube.Metadata(name="p", annotations=None if text is None else {KEY: text}),
        spec=kube.PodSpec(
            init_containers=[container(gpus) for gpus in init], containers=[container(gpus) for gpus in app]
        ),
    )


def piece(card: str, memory: int = 1000, cores: int = 0) -> Slice:
    return Slice(card_id=card, vendor="NVIDIA", memory_mib=memory, cores_percent=cores)


A, B, C = piece("A"), piece("B"), piece("C")
TEXT_A, TEXT_B, TEXT_C = "A,NVIDIA,1000,0:", "B,NVIDIA,1000,0:", "C,NVIDIA,1000,0:"


@pytest.mark.parametrize(
    ("text", "app", "init", "slots"),
    [
        pytest.param(None, [1], [], ((),), id="no annotation"),
        pytest.param("", [1], [], ((),), id="empty annotation"),
        pytest.param(";", [1], [], ((),), id="one empty slot"),
        pytest.param(";;;;", [1, 1], [], ((), ()), id="surplus empty slots are cut"),
        pytest.param(f"{TEXT_A};", [1], [], ((A,),), id="canonical"),
        pytest.param(f"{TEXT_A};;;;", [1], [], ((A,),), id="surplus empty slots after a slice"),
        pytest.param(f"{TEXT_A}", [1], [], ((A,),), id="no terminator"),
        pytest.param("A,NVIDIA,1000,0", [1], [], ((A,),), id="no terminators at all"),
        pytest.param(f"{TEXT_A};\n", [1], [], ((A,),), id="trailing newline"),
        pytest.param("A,,1000,0:;", [1], [], ((A,),), id="vendor left out"),
        pytest.param("A,NVIDIA,+1000,0,x:;", [1], [], ((A,),), id="plus sign and further fields"),
        pytest.param(f";{TEXT_A};", [1], [None], ((), (A,)), id="GPU-less init container first"),
        pytest.param(f"{TEXT_A};", [1], [None], ((), (A,)), id="its slot missing: matched by request"),
        pytest.param(f"{TEXT_A};", [1, None], [], ((A,), ()), id="trailing slot missing"),
        pytest.param(f"{TEXT_A};{TEXT_B};", [1, 1], [None], ((), (A,), (B,)), id="two short slots behind an init"),
        pytest.param(f"{TEXT_A}{TEXT_B};{TEXT_C};", [2, None, 1], [], ((A, B), (), (C,)), id="short, by counts"),
        pytest.param(f";;{TEXT_A};", [1], [], ((A,),), id="leading surplus slots, one container asks"),
    ],
)
def test_slots_belong_to_containers(
    text: str | None, app: list[int | None], init: list[int | None], slots: Slots
) -> None:
    found = allocations.read(pod(text, app, init), NVIDIA)
    assert found == allocations.ReadAllocation(slots=slots)


@pytest.mark.case("ANN-04")
def test_empty_slots_are_kept_and_surplus_ones_cut_never_shifted() -> None:
    assert allocations.read(pod(";A,NVIDIA,4096,0:;", [None, 1]), NVIDIA).slots == ((), (piece("A", 4096),))
    assert allocations.read(pod(";A,NVIDIA,4096,0:;;;", [None, 1]), NVIDIA).slots == ((), (piece("A", 4096),))


@pytest.mark.case("ANN-11")
@pytest.mark.parametrize(
    ("text", "app", "slots", "blocked"),
    [
        pytest.param("A,NVIDIA:;", [1], ((),), ("A",), id="two fields"),
        pytest.param("A,NVIDIA,x,0:;", [1], ((),), ("A",), id="memory is no number"),
        pytest.param("A,NVIDIA,1,0x1:;", [1], ((),), ("A",), id="cores are no number"),
        pytest.param("A,NVIDIA,2147483648,0:;", [1], ((),), ("A",), id="memory beyond 32 bits"),
        pytest.param("A,NVIDIA,-1,0:;", [1], ((),), ("A",), id="negative memory"),
        pytest.param("A,NVIDIA,1,-1:;", [1], ((),), ("A",), id="negative cores"),
        pytest.param("A,AMD,1000,0:;", [1], ((),), ("A",), id="another vendor's word"),
        pytest.param(" A , NVIDIA , 1 , 1 :;", [1], ((),), ("A",), id="spaces"),
        pytest.param(f"{TEXT_A};B,NVIDIA,x,0:;", [1, 1], ((A,), ()), ("A", "B"), id="good, then bad"),
        pytest.param(",NVIDIA,x,0:;", [1], ((),), (), id="names no card, blocks nothing"),
        pytest.param("A:;", [1], ((),), ("A",), id="cut off after the card"),
        pytest.param(f"junk:{TEXT_A};", [1], ((A,),), ("junk",), id="a loose item blocks no other card"),
        pytest.param(f"{TEXT_A};{TEXT_B};", [1, 1, 1], ((), (), (A, B)), ("A", "B"), id="short and ambiguous"),
        pytest.param(f"{TEXT_A};{TEXT_B};", [1], ((A, B),), ("A", "B"), id="more filled slots than containers"),
        pytest.param(f"{TEXT_A};", ["1Gi", None], ((), (A,)), ("A",), id="short, request not understood"),
        pytest.param(f"{TEXT_A};", [], (), ("A",), id="a pod without containers"),
    ],
)
def test_what_contradicts_itself_blocks_the_cards_it_names(
    text: str, app: list[int | str | None], slots: Slots, blocked: tuple[str, ...]
) -> None:
    found = allocations.read(pod(text, app), NVIDIA)
    assert (found.slots, found.blocked_cards) == (slots, blocked)
    assert found.problem.startswith(f"annotation {KEY}: ")
    assert len(found.problem) < 1024


@given(st.text(alphabet="AB,:;NVIDIA0123456789- x") | st.text(), st.lists(st.none() | st.integers(0, 3), max_size=4))
def test_no_text_crashes_or_reads_as_free(text: str, app: list[int | None]) -> None:
    found = allocations.read(pod(text, app), NVIDIA)
    assert len(found.slots) == len(app)
    readable = {piece.card_id for slot in found.slots for piece in slot}
    named = {item.split(",")[0].strip() for slot in text.split(";") for item in slot.split(":") if "," in item}
    assert named - {""} <= readable | set(found.blocked_cards) | {""}
    assert all(piece.memory_mib >= 0 and piece.cores_percent >= 0 for slot in found.slots for piece in slot)


SLICES = st.builds(
    Slice,
    card_id=st.text(st.characters(exclude_characters=",:;", exclude_categories=["Cs"]), min_size=1).filter(
        lambda name: name == name.strip()
    ),
    vendor=st.just("NVIDIA"),
    memory_mib=st.integers(0, 2**31 - 1),
    cores_percent=st.integers(0, 100),
)
SLOTS = st.lists(st.lists(SLICES, max_size=3).map(tuple), min_size=1, max_size=4).map(tuple)


@given(SLOTS)
def test_what_is_written_is_read_back_slot_by_slot(slots: Slots) -> None:
    text = allocations.encode(slots)
    assert text.count(";") == len(slots)
    assert allocations.decode(text) == (*slots, ())
    found = allocations.read(pod(text, [len(slot) or None for slot in slots]), NVIDIA)
    assert found == allocations.ReadAllocation(slots=slots)


@given(SLOTS, st.integers(0, 3))
def test_slots_that_hami_left_out_are_found_again(slots: Slots, init_count: int) -> None:
    short = allocations.encode(tuple(slot for slot in slots if slot))
    asks = [len(slot) or None for slot in slots]
    written = allocations.read(pod(short, asks[init_count:], asks[:init_count]), NVIDIA)
    assert written.slots == slots
    assert written.problem == ""


@given(st.text())
def test_the_strict_decoder_reads_or_refuses(text: str) -> None:
    try:
        slots = allocations.decode(text)
    except MalformedError:
        return
    assert len(slots) == text.count(";") + 1


def test_a_binding_carries_everything_at_once() -> None:
    slots: Slots = ((), (A,))
    found = allocations.binding_annotations(
        "n1", {"NVIDIA": slots}, CONFIG, allocation_id="id-1", now_seconds=1767225600
    )
    assert found.annotations == {
        keys.ASSIGNED_NODE: "n1",
        keys.ASSIGNED_TIME: "1767225600",
        keys.BIND_TIME: "1767225600",
        keys.BIND_PHASE: "allocating",
        keys.ALLOCATION_ID: "id-1",
        "hami.io/vgpu-devices-to-allocate": f";{TEXT_A};",
        "hami.io/vgpu-devices-allocated": f";{TEXT_A};",
    }
    assert found.labels == {keys.ASSIGNED_NODE: "n1"}


def test_no_label_for_a_long_node_name_and_no_key_for_a_vendor_without_slices() -> None:
    found = allocations.assignment("n" * 64, {"NVIDIA": ((), ())}, CONFIG, allocation_id="id-1", now_seconds=1)
    assert found.labels == {}
    assert set(found.annotations) == {keys.ASSIGNED_NODE, keys.ASSIGNED_TIME, keys.ALLOCATION_ID}


def test_shapes_and_slots_have_one_order() -> None:
    found = allocations.read(pod(f";{TEXT_A};", [1], [None]), NVIDIA)
    assert [shape.kind for shape in shapes(pod(None, [1], [None]))] == ["init", "app"]
    assert found.slots == ((), (A,))


MIG = st.builds(
    mig_allocations.MigAllocation,
    slot=st.integers(0, 4),
    position=st.integers(0, 7),
    card_id=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    profile=st.sampled_from(["1g.5gb", "3g.20gb"]),
    placement=st.builds(MigPlacement, start=st.integers(0, 7), size=st.integers(1, 8)),
    instance=st.none()
    | st.builds(
        mig_allocations.MigInstance,
        uuid=st.just("MIG-1"),
        gpu_instance=st.integers(0, 2**32 - 1),
        compute_instance=st.integers(0, 7),
    ),
)


@given(st.lists(MIG, unique_by=lambda found: (found.slot, found.position)))
def test_mig_reservations_round_trip(reservations: list[mig_allocations.MigAllocation]) -> None:
    assert list(mig_allocations.decode(mig_allocations.encode(reservations) or "")) == reservations


@given(st.text())
def test_arbitrary_mig_reservations_are_read_or_refused(text: str) -> None:
    try:
        mig_allocations.decode(text)
    except MalformedError:
        return


@pytest.mark.parametrize("text", [" GPU-a,NVIDIA,10,0:;", "GPU-a ,NVIDIA,10,0:;", "GPU-a\n,NVIDIA,10,0:;"])
def test_spaces_around_an_id_block_the_card_that_is_meant(text: str) -> None:
    settings = device_config.default_config().vendor("NVIDIA")
    assert settings is not None
    annotations = {settings.vendor.allocated_key: text}
    pod = kube.Pod(
        metadata=kube.Metadata(annotations=annotations), spec=kube.PodSpec(containers=[kube.Container(name="c")])
    )
    found = allocations.read(pod, settings)
    assert found.blocked_cards == ("GPU-a",)
    assert found.problem
