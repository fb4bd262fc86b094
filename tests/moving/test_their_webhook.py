"""HAMi's webhook and ours called for the same pod, as in a cluster where one takes the other's place.

kube-apiserver calls webhooks by name: `hami-webhook` after HAMi's, should both be registered for a while.
"""

from __future__ import annotations

import copy
from pathlib import Path

import answer_webhook
import pytest
from pod_objects import apply_patch, normalised
from vectors import Row, rows

VECTORS = Path(__file__).parents[1] / "data/vectors"


def could_be_created(row: Row) -> bool:
    """kube-apiserver takes no card that stands in the requests and not in the limits."""
    pod = row["review"]["request"]["object"] or {}
    every = [container.get("resources") or {} for container in (pod.get("spec") or {}).get("containers") or []]
    return all(
        name in (resources.get("limits") or {})
        for resources in every
        for name in resources.get("requests") or {}
        if name.startswith("nvidia.com/")
    )


ADMITTED = [
    row
    for row in rows(VECTORS / "webhook.jsonl.xz")
    if row["expect"]["allowed"]
    and row["raw_body"] is None
    and row["expect"]["pod"]
    and "suspect" not in row["tags"]
    and could_be_created(row)
]


def seen_by_ours_after_theirs(row: Row) -> Row:
    later = copy.deepcopy(row)
    later["review"]["request"]["object"] = row["expect"]["pod"]
    return later


def test_there_are_recordings() -> None:
    assert len(ADMITTED) > 250


@pytest.mark.parametrize("row", ADMITTED, ids=lambda row: row["id"])
def test_a_pod_that_hami_s_webhook_completed_is_as_if_ours_had_seen_it_alone(row: Row) -> None:
    alone, after = answer_webhook.answer(row), answer_webhook.answer(seen_by_ours_after_theirs(row))
    assert after["allowed"] == alone["allowed"]
    if alone["allowed"]:
        assert after["pod"] == alone["pod"]
        if alone["pod"] == normalised(row["expect"]["pod"]):
            assert not after["patch"], "nothing is left to do"


@pytest.mark.parametrize("row", ADMITTED, ids=lambda row: row["id"])
def test_a_pod_that_ours_completed_is_complete_for_ours(row: Row) -> None:
    """kube-apiserver may call a webhook again when a later one changed the pod."""
    first = answer_webhook.answer(row)
    if not first["allowed"]:
        return
    again = copy.deepcopy(row)
    again["review"]["request"]["object"] = apply_patch(row["review"]["request"]["object"], first["patch"])
    second = answer_webhook.answer(again)
    assert second["allowed"]
    assert second["pod"] == first["pod"]
