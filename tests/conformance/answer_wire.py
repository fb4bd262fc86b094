"""Codecs and small pure functions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import answer_families
import hami_engine
from hami_model import (
    allocations,
    device_config,
    handshake,
    kube,
    mig_allocations,
    node_lock,
    pair_scores,
    register,
    requests,
    scoring_weights,
    usage,
    vendors,
)
from hami_model.cards import Card, ContainerShape, MigPlacement, MigProfile, Slice, Slots
from hami_model.errors import MalformedError
from hami_model.ids import CardId
from hami_scheduler.core import engine_values
from vectors import Row

NVIDIA = vendors.vendor(vendors.NVIDIA)


def answer(row: Row) -> dict[str, Any]:
    if "family" in row:
        return answer_families.answer(row)
    if row["op"] == "health_sequence":
        return {"steps": _health_sequence(row["input"]["steps"])}
    try:
        return {"ok": True, "error": None, "value": OPERATIONS[row["op"]](row["input"])}
    except MalformedError as error:
        return {"ok": False, "error": str(error), "value": None}


def _health_sequence(steps: list[Row]) -> list[dict[str, Any]]:
    memory, now, found = handshake.Memory(), datetime(2000, 1, 1, tzinfo=UTC), []
    for step in steps:
        now += timedelta(seconds=step.get("wait_seconds", 0))
        verdict = handshake.judge(
            memory,
            handshake=step.get("handshake"),
            allocatable=int(step.get("allocatable") or 0),
            register=step.get("register"),
            now=now,
        )
        memory = verdict.memory
        found.append(
            {
                "now": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
                "healthy": verdict.healthy,
                "need_update": verdict.need_update,
                "handshake_after": verdict.stamp if verdict.stamp is not None else step.get("handshake"),
            }
        )
    return found


def _node_lock(given: Row) -> object:
    lock = node_lock.parse(given["text"])
    owner = lock.owner or node_lock.PodName(namespace="", name="")
    return {"time": _utc(lock.time), "namespace": owner.namespace, "name": owner.name}


def _utc(moment: datetime) -> str:
    seconds = moment.astimezone(UTC)
    fraction = f".{seconds.microsecond:06d}".rstrip("0").rstrip(".")
    return seconds.strftime("%Y-%m-%dT%H:%M:%S") + fraction + "Z"


def _device(card: Card) -> dict[str, Any]:
    return {
        "id": card.id,
        "index": card.index,
        "count": card.slots,
        "devmem": card.memory_mib,
        "devcore": card.cores_percent,
        "type": card.model,
        "numa": card.numa,
        "mode": card.mode,
        "health": card.healthy,
        "migProfiles": [
            {
                "name": profile.name,
                "memoryMB": profile.memory_mib,
                "core": profile.cores_percent,
                "sliceCount": profile.slice_count,
                "placements": [_placement(placement) for placement in profile.placements],
            }
            for profile in card.mig_profiles
        ],
    }


def _placement(placement: MigPlacement) -> dict[str, int]:
    return {"start": placement.start, "size": placement.size}


def _card(device: dict[str, Any]) -> Card:
    return Card(
        id=device.get("id", ""),
        index=device.get("index", 0),
        slots=device.get("count", 0),
        memory_mib=device.get("devmem", 0),
        cores_percent=device.get("devcore", 0),
        model=device.get("type", ""),
        numa=device.get("numa", 0),
        mode=device.get("mode", ""),
        healthy=device.get("health", False),
        mig_profiles=tuple(
            MigProfile(
                name=profile["name"],
                memory_mib=profile["memoryMB"],
                cores_percent=profile["core"],
                slice_count=profile["sliceCount"],
                placements=tuple(MigPlacement(**placement) for placement in profile["placements"]),
            )
            for profile in device.get("migProfiles") or []
        ),
    )


def _slots(slots: list[list[dict[str, Any]]]) -> Slots:
    return tuple(
        tuple(
            Slice(card_id=d["uuid"], vendor=d["type"], memory_mib=d["mem"], cores_percent=d["cores"]) for d in slot
        )
        for slot in slots
    )  # fmt: skip


def _decode_pod_devices(given: Row) -> object:
    return [
        [
            {"uuid": p.card_id, "type": p.vendor, "mem": p.memory_mib, "cores": p.cores_percent} for p in slot
        ]
        for slot in allocations.decode(given["text"])
    ]  # fmt: skip


def _decode_mig_allocations(given: Row) -> object:
    found = []
    for allocation in mig_allocations.decode(given["text"]):
        value: dict[str, Any] = {
            "containerIndex": allocation.slot,
            "deviceIndex": allocation.position,
            "gpuUUID": allocation.card_id,
            "profile": allocation.profile,
            "placement": _placement(allocation.placement),
        }
        if allocation.instance is not None:
            value |= {
                "migUUID": allocation.instance.uuid,
                "gpuInstanceID": allocation.instance.gpu_instance,
                "computeInstanceID": allocation.instance.compute_instance,
            }
        found.append(value)
    return found


def _encode_mig_allocations(given: Row) -> object:
    return mig_allocations.encode(
        mig_allocations.MigAllocation(
            slot=slot_position,
            position=position,
            card_id=device["uuid"],
            profile=device["profile"],
            placement=MigPlacement(**device["placement"]),
        )
        for slot_position, slot in enumerate(given["slots"])
        for position, device in enumerate(slot)
        if device.get("profile") and device.get("placement")
    )


def _node_annotations(given: Row) -> object:
    annotations = given["annotations"]
    text = annotations.get(NVIDIA.register_key)
    cards = register.decode(NVIDIA, text) if text is not None else ()
    if not cards:
        raise MalformedError("no cards registered")
    scores, _ = pair_scores.read(NVIDIA, annotations)
    found = []
    for card in cards:
        value = {**_device(card), "devicevendor": NVIDIA.word}
        if card.id in scores:
            value["pair_score"] = {"uuid": card.id, **({"score": scores[card.id]} if scores[card.id] else {})}
        found.append(value)
    return found


def _scoring_weights(given: Row) -> object:
    weights = scoring_weights.parse(given["text"])
    return {"slot": weights.slot, "core": weights.core, "memory": weights.memory}


def _usage(*, init_done: bool) -> Callable[[Row], object]:
    def effective(given: Row) -> object:
        init_containers = given["init_containers"]
        shapes = [
            ContainerShape(name=f"c{position}", kind="init" if position < init_containers else "app")
            for position in range(len(given["slots"]))
        ]
        found = usage.effective(_slots(given["slots"]), shapes, init_done=init_done)
        return [
            {"uuid": card_id, "mem": used.memory_mib, "cores": used.cores_percent, "slots": used.slots}
            for card_id, used in sorted(found.items())
        ]

    return effective


def _check_uuid(given: Row) -> bool:
    return _admits(given["annotations"], card_id=given["uuid"], model="NVIDIA")


def _check_type(given: Row) -> bool:
    return _admits(given["annotations"], card_id="GPU-1", model=given["type"])


def _admits(annotations: dict[str, str], *, card_id: str, model: str) -> bool:
    """Whether an empty card would be given to a pod with these annotations."""
    settings = device_config.default_config().vendor(NVIDIA.word)
    assert settings is not None
    pod = kube.Pod(
        metadata=kube.Metadata(name="p", namespace="n", uid="u", annotations=annotations),
        spec=kube.PodSpec(
            containers=[
                kube.Container(name="c", resources=kube.Resources(limits={settings.resources.count: "1"}))
            ]
        ),
    )  # fmt: skip
    request = requests.pod_request(pod, device_config.default_config(), requests.Policies())
    card = Card(id=CardId(card_id), slots=1, memory_mib=1, cores_percent=100, model=model, healthy=True)
    cluster = hami_engine.Cluster(families=engine_values.families(device_config.default_config()))
    cluster.set_node("n1", [engine_values.card(NVIDIA, card, cordoned=False)])
    return isinstance(cluster.what_if(engine_values.pod_ask(request), ["n1"]), hami_engine.Placement)


OPERATIONS: dict[str, Callable[[Row], object]] = {
    "decode_node_text": lambda given: [_device(card) for card in register.decode_delimited(given["text"])],
    "encode_node_text": lambda given: register.encode_delimited(_card(device) for device in given["devices"]),
    "decode_node_json": lambda given: [_device(card) for card in register.decode(NVIDIA, given["text"])],
    "encode_node_json": lambda given: register.encode_json(_card(device) for device in given["devices"]),
    "node_annotations": _node_annotations,
    "decode_pair_scores": lambda given: [
        {"uuid": element.card_id, "score": element.scores} for element in pair_scores.decode(given["text"])
    ],
    "decode_pod_devices": _decode_pod_devices,
    "encode_pod_devices": lambda given: allocations.encode(_slots(given["slots"])),
    "decode_mig_allocations": _decode_mig_allocations,
    "encode_mig_allocations": _encode_mig_allocations,
    "scoring_weights_parse": _scoring_weights,
    "node_lock_parse": _node_lock,
    "check_uuid": _check_uuid,
    "check_type": _check_type,
    "policy_contains": lambda given: hami_engine.policy_names(given["policy"], given["name"]),
    "reason_format": lambda given: hami_engine.reasons_text(given["reasons"], given["cards"]),
    "collapse_usage": _usage(init_done=False),
    "app_only_usage": _usage(init_done=True),
}
