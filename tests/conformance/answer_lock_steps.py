"""Op `lock_sequence`: steps of taking and giving back a node's lock, by pods that exist and wait to be bound."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hami_model import keys, kube, node_lock, requests
from hami_model.device_config import DeviceConfig, VendorSettings
from hami_model.errors import MalformedAnnotation
from hami_model.node_lock import Decision, OwnerView, PodName, Step
from vectors import Row

NODE = "n1"
NAMESPACE = "default"
ASKING = frozenset({"a", "b"})
EXISTING = ASKING | {"plain"}


def lock_sequence(settings: VendorSettings, steps: list[Row]) -> list[dict[str, Any]]:
    now, annotations, found = datetime(2000, 1, 1, tzinfo=UTC), dict[str, str](), []
    for step in steps:
        now += timedelta(seconds=step.get("wait_seconds", 0))
        if "set_lock" in step:
            annotations[step["lock_key"]] = step["set_lock"]
        refused = False
        requester = PodName(namespace=NAMESPACE, name=step["pod"])
        if _asks(settings, step["pod"]):
            standing = annotations.get(keys.NODE_LOCK)
            if step["op"] == "release":
                if node_lock.may_release(standing, requester):
                    del annotations[keys.NODE_LOCK]
            else:
                decision = _judge(standing, requester, now)
                refused = decision.step not in (Step.TAKE, Step.KEEP)
                if decision.step is Step.TAKE:
                    annotations[keys.NODE_LOCK] = node_lock.encode(requester, now)
        found.append(
            {"now": now.strftime("%Y-%m-%dT%H:%M:%SZ"), "error": refused, "annotations_after": dict(annotations)}
        )
    return found


def _judge(standing: str | None, requester: PodName, now: datetime) -> Decision:
    """By a consistent read of the owner, which in these vectors is not bound yet, or not there."""
    waiting = OwnerView(node_name="", phase="Pending", bind_phase="")
    return node_lock.may_take(
        standing,
        requester=requester,
        owner=waiting if _owner(standing) in EXISTING else None,
        node_name=NODE,
        node_not_ready_since=None,
        now=now,
    )


def _owner(standing: str | None) -> str | None:
    if standing is None:
        return None
    try:
        owner = node_lock.parse(standing).owner
    except MalformedAnnotation:
        return None
    return owner.name if owner is not None else None


def _asks(settings: VendorSettings, name: str) -> bool:
    """Only a pod that asks for cards comes to the lock at all."""
    limits: dict[str, str | int | float] = {settings.resources.count: "1"} if name in ASKING else {}
    pod = kube.Pod(
        metadata=kube.Metadata(name=name, namespace=NAMESPACE, uid=name),
        spec=kube.PodSpec(containers=[kube.Container(name="c0", resources=kube.Resources(limits=limits))]),
    )
    return requests.pod_request(pod, DeviceConfig(vendors=(settings,)), requests.Policies()).asks_for_cards
