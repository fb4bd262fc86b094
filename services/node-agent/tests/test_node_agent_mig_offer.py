"""Cards in MIG mode: which profiles are offered, and to which card an event of a MIG device belongs."""

from __future__ import annotations

from typing import Any

import pytest
from hami_model.cards import MigPlacement
from hami_model.device_config import MigAllowance
from hami_node_agent.adapters.nvml_events import CriticalEvent, attributed
from hami_node_agent.core.inventory import CardFacts, Inventory, kubelet_devices, take_inventory
from hami_node_agent.core.mig_profiles import InstanceProfile, named
from hami_node_agent.core.mig_uuid import card_of, spelled_out
from hami_node_agent.core.node_options import HAMI_CORE, MIG, NodeOptions

CARD = "GPU-11111111-2222-3333-4444-555555555555"
NEW_FORM = "MIG-11111111-2222-5333-8444-555555555555"
H200_MIB = 143771
KINDS = {
    # kind: slices, instances, SMs, MiB
    0: (1, 7, 16, 16384),
    1: (2, 3, 32, 33280),
    2: (3, 2, 60, 71424),
    4: (7, 1, 132, 143360),
    7: (1, 1, 16, 16384),
    9: (1, 4, 26, 33280),
}
ALLOWED = (MigAllowance(models=["H200"], profiles=["1g.18gb", "2g.35gb", "3g.71gb", "7g.141gb"]),)


def profile(kind: int) -> InstanceProfile:
    slices, instances, sms, memory = KINDS[kind]
    return InstanceProfile(
        kind=kind,
        driver_id=kind + 10,
        slice_count=slices,
        instance_count=instances,
        sm_count=sms,
        memory_mib=memory,
        placements=(MigPlacement(start=0, size=slices),),
    )


PROFILES = tuple(profile(kind) for kind in KINDS)


def inventory(**more: Any) -> Inventory:
    fact = CardFacts(uuid=CARD, index=0, name="NVIDIA H200", memory_bytes=H200_MIB * 2**20, mig_profiles=PROFILES)
    options = {"operating_mode": MIG, "mig_allowances": ALLOWED, **more}
    return take_inventory([fact], NodeOptions(**options))


@pytest.mark.case("MIG-08")
@pytest.mark.parametrize(
    ("mode", "memory", "cores"),
    [pytest.param(MIG, 143771, 100, id="mig"), pytest.param(HAMI_CORE, 258787, 500, id="hami-core")],
)
def test_only_shares_are_scaled_never_instances(mode: str, memory: int, cores: int) -> None:
    (card,) = inventory(operating_mode=mode, memory_scaling=1.8, core_scaling=5.0).cards

    assert (card.memory_mib, card.cores_percent) == (memory, cores)


def test_a_card_in_mig_mode_is_offered_with_what_its_driver_makes() -> None:
    (card,) = inventory().cards

    assert card.slots == 7
    assert [(found.name, found.memory_mib, found.cores_percent) for found in card.mig_profiles] == [
        ("1g.18gb", 16384, 13), ("2g.35gb", 33280, 25), ("3g.71gb", 71424, 46), ("7g.141gb", 143360, 100),
    ]  # fmt: skip


@pytest.mark.parametrize(("split", "ids"), [(2, 7), (7, 7), (10, 10)])
def test_kubelet_has_an_id_for_each_instance_at_least(split: int, ids: int) -> None:
    assert len(kubelet_devices(inventory(split_count=split), numa_topology=False)) == ids


@pytest.mark.parametrize(
    ("allowances", "why"),
    [
        pytest.param((), "no entry of migProfileAllowlist names the model 'NVIDIA H200'", id="model not named"),
        pytest.param((MigAllowance(models=["H200"]),), "allows its model no profile", id="no profile allowed"),
        pytest.param(
            (MigAllowance(models=["H200"], profiles=["5g.90gb"]),), "'5g.90gb' of migProfileAllowlist", id="none fits"
        ),
    ],
)
def test_a_card_without_profile_is_not_offered_and_says_why(allowances: tuple[MigAllowance, ...], why: str) -> None:
    found = inventory(mig_allowances=allowances)

    assert found.cards == ()
    assert why in found.problems[0]
    assert "is not offered" in found.problems[0]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param("1g.18gb", 0, id="plain"),
        pytest.param("1g.35gb", 9, id="one slice with double memory is a profile of its own"),
        pytest.param("1g.18gb+me", 7, id="with media engines"),
        pytest.param("2g.35gb+me", None, id="which this card has for one slice only"),
        pytest.param("1g.18gb+gfx", None, id="nothing else"),
        pytest.param("1g.90gb", None, id="such memory no slice has"),
        pytest.param("3g.x", 2, id="a name without memory"),
        pytest.param("4g.80gb", None, id="no such profile"),
        pytest.param("x", None, id="no name of a profile"),
    ],
)
def test_what_a_name_stands_for(name: str, kind: int | None) -> None:
    found = named(PROFILES, name)

    assert (None if found is None else found.kind) == kind


@pytest.mark.case("MIG-06")
def test_both_forms_of_a_mig_uuid_lead_to_their_card() -> None:
    asked: list[str] = []

    def parent_of(uuid: str) -> str:
        asked.append(uuid)
        return CARD

    assert card_of(f"MIG-{CARD}/3/0", parent_of) == CARD
    assert asked == []
    assert card_of(NEW_FORM, parent_of) == CARD
    assert asked == [NEW_FORM]
    parts = spelled_out(f"MIG-{CARD}/13/0")
    assert parts is not None
    assert (parts.card_id, parts.gpu_instance, parts.compute_instance) == (CARD, 13, 0)


@pytest.mark.case("MIG-06")
def test_an_event_of_an_unknown_mig_device_is_of_no_card() -> None:
    event = attributed(CriticalEvent(uuid=NEW_FORM, xid=79), lambda _: None)

    assert (event.uuid, event.mig_device) == (None, NEW_FORM)
    known = attributed(CriticalEvent(uuid=NEW_FORM, xid=79), lambda _: CARD)
    assert (known.uuid, known.mig_device) == (CARD, "")
    nameless = attributed(CriticalEvent(uuid=None, xid=79), lambda _: CARD)
    assert (nameless.uuid, nameless.mig_device) == (None, "")
