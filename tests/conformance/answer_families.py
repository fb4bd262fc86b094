"""Families other than NVIDIA: their configuration in vectors, and their codecs and small pure functions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import answer_card_walk
import answer_lock_steps
import msgspec
import yaml
from hami_model import allocations, device_config, handshake, kube, register, requests
from hami_model.cards import Slice
from hami_model.device_config import DeviceConfig, VendorSettings
from hami_model.errors import InvalidRequestError, MalformedAnnotation, MalformedError
from hami_model.ids import AllocationId, CardId, NodeName
from hami_model.vendors import catalogue
from hami_webhook.core.mutate import mutate
from hami_webhook.core.refusal import Refusal
from pod_objects import canonical_quantity
from vectors import Row

ENABLED = frozenset({"ascend"})
"""The vectors' cluster has the optional families switched on."""
TIME_KEYS = frozenset({"hami.io/vgpu-time", "predicate-time"})


def configuration(text: str | None) -> DeviceConfig:
    """The defaults of all families; a section in `text` stands in place of its defaults."""
    if text is None:
        return device_config.default_config(ENABLED)
    written = set(yaml.safe_load(text) or {})
    others = [family for family in catalogue() if family.config.section not in written]
    kept = device_config.default_config(ENABLED & {family.name for family in others}, others)
    try:
        parsed = device_config.parse(text, ENABLED).vendors
    except device_config.DeviceConfigError:
        parsed = ()
    return DeviceConfig(vendors=(*kept.vendors, *parsed))


def answer(row: Row) -> dict[str, Any]:
    settings = configuration(None).vendor(row["variant"])
    assert settings is not None
    try:
        if row["op"] == "health_sequence":
            return {"steps": _health_sequence(settings, row["input"]["steps"])}
        if row["op"] == "lock_sequence":
            return {"steps": answer_lock_steps.lock_sequence(settings, row["input"]["steps"])}
        return {"ok": True, "error": None, "value": OPERATIONS[row["op"]](settings, row["input"])}
    except (MalformedError, InvalidRequestError) as error:
        return {"ok": False, "error": str(error), "value": None}
    except _RefusedError as error:
        return {"ok": False, "error": str(error), "value": {"found": True}}


class _RefusedError(Exception):
    pass


def _node_devices(settings: VendorSettings, given: Row) -> object:
    descriptor = settings.vendor
    text = given["node"].get("annotations", {}).get(descriptor.register_key)
    found = register.decode(descriptor, text) if text is not None else ()
    if not found:
        raise MalformedAnnotation(descriptor.register_key, "no cards")
    return [
        {
            "id": card.id,
            "index": card.index,
            "count": card.slots,
            "devmem": card.memory_mib,
            "devcore": card.cores_percent,
            "type": card.model,
            "numa": card.numa,
            "mode": card.mode,
            "health": card.healthy,
            "vendor": descriptor.word,
            **({"custom": card.custom} if card.custom else {}),
        }
        for card in found
    ]


def _container(given: Row) -> kube.Container:
    return kube.Container(name="c0", resources=msgspec.convert(given["resources"], kube.Resources))


def _request(settings: VendorSettings, given: Row) -> object:
    found = requests.card_request(_container(given), settings)
    return {
        "type": settings.vendor.word if found else "",
        "nums": found.count if found else 0,
        "mem": found.memory_mib if found else 0,
        "mem_percent": (found.memory_percent or 0) if found else 0,
        "cores": found.cores_percent if found else 0,
    }


def _admit(settings: VendorSettings, given: Row) -> object:
    document = {
        "metadata": {"name": "p", "namespace": "n", "annotations": given["pod_annotations"]},
        "spec": {"containers": [{"name": "c0", "resources": given["resources"]}]},
    }
    pod = msgspec.convert(document, kube.Pod)
    changed = mutate(document, pod, DeviceConfig(vendors=(settings,)))
    if isinstance(changed, Refusal):
        raise _RefusedError(changed.message)
    (container,) = changed.pod.app_containers
    resources = container.resources or kube.Resources()
    tables = {"limits": resources.limits or {}, "requests": resources.requests or {}}
    return {
        "found": changed.claimed,
        "pod_annotations": changed.pod.annotations,
        "resources": {
            table: {name: canonical_quantity(str(text)) for name, text in values.items()}
            for table, values in tables.items()
            if values
        },
        **({"env": [{"name": e.name, "value": e.value} for e in container.env]} if container.env else {}),
    }


def _select_uuid(settings: VendorSettings, given: Row) -> object:
    found = requests.constraint(given["pod_annotations"], settings)
    return (found.use_cards is None or given["uuid"] in found.use_cards) and given["uuid"] not in (
        found.avoid_cards or ()
    )


def _patch_annotations(settings: VendorSettings, given: Row) -> object:
    pod = msgspec.convert(given["pod"], kube.Pod)
    slots = tuple(
        tuple(
            Slice(card_id=CardId(c["uuid"]), vendor=c["type"], memory_mib=c["mem"], cores_percent=c["cores"])
            for c in slot
        )
        for slot in given["decision"]
    )
    config = DeviceConfig(vendors=(settings,))
    found = allocations.assignment(
        NodeName("n1"),
        {settings.vendor.word: slots},
        config,
        allocation_id=AllocationId("id"),
        now_seconds=1,
        soft_split_modes=requests.soft_split_modes(pod.annotations, config),
    ).annotations
    left_out = TIME_KEYS | {"hami.io/allocation-id"}
    return {
        "annotations": {key: value for key, value in found.items() if key not in left_out},
        "time_annotations": sorted((TIME_KEYS & found.keys()) - {"hami.io/vgpu-time"}),
    }


def _decode_pod_devices(_settings: VendorSettings, given: Row) -> object:
    return [
        [{"uuid": p.card_id, "type": p.vendor, "mem": p.memory_mib, "cores": p.cores_percent} for p in slot]
        for slot in allocations.decode(given["text"])
    ]


def _health_sequence(settings: VendorSettings, steps: list[Row]) -> list[dict[str, Any]]:
    memory, now, found = handshake.Memory(), datetime(2000, 1, 1, tzinfo=UTC), []
    key = settings.vendor.handshake_key
    for step in steps:
        now += timedelta(seconds=step.get("wait_seconds", 0))
        annotations = dict(step["annotations"])
        verdict = handshake.judge_answered(
            memory,
            handshake=annotations.get(key),
            allocatable=int(step["allocatable"].get(settings.resources.count) or 0),
            now=now,
        )
        memory = verdict.memory
        if verdict.stamp is not None:
            annotations[key] = verdict.stamp
        if step.get("cleanup") and not verdict.healthy:
            annotations.pop(key, None)
        found.append(
            {
                "now": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
                "healthy": verdict.healthy,
                "need_update": verdict.need_update,
                "annotations_after": annotations,
            }
        )
    return found


OPERATIONS: dict[str, Callable[[VendorSettings, Row], object]] = {
    "node_devices": _node_devices,
    "request": _request,
    "admit": _admit,
    "select_uuid": _select_uuid,
    "patch_annotations": _patch_annotations,
    "decode_pod_devices": _decode_pod_devices,
    "fit": answer_card_walk.fit,
    "score_node": answer_card_walk.score_node,
}
