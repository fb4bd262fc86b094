"""Bodies that kube-scheduler really sent decode as they are."""

import json
from pathlib import Path

import pytest
from hami_scheduler.core import extender

RECORDED = Path(__file__).parents[1] / "data/kube"


@pytest.mark.parametrize("body", sorted(RECORDED.rglob("*-filter.json")), ids=lambda path: path.parent.name)
def test_filter_bodies_of_kube_scheduler_decode(body: Path) -> None:
    sent = json.loads(body.read_bytes())
    found = extender.decode_filter(body.read_bytes())
    assert found.pod.metadata.name == sent["Pod"]["metadata"]["name"]
    assert found.node_names == sent["NodeNames"]
    assert [c.name for c in found.pod.app_containers] == [c["name"] for c in sent["Pod"]["spec"]["containers"]]


@pytest.mark.parametrize("body", sorted(RECORDED.rglob("*-bind.json")), ids=lambda path: path.parent.name)
def test_bind_bodies_of_kube_scheduler_decode(body: Path) -> None:
    sent = json.loads(body.read_bytes())
    found = extender.decode_bind(body.read_bytes())
    assert [found.pod_name, found.pod_namespace, found.pod_uid, found.node] == [
        sent[key] for key in ("PodName", "PodNamespace", "PodUID", "Node")
    ]
