"""Reviews that real API servers sent: they decode, and are answered for what they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hami_model import device_config
from hami_model.vendors import ResourceNames
from hami_webhook.core.quota import NamespaceQuota
from hami_webhook.core.review import Review, decode, reply
from webhook_builders import configured, decoded, policy

BODIES = sorted((Path(__file__).parent / "data" / "kube").glob("*/*.json"))
# The recordings ask for resources of this name.
THEIRS = ResourceNames(count="example.com/gpu", memory="example.com/gpu-mem", cores="example.com/gpu-core")


def test_there_are_recordings() -> None:
    assert len(BODIES) == 19


@pytest.mark.parametrize("path", BODIES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_recorded_review(path: Path) -> None:
    body = path.read_bytes()
    review = decode(body, "application/json")
    assert isinstance(review, Review)
    sent = json.loads(body)["request"]
    assert (review.uid, review.namespace, review.operation) == (sent["uid"], sent["namespace"], "CREATE")
    for config in (device_config.default_config(), configured(resources=THEIRS)):
        answer = reply(
            body,
            policy=policy(config),
            quota_view=lambda _namespace: NamespaceQuota(),
            content_type="application/json",
        )
        reviewed = decoded(answer.http_status, answer.body, sent["object"])
        assert (reviewed.http_status, reviewed.allowed) == (200, True)
        asks = any(
            name in THEIRS.all
            for container in sent["object"]["spec"]["containers"]
            for name in container.get("resources", {}).get("limits", {})
        )
        claimed = asks and config.vendors[0].resources is THEIRS
        scheduler = "hami-scheduler" if claimed else sent["object"]["spec"]["schedulerName"]
        assert reviewed.pod["spec"]["schedulerName"] == scheduler
