"""A family of accelerators is one descriptor file: a made-up one goes the whole way without a line of code."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hami_model import device_config, kube
from hami_model.device_config import DeviceConfig
from hami_model.ids import AllocationId
from hami_model.vendors import read_catalogue
from hami_scheduler.core import explanations
from hami_scheduler.core.filter import filter_pod
from hami_scheduler.core.ledger import Ledger
from hami_webhook.core import quota_book, review

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DESCRIPTOR = """
word = "Abacus"
register_key = "hami.io/node-abacus-register"
register_format = "json"
group_field = "Shelf"
health = "handshake"
handshake_key = "hami.io/node-handshake-abacus"
to_allocate_key = "hami.io/abacus-devices-to-allocate"
allocated_key = "hami.io/abacus-devices-allocated"
use_models_key = "abacus.example/use-type"

[resources]
count = "abacus.example/frame"
memory = "abacus.example/beads"
cores = "abacus.example/fingers"

[request]
cores_percent = 10

[placement]
model_contains = "abacus"
selection = "groups"
group_weight = 5

[config]
section = "abacus"
keys = ["resourceCountName", "resourceMemoryName", "resourceCoreName", "memoryFactor"]
"""
CARDS = [
    {"id": f"ab-{n}", "index": n, "count": 4, "devmem": 1000, "devcore": 100, "type": "Abacus-9", "health": True,
     "custominfo": {"Shelf": shelf}}
    for n, shelf in enumerate(["upper", "lower", "lower"])
]  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> DeviceConfig:
    (tmp_path / "abacus.toml").write_text(DESCRIPTOR)
    return device_config.default_config(families=read_catalogue(tmp_path))


def pod(**limits: str) -> dict[str, Any]:
    resources = {"limits": {f"abacus.example/{name}": text for name, text in limits.items()}}
    containers = [{"name": "idle"}, {"name": "main", "resources": resources}]
    return {
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"containers": containers},
    }


def admitted(document: dict[str, Any], config: DeviceConfig, *quotas: kube.ResourceQuota) -> dict[str, Any]:
    body = json.dumps({"request": {"uid": "r", "operation": "CREATE", "object": document}})
    book = quota_book.book_of(config, quotas=quotas)
    _, reply = review.answer(
        body.encode(), config=config, scheduler_name="hami-scheduler", force_overwrite=True, quota_view=book.view
    )
    response: dict[str, Any] = json.loads(reply)["response"]
    return response


def ledger(config: DeviceConfig) -> Ledger:
    found = Ledger(config)
    annotations = {"hami.io/node-abacus-register": json.dumps(CARDS)}
    node = kube.Node(
        metadata=kube.Metadata(name="shelf-1", annotations=annotations),
        status=kube.NodeStatus(allocatable={"abacus.example/frame": "12"}),
    )
    change = found.upsert_node(node, NOW)
    assert change.stamps == {"hami.io/node-handshake-abacus": "Requesting_2026-01-01 00:00:00"}
    return found


def test_admission_routes_its_pods_and_holds_its_quota(config: DeviceConfig) -> None:
    answer = admitted(pod(frame="1", beads="100"), config)
    patch = json.loads(base64.b64decode(answer["patch"]))
    assert patch == [{"op": "add", "path": "/spec/schedulerName", "value": "hami-scheduler"}]
    limit = kube.ResourceQuota(
        metadata=kube.Metadata(name="q", namespace="n"),
        spec=kube.QuotaSpec(hard={"limits.abacus.example/beads": "99"}),
    )
    assert not admitted(pod(frame="1", beads="100"), config, limit)["allowed"]
    refused = admitted(pod(beads="100"), config)
    assert not refused["allowed"]
    assert "abacus.example/frame: 1" in refused["status"]["message"]


def test_its_cards_are_chosen_booked_and_written_slot_by_slot(config: DeviceConfig) -> None:
    book = ledger(config)
    asked = msgspec.convert(pod(frame="2", beads="100"), kube.Pod)
    found = filter_pod(book, asked, ["shelf-1"], allocation_id=AllocationId("id"), now=NOW)
    written = found.annotations["hami.io/abacus-devices-allocated"]
    assert written == ";ab-2,Abacus,100,10:ab-1,Abacus,100,10:;"
    assert found.annotations["hami.io/abacus-devices-to-allocate"] == written
    assert found.scores == {"shelf-1": pytest.approx(5.0)}
    assert book.cluster.booked("u") == {"ab-1": (100, 10, 1), "ab-2": (100, 10, 1)}
    bound = msgspec.convert(pod(frame="2", beads="100"), kube.Pod)
    metadata = msgspec.structs.replace(bound.metadata, annotations=found.annotations)
    again = ledger(config)
    again.upsert_pod(msgspec.structs.replace(bound, metadata=metadata, spec=_on("shelf-1", bound)), NOW)
    assert again.cluster.booked("u") == book.cluster.booked("u")


def _on(node: str, found: kube.Pod) -> kube.PodSpec:
    return msgspec.structs.replace(found.spec, node_name=node)


def test_a_pod_that_does_not_fit_is_explained(config: DeviceConfig) -> None:
    asked = msgspec.convert(pod(frame="1", beads="2000"), kube.Pod)
    told = explanations.explain(ledger(config), asked, explanations.ExplainQuestion(namespace="n", name="p"))
    assert told.reasons == {"3/3 CardInsufficientMemory": 1}
    assert {card.code for card in told.nodes[0].cards} == {"CardInsufficientMemory"}
