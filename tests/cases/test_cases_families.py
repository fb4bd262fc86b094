"""Cases about several families of accelerators: all rules hold for each of them, and for two in one pod."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hami_model import device_config, kube
from hami_model.device_config import DeviceConfig, VendorSettings
from hami_model.ids import AllocationId
from hami_scheduler.core.filter import FilterAnswer, filter_pod
from hami_scheduler.core.ledger import Ledger
from hypothesis import given
from hypothesis import strategies as st
from scheduler_builders import container, pod
from webhook_builders import container as plain_container
from webhook_builders import pod as plain_pod
from webhook_builders import policy, review_pod

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG = device_config.default_config(["ascend"])
NVIDIA, DCU, ASCEND = (CONFIG.vendor(word) for word in ("NVIDIA", "DCU", "Ascend910B3"))
MEMORY_MIB = 65536


def dcu_cards(count: int = 2) -> str:
    """Without an index: seven fields a card."""
    return "".join(f"dcu-{n},4,{MEMORY_MIB},100,DCU-K100_AI,0,true:" for n in range(count))


def nvidia_cards(count: int = 2) -> str:
    cards = [
        {"id": f"gpu-{n}", "index": n, "count": 10, "devmem": MEMORY_MIB, "devcore": 100, "type": "NVIDIA H100",
         "mode": "hami-core", "health": True}
        for n in range(count)
    ]  # fmt: skip
    return json.dumps(cards)


def ascend_cards(prefix: str, groups: tuple[int, ...] = (0, 0)) -> str:
    cards = [
        {"id": f"{prefix}-{n}", "index": n, "count": 4, "devmem": MEMORY_MIB, "devcore": 20, "type": "Ascend910B3",
         "health": True, "custominfo": {"NetworkID": group}}
        for n, group in enumerate(groups)
    ]  # fmt: skip
    return json.dumps(cards)


def node(name: str, **registers: str) -> kube.Node:
    """A node whose plugins are alive; `registers` by the names NVIDIA, DCU and ASCEND."""
    found = {"NVIDIA": NVIDIA, "DCU": DCU, "ASCEND": ASCEND}
    settings = [(each, text) for word, text in registers.items() if (each := found[word]) is not None]
    document = {
        "metadata": {
            "name": name,
            "annotations": {each.vendor.register_key: text for each, text in settings},
        },
        "status": {"allocatable": {each.resources.count: "8" for each, _ in settings}},
    }
    return msgspec.convert(document, kube.Node)


def ledger(*nodes: kube.Node, config: DeviceConfig = CONFIG) -> Ledger:
    found = Ledger(config)
    for each in nodes:
        found.upsert_node(each, NOW)
    return found


def place(book: Ledger, document: dict[str, Any], *nodes: str) -> FilterAnswer:
    return filter_pod(
        book, msgspec.convert(document, kube.Pod), list(nodes or ("n1",)), allocation_id=AllocationId("x"), now=NOW
    )


ALL = node("n1", NVIDIA=nvidia_cards(), DCU=dcu_cards(5), ASCEND=ascend_cards("npu"))
FAMILIES = pytest.mark.parametrize("settings", [NVIDIA, DCU, ASCEND], ids=lambda settings: settings.vendor.word)


# ---- PLC-04 ----


@pytest.mark.case("PLC-04")
@pytest.mark.parametrize("policy_name", ["binpack", "spread"])
@pytest.mark.parametrize("better", ["n1", "n2"])
def test_the_node_whose_chips_are_connected_better_wins_under_every_node_policy(policy_name: str, better: str) -> None:
    """Load is equal, so what the chips' group adds decides; the policy only orders load."""
    assert ASCEND is not None
    groups = {name: (0, 0) if name == better else (0, 1) for name in ("n1", "n2")}
    book = ledger(*(node(name, ASCEND=ascend_cards(name, found)) for name, found in groups.items()))
    asked = pod(
        "a",
        containers=[container(ask={ASCEND.resources.count: "2", ASCEND.resources.memory: str(MEMORY_MIB)})],
        annotations={"hami.io/node-scheduler-policy": policy_name},
    )

    assert place(book, asked, "n1", "n2").node_names == [better]


# ---- ANN-03, ANN-07 ----


@pytest.mark.case("ANN-03")
@given(st.lists(st.sampled_from(["NVIDIA", "DCU", "Ascend910B3", None]), min_size=1, max_size=5))
def test_every_family_has_a_slot_for_each_container_and_fills_only_its_own(words: list[str | None]) -> None:
    asked = [CONFIG.vendor(word) if word else None for word in words]
    document = pod(
        "a",
        init_containers=[container("i0")],
        containers=[
            container(f"c{n}", ask={each.resources.count: "1", each.resources.memory: "16384"} if each else {})
            for n, each in enumerate(asked)
        ],
    )
    annotations = place(ledger(ALL), document).annotations
    for settings in (NVIDIA, DCU, ASCEND):
        assert settings is not None
        text = annotations.get(settings.vendor.allocated_key)
        assert (text is not None) == (settings in asked)
        if text is not None:
            slots = text.removesuffix(";").split(";")
            assert [f",{settings.vendor.word}," in slot for slot in slots] == [False, *(e is settings for e in asked)]


@pytest.mark.case("ANN-03")
def test_the_first_family_s_card_stays_at_its_container() -> None:
    assert NVIDIA is not None
    assert DCU is not None
    asks = [{each.resources.count: "1", each.resources.memory: "1000"} for each in (NVIDIA, DCU)]
    found = place(ledger(ALL), pod("a", containers=[container(f"c{n}", ask=ask) for n, ask in enumerate(asks)]))
    first, second = (found.annotations[each.vendor.allocated_key].split(";") for each in (NVIDIA, DCU))
    assert (first[0].split(",")[0][:3], first[1:]) == ("gpu", ["", ""])
    assert (second[0], second[1].split(",")[0][:3], second[2:]) == ("", "dcu", [""])


@pytest.mark.case("ANN-07")
def test_cards_of_a_family_that_writes_no_index_are_counted_apart() -> None:
    assert DCU is not None
    book = ledger(node("n1", DCU=dcu_cards()))
    taken = set()
    for name in ("a", "b"):
        ask = {DCU.resources.count: "1", DCU.resources.memory: str(MEMORY_MIB)}
        found = place(book, pod(name, uid=name, containers=[container(ask=ask)]))
        taken.add(found.annotations[DCU.vendor.allocated_key].partition(",")[0])
        assert list(book.cluster.booked(name).values()) == [(MEMORY_MIB, 100, 1)]
    assert taken == {"dcu-0", "dcu-1"}


# ---- REQ-09, QUO-07 ----


@pytest.mark.case("REQ-09")
@pytest.mark.parametrize("memory", ["0.5", "9Gi"])
@FAMILIES
def test_a_request_with_bad_memory_stays_a_request_and_is_refused(settings: VendorSettings, memory: str) -> None:
    names = settings.resources
    limits = {names.count: "1", names.memory: memory}
    reviewed = review_pod(plain_pod(plain_container(limits=limits)), under=policy(CONFIG))
    assert not reviewed.allowed
    assert names.memory in reviewed.message
    found = place(ledger(ALL), pod("a", containers=[container(ask=limits)]))
    assert found.node_names is None
    assert names.memory in found.unresolvable_nodes["n1"]


@pytest.mark.case("QUO-07")
@FAMILIES
def test_every_family_with_memory_is_held_to_its_quota_with_its_factor(settings: VendorSettings) -> None:
    names, factor = settings.resources, 2
    config = DeviceConfig(vendors=(msgspec.structs.replace(settings, memory_factor=factor),))
    limits = {names.count: "1", names.memory: "8192"}
    for limit, fits in (("8191", False), ("8192", True)):
        hard = kube.ResourceQuota(
            metadata=kube.Metadata(name="q", namespace="team-a", uid="q"),
            spec=kube.QuotaSpec(hard={f"limits.{names.memory}": limit}),
        )
        assert (
            review_pod(plain_pod(plain_container(limits=limits)), under=policy(config), quotas=[hard]).allowed is fits
        )
        book = ledger(ALL, config=config)
        book.upsert_quota(hard)
        found = place(book, pod("a", namespace="team-a", containers=[container(ask=limits)]))
        assert (found.node_names is not None) is fits
        if not fits:
            assert "ResourceQuotaNotFit" in found.failed_nodes["n1"] + found.unresolvable_nodes.get("n1", "")
