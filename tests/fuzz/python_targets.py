"""What is fuzzed of the Python code: every decoder of data from outside.

A target takes any bytes. It may raise only the typed errors it names; anything else, also an assertion of what must
hold of what was read, is a finding.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from hami_model import (
    allocations,
    device_config,
    go_json,
    go_time,
    handshake,
    kube,
    limits_page,
    mig_allocations,
    node_lock,
    pair_scores,
    quantity,
    register,
    requests,
    scoring_weights,
)
from hami_model.errors import HamiError, InvalidRequestError, MalformedError
from hami_model.events import codec
from hami_model.limits_page import CardLimits, LimitsPage
from hami_monitor.core import process_trace, region, region_layouts, region_slots, region_words
from hami_node_agent.core import handed_out, node_options
from hami_scheduler.core import extender
from hami_scheduler.core.filter import filter_pod
from hami_scheduler.core.ledger import Ledger
from hami_webhook.core import review
from kubelet_api import checkpoint

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG = device_config.default_config()
NVIDIA = next(settings for settings in CONFIG.vendors if settings.vendor.word == "NVIDIA")
REGISTER = "hami.io/node-nvidia-register"
ALLOCATED = "hami.io/vgpu-devices-allocated"
CARD = {"id": "A", "count": 10, "devmem": 1000, "devcore": 100, "type": "NVIDIA A100", "health": True}

Run = Callable[[bytes], object]


class Target(NamedTuple):
    run: Run
    errors: tuple[type[Exception], ...]
    most_bytes: int


TARGETS: dict[str, Target] = {}


def target(*errors: type[Exception], most_bytes: int = 4096) -> Callable[[Run], Run]:
    def add(run: Run) -> Run:
        TARGETS[run.__name__.replace("_", "-")] = Target(run, errors, most_bytes)
        return run

    return add


def text_of(data: bytes) -> str:
    """Annotations are Unicode text; undecodable bytes become lone surrogates only where they cannot come from JSON."""
    return data.decode(errors="replace")


# ---- annotations ---------------------------------------------------------------------------------------------------


@target(MalformedError)
def register_json(data: bytes) -> None:
    """No card is invented: each has the id of an element, and one listed twice is not healthy."""
    text = text_of(data)
    found = register.read(NVIDIA.vendor, text)
    assert len({card.id for card in found.cards}) == len(found.cards)
    listed = [entry.id for entry, _ in register.decode_json(text).entries]
    assert all(not card.healthy for card in found.cards if listed.count(card.id) > 1)


@target(MalformedError)
def register_delimited(data: bytes) -> None:
    register.decode_delimited(text_of(data))


@target(MalformedError)
def pair_score(data: bytes) -> None:
    found = pair_scores.decode(text_of(data))
    assert pair_scores.decode(pair_scores.encode(found))[: len(found)] is not None


@target(MalformedError)
def pod_allocation(data: bytes) -> None:
    """What was read is read again from what we write of it."""
    found = allocations.decode(text_of(data))
    assert allocations.decode(allocations.encode(found))[: len(found)] == found


@target(MalformedError)
def mig_allocation(data: bytes) -> None:
    found = mig_allocations.decode(text_of(data))
    assert all(allocation.placement.size > 0 and allocation.card_id for allocation in found)


@target(MalformedError)
def node_lock_value(data: bytes) -> None:
    node_lock.parse(text_of(data))


@target()
def handshake_value(data: bytes) -> None:
    memory = handshake.Memory()
    for allocatable in (0, 1, 0):
        verdict = handshake.judge(memory, handshake=text_of(data), allocatable=allocatable, register="[]", now=NOW)
        memory = verdict.memory
    assert not verdict.usable, "cards that are gone are usable"


@target(MalformedError)
def weights_of_score(data: bytes) -> None:
    found = scoring_weights.parse(text_of(data))
    assert min(found.slot, found.core, found.memory) >= 0
    assert found.slot + found.core + found.memory > 0


# ---- texts ---------------------------------------------------------------------------------------------------------


@target(MalformedError)
def quantity_text(data: bytes) -> None:
    value, _ = quantity.parse_with_suffix(text_of(data))
    assert value == quantity.parse(text_of(data))


@target(MalformedError)
def time_text(data: bytes) -> None:
    go_time.parse_rfc3339(text_of(data))


@target(MalformedError)
def go_json_text(data: bytes) -> None:
    go_json.parse(text_of(data))


@target(MalformedError, HamiError)
def device_config_text(data: bytes) -> None:
    device_config.parse(text_of(data))


@target(MalformedError)
def node_options_text(data: bytes) -> None:
    node_options.node_options(NVIDIA, text_of(data), "n1")


# ---- bodies and files ----------------------------------------------------------------------------------------------


@target(MalformedError)
def filter_body(data: bytes) -> None:
    found = extender.decode_filter(data)
    if found.nodes is not None:
        extender.decode_nodes(found.nodes)


@target(MalformedError)
def bind_body(data: bytes) -> None:
    extender.decode_bind(data)


@target()
def admission_body(data: bytes) -> None:
    """The reply is a review; a pod that is let in is changed by a patch that can be read."""
    status, body = review.answer(
        data, config=CONFIG, scheduler_name="hami-scheduler", force_overwrite=False, quota_view=lambda _namespace: None
    )
    response = json.loads(body)["response"]
    assert status in (200, 400)
    assert response["allowed"] or status == 400 or response["status"]["message"]


@target(MalformedError)
def event_message(data: bytes) -> None:
    codec.decode(data)


@target(checkpoint.CheckpointError)
def kubelet_checkpoint(data: bytes) -> None:
    found = checkpoint.read_checkpoint(data)
    assert all(isinstance(entry, checkpoint.PodDevicesEntry) for entry in found.entries)
    for entry in found.entries:
        assert entry in found.holding(entry.resource_name, entry.device_ids)


@target(MalformedError, handed_out.NewerCheckpointError)
def handed_out_file(data: bytes) -> None:
    found = handed_out.decode(data)
    assert list(handed_out.decode(handed_out.encode(found)).items()) == list(found.items())


@target(MalformedError, most_bytes=512)
def shared_region(data: bytes) -> None:
    size, read_at = region_file(data)
    found = region.read_region(size, read_at)
    assert all(0 <= card.used.total < 2**64 for card in found.cards)


@target(MalformedError, most_bytes=512)
def shared_region_words(data: bytes) -> None:
    """What is written back in answer lies inside the file."""
    size, read_at = region_file(data)
    found = region_words.read_words(size, read_at)
    layout = region_words.layout_named(found.layout)
    assert layout.size_bytes <= size
    assert all(name.isascii() or "\ufffd" in name for name in found.card_ids)


@target(MalformedError, most_bytes=512)
def shared_region_slots(data: bytes) -> None:
    """A slot read alone is the one that was read among all, and its place for the host's pid lies inside the file."""
    size, read_at = region_file(data)
    found = region_slots.read_slots(size, read_at)
    layout = region_words.layout_named(found.layout)
    assert len({slot.index for slot in found.slots}) == len(found.slots)
    for slot in found.slots:
        assert slot.pid > 0
        assert region_slots.read_slot(layout, slot.index, read_at, with_owner=found.is_ours) == slot
        assert region_slots.host_pid_offset(layout, slot.index) + region_words.WORD_BYTES <= size


def region_file(data: bytes) -> tuple[int, region.ReadAt]:
    """The bytes say which size the file has and which 64-bit words of an empty region are overwritten."""
    sizes = [size + surplus for layout in region_layouts.LAYOUTS for surplus in (-1, 0, 1, 64)
             for size in [layout.size_bytes]]  # fmt: skip
    size = sizes[data[0] % len(sizes)] if data else 0
    words = {0: region_layouts.MAGIC.to_bytes(4, "little", signed=True) + bytes([data[1] % 3 if len(data) > 1 else 1])}
    content = bytearray(size)
    content[: len(words[0])] = words[0][:size]
    for start in range(2, len(data) - 10, 11):
        place = int.from_bytes(data[start : start + 3], "little") % max(size, 1)
        content[place : place + 8] = data[start + 3 : start + 11]
    del content[size:]
    return size, lambda offset, length: bytes(content[offset : offset + length])


@target(MalformedError, most_bytes=512)
def limits_page_words(data: bytes) -> None:
    """The bytes say which 64-bit words of a sound page are overwritten. What reads has one way to be written."""
    cards = tuple(CardLimits(uuid=f"GPU-{number}", memory_limit_bytes=2**30) for number in range(2))
    content = bytearray(limits_page.encode(LimitsPage(region_file="/slice.cache", cards=cards)))
    for start in range(0, len(data) - 9, 10):
        place = int.from_bytes(data[start : start + 2], "little") % (len(content) - 8)
        content[place : place + 8] = data[start + 2 : start + 10]
    found = limits_page.decode(bytes(content))
    assert limits_page.encode(found, limits_page.sequence_of(bytes(content))) == bytes(content)


@target()
def process_files(data: bytes) -> None:
    text = text_of(data)
    process_trace.process_stat(text)
    process_trace.namespaced_pids(text)
    process_trace.pod_by_cgroup(text)
    process_trace.container_by_cgroup(text)
    process_trace.owner_by_maps(text.splitlines(), {})
    process_trace.owner_by_mounts(text.splitlines(), {})


# ---- bad data never reads as free ----------------------------------------------------------------------------------


@target(InvalidRequestError, MalformedError)
def pod_request(data: bytes) -> None:
    """A container's quantities: whoever names cards asks for cards or is refused."""
    names = ("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores", "nvidia.com/gpumem-percentage")
    texts = text_of(data).split("\n")
    limits = dict(zip(names, texts, strict=False))
    container = kube.Container(name="c", resources=kube.Resources(limits=limits))
    found = requests.container_cards(container, CONFIG, {})
    for card in found:
        assert card.count > 0
        assert 0 <= card.memory_mib < 2**31
        assert card.cores_percent >= 0


def _pod(uid: str, node: str = "", annotations: dict[str, str] | None = None, cores: str = "0") -> kube.Pod:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpucores": cores}
    container = kube.Container(name="c", resources=kube.Resources(limits=limits))
    return kube.Pod(
        metadata=kube.Metadata(name=uid, namespace="team", uid=uid, annotations=annotations or {}),
        spec=kube.PodSpec(containers=[container], node_name=node),
    )


def _node(register_text: str, **annotations: str) -> kube.Node:
    return kube.Node(
        metadata=kube.Metadata(name="n1", annotations={REGISTER: register_text, **annotations}),
        status=kube.NodeStatus(allocatable={"nvidia.com/gpu": "10"}),
    )


@target()
def ledger_with_any_pod(data: bytes) -> None:
    """A card that a running pod's annotation names takes no pod that wants it for itself."""
    text = text_of(data)
    book = Ledger(CONFIG)
    book.upsert_node(_node(json.dumps([CARD])), NOW)
    book.upsert_pod(_pod("old", "n1", {ALLOCATED: text}), NOW)
    found = filter_pod(book, _pod("new", cores="100"), ["n1"], allocation_id="a", now=NOW)
    items = [item.split(",") for item in text.replace(";", ":").split(":")]
    if any(item[0].strip() == "A" for item in items):
        assert found.reservation is None, "a card that a running pod names was given out as unused"
    assert book.cluster.check_invariants() == []


@target()
def ledger_with_any_node(data: bytes) -> None:
    """Whatever a node registers: what is given out is there."""
    book = Ledger(CONFIG)
    book.upsert_node(_node(text_of(data)), NOW)
    found = filter_pod(book, _pod("new"), ["n1"], allocation_id="a", now=NOW)
    assert book.cluster.check_invariants() == []
    for card in book.cluster.node_cards("n1"):
        assert card.used_memory_mib <= max(card.memory_mib, 0)
        assert card.used_slots == 0 or (card.healthy and not card.cordoned)
    if found.reservation is not None:
        assert book.cluster.booked("new")


@target()
def ledger_with_any_pair_scores(data: bytes) -> None:
    """A node keeps its cards whatever it says of their connections."""
    book = Ledger(CONFIG)
    scores = {"hami.io/node-nvidia-score": text_of(data)}
    book.upsert_node(_node(json.dumps([CARD, {**CARD, "id": "B"}]), **scores), NOW)
    pod = _pod("new", annotations={"hami.io/gpu-scheduler-policy": "topology-aware"})
    assert filter_pod(book, pod, ["n1"], allocation_id="a", now=NOW).reservation is not None


def run(name: str, data: bytes) -> None:
    """Raises only what is a finding."""
    found = TARGETS[name]
    try:
        found.run(data)
    except found.errors:
        return
