"""Pair scores of nodes: read from their annotation, noticed when it alone changes, and told where they are missing."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import msgspec
import pytest
from hami_model import device_config, events, kube
from hami_model.ids import AllocationId
from hami_model.lifecycle import ExpiryCause
from hami_model.vendors import vendor
from hami_scheduler.core import explanations, rejections
from hami_scheduler.core.announcements import Announcements
from hami_scheduler.core.filter import FilterAnswer, filter_pod
from hami_scheduler.core.ledger import Ledger
from hami_scheduler.core.records import NodeChange
from scheduler_builders import ALLOCATED_KEY, NVIDIA, Json, node, pod

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
SCORE_KEY = vendor(NVIDIA).pair_scores_key
POLICY_KEY = "hami.io/gpu-scheduler-policy"


def connected(first: str, second: str, score: int = 100) -> str:
    """Four cards, of which two are connected better than the others."""
    ids = [f"n1-{number}" for number in range(4)]
    scores = {
        card: {peer: score if {card, peer} == {first, second} else 10 for peer in ids if peer != card} for card in ids
    }
    return json.dumps([{"uuid": card, "score": peers} for card, peers in scores.items()])


def observe(ledger: Ledger, scores: str | None, version: int) -> NodeChange:
    document = node("n1", 4, annotations={} if scores is None else {SCORE_KEY: scores})
    document["metadata"]["resourceVersion"] = str(version)
    return ledger.upsert_node(msgspec.convert(document, kube.Node), NOW)


def asking(gpu: int, policy: str | None = "topology-aware", name: str = "p") -> Json:
    return pod(name, gpu=gpu, uid=name, annotations={} if policy is None else {POLICY_KEY: policy})


def place(ledger: Ledger, document: Json) -> FilterAnswer:
    found = msgspec.convert(document, kube.Pod)
    return filter_pod(ledger, found, ["n1"], allocation_id=AllocationId("id-1"), now=NOW)


def cards_given(answer: FilterAnswer) -> list[str]:
    return [item.split(",")[0] for item in answer.annotations[ALLOCATED_KEY].strip(";:").split(":")]


@pytest.fixture
def ledger() -> Ledger:
    found = Ledger(device_config.default_config())
    observe(found, connected("n1-0", "n1-1"), 1)
    found.adopting = False
    return found


def test_the_best_connected_cards_are_given(ledger: Ledger) -> None:
    answer = place(ledger, asking(2))
    assert cards_given(answer) == ["n1-1", "n1-0"]
    assert answer.placement is not None
    assert answer.placement.notes == {}
    assert cards_given(place(ledger, asking(2, policy="binpack, topology-aware"))) == ["n1-1", "n1-0"]
    assert cards_given(place(ledger, asking(1))) == ["n1-3"]
    assert cards_given(place(ledger, asking(2, policy=None))) == ["n1-3", "n1-2"]


def test_scores_that_change_alone_count_at_once_and_book_nothing_anew(ledger: Ledger) -> None:
    place(ledger, asking(1, name="other"))
    before = [card.used_memory_mib for card in ledger.cluster.node_cards("n1")]
    assert observe(ledger, connected("n1-0", "n1-2"), 2).capacity_changed
    assert cards_given(place(ledger, asking(2))) == ["n1-2", "n1-0"]
    ledger.expire("p", ExpiryCause.SUPERSEDED)
    assert [card.used_memory_mib for card in ledger.cluster.node_cards("n1")] == before
    assert not observe(ledger, connected("n1-0", "n1-2"), 3).capacity_changed
    assert ledger.cluster.check_invariants() == []


@pytest.mark.parametrize("broken", ["[", '{"uuid": 1}', '[{"uuid":"n1-0","score":{"n1-1":0.5}}]'])
def test_scores_that_cannot_be_read_cost_the_scores_alone_until_they_are_mended(ledger: Ledger, broken: str) -> None:
    change = observe(ledger, broken, 2)
    assert SCORE_KEY in change.problems[NVIDIA]
    assert observe(ledger, broken, 3).problems == {}
    answer = place(ledger, asking(2))
    assert cards_given(answer) == ["n1-3", "n1-2"]
    assert answer.placement is not None
    assert "PairScoresMissing" in answer.placement.notes
    observe(ledger, connected("n1-0", "n1-1"), 4)
    assert cards_given(place(ledger, asking(2))) == ["n1-1", "n1-0"]


def test_a_choice_without_scores_is_told_wherever_it_is_looked_for(ledger: Ledger) -> None:
    observe(ledger, None, 2)
    pending = msgspec.convert(asking(2), kube.Pod)
    explained = explanations.explain(ledger, pending, explanations.ExplainQuestion(namespace="default", name="p"))
    assert list(explained.nodes[0].notes) == ["PairScoresMissing"]

    answer = place(ledger, asking(2))
    sentence = explained.nodes[0].notes["PairScoresMissing"]
    [notice] = rejections.notices(answer, ["n1"])
    assert notice.message.endswith(f"; {sentence}")
    told = Announcements("hami-scheduler/test").of_filter(pending, ["n1"], answer, NOW)
    [placed] = [event for event in told if isinstance(event, events.PlacementPlaced)]
    assert placed.notes == {"PairScoresMissing": sentence}
