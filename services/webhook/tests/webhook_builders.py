"""Builders of pods and reviews, and one call that reviews a pod as the service does."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from hami_model import device_config, kube
from hami_model.device_config import DeviceConfig
from hami_webhook.core.patch import Add, Remove, apply_patch
from hami_webhook.core.quota import NamespaceQuota
from hami_webhook.core.quota_book import book_of
from hami_webhook.core.review import Policy, reply

Json = dict[str, Any]


class Reviewed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer as a client of the webhook sees it, and the pod that comes of it."""

    http_status: int
    allowed: bool
    code: int
    message: str
    warnings: list[str]
    patch: list[Json]
    pod: Json
    """The pod after the patch; empty when it was refused."""
    causes: list[str]


def container(name: str = "main", **fields: Any) -> Json:
    """A container; `limits` and `requests` are short for its resources."""
    resources = {key: fields.pop(key) for key in ("limits", "requests") if key in fields}
    return {"name": name, "image": "img", **({"resources": resources} if resources else {}), **fields}


def pod(*containers: Json, **spec: Any) -> Json:
    """A pod in namespace team-a."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "team-a"},
        "spec": {"containers": list(containers), **spec},
    }


def gpu_pod(**limits: str | int) -> Json:
    """A pod of one container; `gpu`, `gpumem` and so on are the limits' names without `nvidia.com/`."""
    names = {f"nvidia.com/{name.replace('_', '-')}": str(value) for name, value in limits.items()}
    return pod(container(limits=names))


def review_body(document: Json, **request: Any) -> bytes:
    """The AdmissionReview that creates that pod."""
    return json.dumps(
        {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {"uid": "u-1", "namespace": "team-a", "operation": "CREATE", "object": document, **request},
        }
    ).encode()


def configured(**settings: Any) -> DeviceConfig:
    """The default configuration with other settings of the NVIDIA family."""
    default = device_config.default_config()
    return DeviceConfig(vendors=(msgspec.structs.replace(default.vendor("NVIDIA"), **settings),))


def policy(config: DeviceConfig | None = None, **fields: Any) -> Policy:
    return Policy(config=config or device_config.default_config(), **{"scheduler_name": "hami-scheduler", **fields})


def quota(name: str = "q", namespace: str = "team-a", **hard: str) -> kube.ResourceQuota:
    """A ResourceQuota; `gpumem` and so on are short for `limits.nvidia.com/gpumem`."""
    return kube.ResourceQuota(
        metadata=kube.Metadata(name=name, namespace=namespace, uid=f"{namespace}-{name}"),
        spec=kube.QuotaSpec(hard={f"limits.nvidia.com/{key}": value for key, value in hard.items()}),
    )


def running_pod(uid: str, allocated: str, *, namespace: str = "team-a", **fields: Any) -> kube.Pod:
    """A bound pod of one container that holds what the annotation says."""
    return msgspec.convert(
        {
            "metadata": {
                "name": uid, "namespace": namespace, "uid": uid,
                "annotations": {"hami.io/vgpu-devices-allocated": allocated},
            },
            "spec": {"nodeName": "n1", "containers": [container(limits={"nvidia.com/gpu": 1})]},
            "status": {"phase": "Running"},
            **fields,
        },
        kube.Pod,
    )  # fmt: skip


def decoded(http_status: int, body: bytes, document: Json) -> Reviewed:
    """Reads an answer and applies its patch to the pod that was sent."""
    answered = json.loads(body)
    assert answered["kind"] == "AdmissionReview"
    response = answered["response"]
    operations: list[Add | Remove] = []
    if "patch" in response:
        assert response["patchType"] == "JSONPatch"
        operations = msgspec.json.decode(base64.b64decode(response["patch"]), type=list[Add | Remove])
    return Reviewed(
        http_status=http_status,
        allowed=response["allowed"],
        code=response["status"]["code"],
        message=response["status"]["message"],
        warnings=response.get("warnings", []),
        patch=msgspec.to_builtins(operations),
        pod=apply_patch(document, operations) if response["allowed"] else {},
        causes=[cause["message"] for cause in response["status"].get("details", {}).get("causes", [])],
    )


def review_pod(
    document: Json,
    *,
    request: Mapping[str, Any] | None = None,
    under: Policy | None = None,
    quotas: Iterable[kube.ResourceQuota] = (),
    pods: Iterable[kube.Pod] = (),
    quota_known: bool = True,
) -> Reviewed:
    """Sends the pod through the whole core."""
    rules = under or policy()
    book = book_of(rules.config, pods=pods, quotas=quotas)

    def view(namespace: str) -> NamespaceQuota | None:
        return book.view(namespace) if quota_known else None

    answer = reply(
        review_body(document, **(request or {})), policy=rules, quota_view=view, content_type="application/json"
    )
    return decoded(answer.http_status, answer.body, document)
