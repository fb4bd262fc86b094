"""Health, hand-off, node options and the last fence against overcommitted cards."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hami_model import device_config, vendors
from hami_model.cards import Card
from hami_model.device_config import DeviceConfigError
from hami_model.errors import MalformedError
from hami_model.ids import CardId
from hami_model.usage import CardUsage
from hami_node_agent.core import health, runtime_support
from hami_node_agent.core.entitlement import Claim, overcommitted
from hami_node_agent.core.health import HealthBook, HealthPolicy
from hami_node_agent.core.inventory import (
    CardFacts,
    UnreadableCard,
    card_of_device,
    kubelet_devices,
    refreshed,
    take_inventory,
)
from hami_node_agent.core.node_options import NodeOptions, node_options
from hami_node_agent.core.runtime_support import CdiSupport, HandoffRefusedError
from hypothesis import given
from hypothesis import strategies as st

A = CardId("A")
NVIDIA = next(found for found in device_config.default_config().vendors if found.vendor.word == vendors.NVIDIA)


@pytest.mark.case("REG-07")
@pytest.mark.parametrize("xid", sorted(health.APPLICATION_XIDS))
def test_a_program_s_fault_is_not_the_card_s(xid: int) -> None:
    book = HealthBook(HealthPolicy())

    assert book.critical_event(A, xid) is None
    assert book.unhealthy == frozenset()


@pytest.mark.case("REG-07")
def test_clean_probes_in_a_row_bring_a_card_back() -> None:
    book = HealthBook(HealthPolicy(clean_probes=2))

    assert book.critical_event(A, 79) is not None
    assert book.critical_event(A, 79) is None  # no news
    assert book.probed(A, "") is None
    assert book.probed(A, "lost") is None  # the count starts anew
    assert book.probed(A, "") is None
    assert book.unhealthy == {A}
    change = book.probed(A, "")
    assert change is not None
    assert (change.healthy, change.cause) == (True, "recovered")
    assert book.unhealthy == frozenset()


def test_a_failing_probe_makes_a_card_unhealthy() -> None:
    change = HealthBook(HealthPolicy()).probed(A, "the card is lost")

    assert change is not None
    assert (change.healthy, change.cause, change.detail) == (False, "probe-failed", "the card is lost")


def test_what_the_driver_says_of_a_card_that_a_probe_found_broken_is_told_once() -> None:
    """A card that falls off the bus fails its probe as well, and either may be heard of first."""
    book = HealthBook(HealthPolicy(clean_probes=2))
    assert book.probed(A, "the card is lost") is not None
    change = book.critical_event(A, 79)

    assert change is not None
    assert (change.healthy, change.cause, change.xid) == (False, "xid", 79)
    assert book.critical_event(A, 79) is None
    assert book.probed(A, "the card is lost") is None
    assert book.probed(A, "") is None
    assert book.critical_event(A, 79) is None
    assert [book.probed(A, "") is None for _ in range(2)] == [True, False]


def test_what_is_to_be_watched_wins_over_what_is_to_be_ignored() -> None:
    assert health.health_policy(ignored=[79], watched=[13, 79]).ignored_xids == health.APPLICATION_XIDS - {13}


@pytest.mark.parametrize(
    ("settings", "counting"),
    [
        pytest.param({}, {79, 48}, id="as built in"),
        pytest.param({"ignores_nothing": True}, {79, 48, 13, 31}, id="enabled: all"),
        pytest.param({"watches_events": False}, set(), id="disabled: all"),
        pytest.param({"watches_events": False, "watched": [48]}, set(), id="disabled: all, though one is enabled"),
        pytest.param({"watches_events": False, "ignores_nothing": True}, {79, 48, 13, 31}, id="enabled wins"),
        pytest.param({"ignored": [48], "watched": [31]}, {79, 31}, id="numbers"),
    ],
)
def test_which_xids_are_the_card_s(settings: dict[str, Any], counting: set[int]) -> None:
    policy = health.health_policy(**settings)

    assert {xid for xid in (79, 48, 13, 31) if HealthBook(policy).critical_event(A, xid) is not None} == counting


def test_a_memory_error_that_cannot_be_corrected_is_the_card_s() -> None:
    change = HealthBook(HealthPolicy()).critical_event(A, None)

    assert change is not None
    assert (change.cause, change.xid) == ("double-bit-ecc", None)


@pytest.mark.parametrize(
    ("kubelet", "runtime", "cdi", "checkpoint", "problem"),
    [
        pytest.param("v1.37.2", "containerd://2.4.2", "auto", "", "", id="containerd 2"),
        pytest.param("v1.29.0", "cri-o://1.28.1", "auto", "", "", id="CRI-O"),
        pytest.param("v1.31.1", "containerd://1.7.24", "auto", "", "enable_cdi", id="containerd 1 must be set up"),
        pytest.param("v1.31.1", "containerd://1.7.24", "yes", "", "", id="and was"),
        pytest.param("v1.37.2", "containerd://2.4.2", "no", "", "runtime_cdi", id="the operator says no"),
        pytest.param("v1.28.9", "containerd://2.0.0", "yes", "", "1.29", id="kubelet too old"),
        pytest.param("", "containerd://2.0.0", "yes", "", "unknown version", id="kubelet unknown"),
        pytest.param("v1.37.2", "", "auto", "", "not known", id="runtime unknown"),
        pytest.param("v1.37.2", "containerd://2.4.2", "auto", "no permission", "no permission", id="checkpoint"),
    ],
)
def test_late_binding_is_offered_where_it_works(
    kubelet: str, runtime: str, cdi: CdiSupport, checkpoint: str, problem: str
) -> None:
    found = runtime_support.late_binding_support(
        kubelet_version=kubelet, runtime_version=runtime, cdi=cdi, checkpoint_problem=checkpoint
    ).problem

    assert problem in found
    assert bool(found) is bool(problem)


def test_auto_takes_the_lock_and_says_why_and_the_default_refuses() -> None:
    broken = runtime_support.Support(problem="it is broken")

    assert runtime_support.choose_handoff("auto", broken) == ("lock", "it is broken")
    assert runtime_support.choose_handoff("auto", runtime_support.Support())[0] == "late-binding"
    assert runtime_support.choose_handoff("lock", broken)[0] == "lock"
    with pytest.raises(HandoffRefusedError, match="it is broken"):
        runtime_support.choose_handoff("late-binding", broken)


@pytest.mark.parametrize(
    ("device", "card"),
    [
        ("GPU-43786b02-5e59-b774-2a77-1dc152f80bfc-17", "GPU-43786b02-5e59-b774-2a77-1dc152f80bfc"),
        ("GPU-43786b02-5e59-b774-2a77-1dc152f80bfc", "GPU-43786b02-5e59-b774-2a77-1dc152f80bfc"),
        ("GPU-43786b02-5e59-b774-2a77-1dc152f80bfc-x", "GPU-43786b02-5e59-b774-2a77-1dc152f80bfc-x"),
        ("MIG-1::3", "MIG-1"),
        ("GPU-A-1", "GPU-A-1"),
        ("", ""),
    ],
)
def test_the_card_of_an_id(device: str, card: str) -> None:
    assert card_of_device(device) == card


@given(st.integers(0, 2**50), st.floats(0.01, 20), st.integers(0, 64))
def test_every_offered_card_has_its_slots_and_fits_the_wire(memory: int, factor: float, slots: int) -> None:
    options = NodeOptions(split_count=slots, memory_scaling=factor, core_scaling=factor)
    uuid = "GPU-43786b02-5e59-b774-2a77-1dc152f80bfc"

    inventory = take_inventory([CardFacts(uuid=uuid, index=0, name="x", memory_bytes=memory)], options)
    devices = kubelet_devices(inventory, numa_topology=False)

    assert len(devices) == len(inventory.cards) * slots
    assert {card_of_device(device.id) for device in devices} <= {uuid}
    assert all(0 <= card.memory_mib < 2**31 and 0 <= card.cores_percent < 2**31 for card in inventory.cards)
    assert bool(inventory.cards) is not bool(inventory.problems)


def facts(index: int, **more: Any) -> CardFacts:
    return CardFacts(uuid=f"GPU-{index}", index=index, name="x", **{"memory_bytes": 2**34, **more})


@pytest.mark.case("NUM-01")
def test_each_card_has_its_own_numa_node_and_what_is_no_number_costs_nothing_else() -> None:
    texts = ["1\n", "N/A", "-1", "", None, "0", "0-7", "3"]
    inventory = take_inventory((facts(index, numa_text=text) for index, text in enumerate(texts)), NodeOptions())

    assert [offered.numa_node for offered in inventory.offered] == [1, None, None, None, None, 0, None, 3]
    assert [card.numa for card in inventory.cards] == [1, 0, 0, 0, 0, 0, 0, 3]
    assert [problem.partition(":")[0] for problem in inventory.problems] == ["card GPU-1", "card GPU-6"]


@pytest.mark.case("NUM-03")
def test_what_a_card_cannot_tell_any_more_stays_as_it_was_told() -> None:
    told = facts(0, numa_text="1")

    assert refreshed(told, facts(0, numa_text=None)) == told
    assert refreshed(told, facts(0, numa_text=None, memory_bytes=None)) == told
    assert refreshed(told, facts(0, numa_text="0")).numa_text == "0"
    assert refreshed(None, facts(0, numa_text=None)).numa_text is None
    inventory = take_inventory([refreshed(told, facts(0, numa_text=None))], NodeOptions())
    assert inventory.cards == take_inventory([told], NodeOptions()).cards
    assert inventory.cards[0].healthy


def test_a_card_that_the_driver_cannot_tell_of_now_may_be_the_one() -> None:
    """What the node has for certain not, and what it may have once the driver answers."""
    broken = facts(0, memory_bytes=None, memory_fault="unknown error")
    inventory = take_inventory([broken, facts(1)], NodeOptions())
    assert [inventory.may_have(ids) for ids in (["GPU-0"], ["GPU-9"], ["GPU-0", "GPU-9"])] == [True, False, False]

    nameless = UnreadableCard(index=0, uuid="", reason="it hangs")
    assert take_inventory([facts(1)], NodeOptions(), unreadable=[nameless]).may_have(["GPU-9"])
    hidden = NodeOptions(hidden_indexes=frozenset({0}))
    assert not take_inventory([facts(1)], hidden, unreadable=[nameless]).may_have(["GPU-9"])
    assert not take_inventory([broken], hidden).may_have(["GPU-0"])
    assert not take_inventory([facts(0, memory_bytes=None)], NodeOptions()).may_have(["GPU-0"])  # it has no such query


@given(st.text() | st.binary().map(lambda raw: raw.decode("latin-1")))
def test_any_per_node_text_is_options_or_malformed(text: str) -> None:
    try:
        node_options(NVIDIA, text, "n1")
    except MalformedError:
        return


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | st.just([1])
)
KEYS = st.sampled_from(["operatingmode", "devicesplitcount", "devicememoryscaling", "libcudaloglevel", "filterdevices",
                        "enablenumatopology", "preconfigureddevicememory", "unknown"])  # fmt: skip


@given(st.dictionaries(KEYS, VALUES))
def test_an_odd_value_costs_only_itself(entry: dict[str, Any]) -> None:
    text = json.dumps({"nodeconfig": [{"name": "other", "devicesplitcount": 1}, {"name": "n1", **entry}]})

    found = node_options(NVIDIA, text, "n1")

    assert found.split_count >= 1
    assert found.memory_scaling > 0
    assert found.operating_mode


def test_more_slots_than_kubelet_can_be_told_of_are_refused() -> None:
    per_node = json.dumps({"nodeconfig": [{"name": "n1", "devicesplitcount": 1001}]})
    found = node_options(NVIDIA, per_node, "n1")
    assert found.split_count == 10
    assert "from 0 to 1000" in found.warnings[0]
    text = "nvidia: {resourceCountName: nvidia.com/gpu, deviceSplitCount: 2000000000}"
    (settings,) = device_config.parse(text).vendors
    with pytest.raises(MalformedError, match="set 1000 at most"):
        node_options(settings, None, "n1")
    assert node_options(settings, per_node.replace("1001", "1000"), "n1").split_count == 1000


@pytest.mark.parametrize("number", [".nan", ".inf", "1.0e+308", "4294967296"])
@pytest.mark.parametrize("key", ["deviceMemoryScaling", "deviceCoreScaling", "deviceSplitCount", "defaultMemory"])
def test_numbers_that_no_node_can_publish_are_named(key: str, number: str) -> None:
    with pytest.raises(DeviceConfigError, match=key if "." not in number or "Scaling" in key else "int"):
        device_config.parse(f"nvidia: {{resourceCountName: nvidia.com/gpu, {key}: {number}}}")


def claim(uid: str, memory: int, *, at: int = 0, handed_out: bool = False) -> Claim:
    return Claim(uid=uid, usage={A: CardUsage(memory_mib=memory, slots=1)}, handed_out=handed_out, bound_at=at)


CARDS = {A: Card(id=A, slots=10, memory_mib=100, cores_percent=100)}


def test_the_later_bind_loses_and_a_pod_that_runs_comes_first() -> None:
    early, late = claim("e", 60, at=1), claim("l", 60, at=2)

    assert overcommitted(early, [late], CARDS) is None
    refusal = overcommitted(late, [early], CARDS)
    assert refusal is not None
    assert refusal.holders == ("e",)
    assert overcommitted(early, [claim("l", 60, at=2, handed_out=True)], CARDS) is not None


def test_seven_instances_of_a_seventh_each_fit_a_card_in_mig_mode() -> None:
    cards = {A: Card(id=A, slots=7, memory_mib=40960, cores_percent=100, mode="mig")}
    seventh = {A: CardUsage(memory_mib=4864, cores_percent=15, slots=1)}
    claims = [Claim(uid=str(number), usage=seventh, handed_out=False, bound_at=number) for number in range(8)]

    assert overcommitted(claims[6], claims[:7], cards) is None
    assert overcommitted(claims[7], claims, cards) is not None


@given(st.lists(st.tuples(st.integers(0, 120), st.integers(0, 4), st.booleans()), min_size=1, max_size=12))
def test_pods_served_one_after_the_other_never_overcommit(pods: list[tuple[int, int, bool]]) -> None:
    """Whoever asks, in whatever order: what was handed out fits the card, whatever else is bound to it."""
    bound = {f"u{number}": claim(f"u{number}", memory, at=at) for number, (memory, at, _) in enumerate(pods)}
    for number, (memory, at, asks) in enumerate(pods):
        uid = f"u{number}"
        if asks and overcommitted(bound[uid], bound.values(), CARDS) is None:
            bound[uid] = claim(uid, memory, at=at, handed_out=True)

    assert sum(found.usage[A].memory_mib for found in bound.values() if found.handed_out) <= 100
    assert sum(found.handed_out for found in bound.values()) <= 10
