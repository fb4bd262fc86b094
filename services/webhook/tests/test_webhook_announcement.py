"""Which events a review gives."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hami_model import events
from hami_webhook.core.announcement import announcement
from hami_webhook.core.quota import NamespaceQuota
from hami_webhook.core.review import reply
from webhook_builders import Json, container, gpu_pod, pod, policy, review_body

TIME = datetime(2026, 1, 1, tzinfo=UTC)


def announced(document: Json, **request: Any) -> events.AdmissionEvent | None:
    answer = reply(
        review_body(document, **request),
        policy=policy(),
        quota_view=lambda _namespace: NamespaceQuota(),
        content_type="application/json",
    )
    assert answer.review is not None
    return announcement(answer.review, answer.verdict, source="/hami/webhook/w-0", time=TIME)


def test_an_admitted_pod() -> None:
    document = gpu_pod(gpu=1, gpumem=100)
    document["metadata"] = {
        "generateName": "web-",
        "ownerReferences": [{"kind": "ReplicaSet", "name": "web-1", "uid": "x", "controller": True}],
    }
    found = announced(document)
    assert found == events.AdmissionAdmitted(
        source="/hami/webhook/w-0",
        time=TIME,
        request_uid="u-1",
        namespace="team-a",
        generate_name="web-",
        owner="ReplicaSet/web-1",
        changes=(events.PatchChange(op="add", path="/spec/schedulerName"),),
    )
    assert found.subject() == "hami.v1.admission.team-a.admitted"


def test_a_rejected_pod_says_what_to_change() -> None:
    document = gpu_pod(gpu=1)
    document["spec"]["nodeName"] = "n1"
    found = announced(document)
    assert isinstance(found, events.AdmissionRejected)
    assert found.reason.startswith("pod has node assigned: ")
    assert found.subject() == "hami.v1.admission.team-a.rejected"


@pytest.mark.parametrize("limits", [{"cpu": "1"}, {"nvidia.com/gpu": "1"}])
def test_what_leaves_no_trace(limits: dict[str, str]) -> None:
    assert announced(pod(container()), dryRun=False) is None
    assert announced(pod(container(limits=limits)), dryRun=True) is None
