"""What we do where we decide otherwise than HAMi about Hygon's and Ascend's cards."""

from __future__ import annotations

import importlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hami_model import allocations, device_config, kube, node_lock, register, requests
from hami_model.ids import AllocationId
from hami_scheduler.core.filter import FilterAnswer, filter_pod
from hami_scheduler.core.ledger import Ledger

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG = device_config.default_config(["ascend"])
B3 = "Ascend910B3"


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module beside this one."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return importlib.import_module("decisions_families")


def npus(*groups: object, word: str = B3) -> list[dict[str, Any]]:
    return [
        {
            "id": f"{word}-{n}", "index": n, "count": 4, "devmem": 65536, "devcore": 20, "type": word, "health": True,
            "custominfo": {"NetworkID": group},
        }
        for n, group in enumerate(groups)
    ]  # fmt: skip


def book(*cards: dict[str, Any], node: str = "n1", soft: bool = False, found: Ledger | None = None) -> Ledger:
    found = found or Ledger(CONFIG)
    words = dict.fromkeys(card["type"] for card in cards)
    annotations = {
        f"hami.io/node-register-{word}": json.dumps([card for card in cards if card["type"] == word]) for word in words
    }
    found.upsert_node(
        kube.Node(
            metadata=kube.Metadata(
                name=node, annotations={**annotations, "hami-vnpu-core": "true" if soft else "false"}
            ),
            status=kube.NodeStatus(allocatable={f"huawei.com/{word}": "8" for word in words}),
        ),
        NOW,
    )
    return found


def pod(name: str, *, word: str = B3, soft: bool = False, **amounts: str) -> kube.Pod:
    limits = {f"huawei.com/{word}{'' if key == 'count' else '-' + key}": text for key, text in amounts.items()}
    return kube.Pod(
        metadata=kube.Metadata(
            name=name, namespace="n", uid=name, annotations={"huawei.com/vnpu-mode": "hami-core"} if soft else {}
        ),
        spec=kube.PodSpec(containers=[kube.Container(name="c", resources=kube.Resources(limits=limits))]),
    )


def place(ledger: Ledger, asked: kube.Pod, *nodes: str, node_policy: str = "binpack") -> FilterAnswer:
    annotations = {**asked.annotations, "hami.io/node-scheduler-policy": node_policy}
    wanted = kube.Pod(
        metadata=kube.Metadata(
            name=asked.metadata.name, namespace="n", uid=asked.metadata.uid, annotations=annotations
        ),
        spec=asked.spec,
    )
    return filter_pod(ledger, wanted, list(nodes or ["n1"]), allocation_id=AllocationId("id"), now=NOW)


def held(answer: FilterAnswer) -> list[str]:
    assert answer.reservation is not None, answer
    return [piece.card_id for slot in answer.reservation.slots for piece in slot]


def test_soft_and_hard_splits_share_a_card_while_cores_are_left() -> None:
    ledger = book(*npus(0), soft=True)
    assert place(ledger, pod("soft", soft=True, count="1", memory="10000", core="30")).reservation
    assert place(ledger, pod("hard", count="1", memory="16384")).reservation
    assert place(ledger, pod("rest", soft=True, count="1", memory="10000", core="70")).reservation
    refused = place(ledger, pod("late", count="1", memory="16384"))
    assert refused.failed_nodes == {"n1": "1/1 CardComputeUnitsExhausted"}


def test_soft_splits_go_only_where_the_node_offers_them() -> None:
    refused = place(book(*npus(0, 0, 1)), pod("soft", soft=True, count="1", memory="1000"))
    assert {**refused.failed_nodes, **refused.unresolvable_nodes} == {"n1": "1/3 ModeNotFit"}


def test_as_many_cards_as_asked_whatever_their_groups() -> None:
    assert len(held(place(book(*npus("a", "b", True)), pod("p", count="2")))) == 2
    assert held(place(book(*npus("a", 0, 0, None)), pod("p", count="3")))[:2] == [f"{B3}-2", f"{B3}-1"]


def test_cards_of_another_chip_are_never_candidates() -> None:
    ledger = book(*npus(0, word="Ascend910B4-1"))
    refused = place(ledger, pod("p", word="Ascend910B4", count="1"))
    assert {**refused.failed_nodes, **refused.unresolvable_nodes} == {"n1": "NodeInsufficientDevice"}


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_the_node_with_the_better_group_wins_under_both_policies(policy: str) -> None:
    ledger = book(*npus(0, 1), node="apart")
    book(*npus(0, 0), node="together", found=ledger)
    assert place(ledger, pod("p", count="2"), "apart", "together", node_policy=policy).node_names == ["together"]


def test_a_pod_counts_where_it_runs() -> None:
    ledger = book(*npus(0))
    text = f"{B3}-0,{B3},65536,0:;"
    running = pod("r", count="1")
    ledger.upsert_pod(
        kube.Pod(
            metadata=kube.Metadata(
                name="r",
                namespace="n",
                uid="r",
                annotations={f"hami.io/{B3}-devices-allocated": text, "hami.io/vgpu-node": "gone"},
            ),
            spec=kube.PodSpec(node_name="n1", containers=running.spec.containers),
        ),
        NOW,
    )
    assert ledger.cluster.booked("r") == {f"{B3}-0": (65536, 0, 1)}


def test_nothing_is_written_for_a_family_of_which_nothing_is_held() -> None:
    written = allocations.assignment("n1", {B3: ((), ())}, CONFIG, allocation_id="id", now_seconds=1).annotations
    assert not [key for key in written if B3 in key or key == "predicate-time"]


def test_cores_beyond_a_card_are_those_of_a_card() -> None:
    asked = pod("p", count="1", core="4000")
    (container,) = requests.pod_request(asked, CONFIG, requests.Policies()).containers
    assert [card.cores_percent for card in container.cards] == [100]


def test_a_card_that_is_listed_twice_takes_no_new_pod() -> None:
    settings = CONFIG.vendor(B3)
    assert settings is not None
    (card,) = register.decode(settings.vendor, json.dumps([*npus(0), *npus(0)]))
    assert not card.healthy


def test_a_slot_belongs_to_its_container() -> None:
    ledger = Ledger(CONFIG)
    text = "DCU-A,4,65536,100,DCU-K100_AI,0,true,0,hami-core:"
    ledger.upsert_node(
        kube.Node(
            metadata=kube.Metadata(name="n1", annotations={"hami.io/node-dcu-register": text}),
            status=kube.NodeStatus(allocatable={"hygon.com/dcunum": "4"}),
        ),
        NOW,
    )
    limits = {"hygon.com/dcunum": "1", "hygon.com/dcumem": "2000", "hygon.com/dcucores": "10"}
    asked = kube.Pod(
        metadata=kube.Metadata(name="p", namespace="n", uid="p"),
        spec=kube.PodSpec(
            containers=[kube.Container(name="a"), kube.Container(name="b", resources=kube.Resources(limits=limits))]
        ),
    )
    written = place(ledger, asked).annotations["hami.io/dcu-devices-allocated"]
    assert written == ";DCU-A,DCU,2000,10:;"


A, B = (node_lock.PodName(namespace="n", name=name) for name in "ab")
UNBOUND = node_lock.OwnerView(node_name="", phase="Pending", bind_phase="")
BOUND = node_lock.OwnerView(node_name="n1", phase="Pending", bind_phase="allocating", bound_at=NOW)


def lock_step(value: str, owner: node_lock.OwnerView | None, *, after_seconds: int) -> node_lock.Step:
    """Of pod `b`."""
    now = NOW + timedelta(seconds=after_seconds)
    return node_lock.may_take(
        value, requester=B, owner=owner, node_name="n1", node_not_ready_since=None, now=now
    ).step  # fmt: skip


def test_a_lock_that_cannot_be_read_is_taken_over_and_left_by_others() -> None:
    assert lock_step("garbage", None, after_seconds=0) is node_lock.Step.TAKE
    assert not node_lock.may_release("garbage", B)


def test_a_lock_goes_by_whether_its_pod_waits_not_by_its_age() -> None:
    of_a, of_b = (node_lock.encode(owner, NOW) for owner in (A, B))
    assert lock_step(of_a, UNBOUND, after_seconds=60) is node_lock.Step.WAIT
    assert lock_step(of_a, UNBOUND, after_seconds=61) is node_lock.Step.TAKE
    assert lock_step(of_a, BOUND, after_seconds=301) is node_lock.Step.WAIT
    assert lock_step(of_b, None, after_seconds=301) is node_lock.Step.KEEP


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"op": "patch_annotations", "input": {"decision": [[], []]}}, "nothing-held"),
        ({"op": "request", "input": {"resources": {"limits": {"hygon.com/dcucores": "200"}}}}, "cores-beyond-a-card"),
        ({"op": "request", "input": {"resources": {"limits": {"hygon.com/dcumem": "1Gi"}}}}, "unit"),
        ({"nodes": [], "scheduled": [{"metadata": {"annotations": {"hami.io/vgpu-node": "a"}},
                                      "spec": {"nodeName": "b"}}]}, "bound-elsewhere"),
        ({"op": "select_uuid", "input": {}}, None),
        ({"op": "lock_sequence", "input": {"steps": [{"op": "lock", "pod": "a", "set_lock": "garbage"}]}},
         "unreadable-lock"),
        ({"op": "lock_sequence", "input": {"steps": [{"op": "lock", "pod": "a"},
                                                     {"op": "lock", "pod": "b", "wait_seconds": 61}]}},
         "lock-of-a-waiting-pod"),
        ({"op": "lock_sequence", "input": {"steps": [{"op": "lock", "pod": "a"},
                                                     {"op": "lock", "pod": "b", "wait_seconds": 60},
                                                     {"op": "lock", "pod": "a", "wait_seconds": 240}]}}, None),
    ],
)  # fmt: skip
def test_rows_are_told_apart_by_what_is_asked(row: dict[str, Any], kind: str | None, decisions: Any) -> None:
    assert decisions.family_suspicion({"family": "hygon", **row}) == kind


def test_other_families_wait(decisions: Any) -> None:
    assert decisions.family_deferral({"family": "amd"}) == "another accelerator family"
    mixed = {"family": "mixed", "pod": {"spec": {"resources": {"amd.com/gpu": "1"}}}}
    assert decisions.family_deferral(mixed) == "another accelerator family"
    for operation in ("request", "fit", "score_node", "lock_sequence"):
        assert decisions.family_deferral({"family": "hygon", "op": operation, "input": {}}) is None
    assert len(set(decisions.FAMILY_SUSPICIONS)) == len(decisions.FAMILY_SUSPICIONS)
    assert len(set(decisions.FAMILY_DEFERRALS)) == len(decisions.FAMILY_DEFERRALS)
