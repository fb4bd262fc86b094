"""Waits until the API server goes by roles that were just applied: it reads them by a watch, which may lag.

Who begins before that is refused once or twice, and logs what looks like a right that is missing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from hami_sim.cluster.errors import ClusterError
from hami_sim.controlplane import RestClient

TIMEOUT_SECONDS = 300.0
POLL_SECONDS = 0.1
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
BINDINGS = {"ClusterRoleBinding", "RoleBinding"}

JsonObject = dict[str, Any]


async def wait_until_roles_count(
    client: RestClient, documents: list[JsonObject], timeout_seconds: float = TIMEOUT_SECONDS
) -> None:
    """One right of each binding, which comes of binding and role together. Raises ApiError, ClusterError.

    Of roles that are not among the documents, the API server's own, nothing is asked.
    """
    deadline = time.monotonic() + timeout_seconds
    for right in _rights(documents):
        while not await _has(client, right):
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"after {timeout_seconds:.0f} s the API server still refuses {right['user']} what its role allows: "
                    f"{right['resourceAttributes']}; look at the API server's log"
                )
            await asyncio.sleep(POLL_SECONDS)


def _rights(documents: list[JsonObject]) -> Iterator[JsonObject]:
    """Specs of SubjectAccessReviews."""
    roles = {
        _key(each["kind"], each["metadata"]): each for each in documents if each["kind"] in {"ClusterRole", "Role"}
    }
    for binding in documents:
        if binding["kind"] not in BINDINGS:
            continue
        reference, space = binding["roleRef"], binding["metadata"].get("namespace", "")
        role = roles.get(_key(reference["kind"], {"name": reference["name"], "namespace": space}))
        if role is None:
            continue
        rule = role["rules"][0]
        resource, _, subresource = rule["resources"][0].partition("/")
        for subject in binding["subjects"]:
            yield {
                "user": f"system:serviceaccount:{subject['namespace']}:{subject['name']}",
                "resourceAttributes": {
                    "verb": rule["verbs"][0],
                    "group": rule["apiGroups"][0],
                    "resource": resource,
                    "subresource": subresource,
                    "namespace": space,
                    "name": next(iter(rule.get("resourceNames", ())), ""),
                },
            }


def _key(kind: str, metadata: JsonObject) -> tuple[str, str, str]:
    return kind, "" if kind == "ClusterRole" else metadata["namespace"], metadata["name"]


async def _has(client: RestClient, right: JsonObject) -> bool:
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": right}
    allowed: bool = (await client.post(REVIEWS, review))["status"]["allowed"]
    return allowed
