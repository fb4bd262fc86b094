"""Comparing what the node agent answers kubelet and writes on its node."""

from __future__ import annotations

import json
import posixpath
import re
from typing import Any

from compare_filter import DEVICE_KEYS, slots
from hami_model import additions, register
from vectors import Row

_UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_CACHE = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_"
_VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def compare_allocate(expect: dict[str, Any], got: dict[str, Any], row: Row) -> str:
    if expect.get("start_error") is not None or got.get("start_error") is not None:
        pairs: dict[str, tuple[Any, Any]] = {
            "start_error": (bool(expect.get("start_error")), bool(got.get("start_error")))
        }
    else:
        in_order = not _lists_by_index(row)
        pairs = {
            "error": (expect["error"] is None, got["error"] is None),
            "response": (_response(expect["response"], in_order), _response(got["response"], in_order)),
            "pod_annotations_after": (_pods(expect), _pods(got)),
            "lock_after": (expect.get("lock_after"), got.get("lock_after")),
        }
    differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if not differing:
        return "passed"
    if list(differing) == ["response"] and "order-hazard" in row.get("tags", []):
        theirs, ours = differing["response"]
        if _limits_apart(theirs) == _limits_apart(ours):
            return "soft"
    return "; ".join(f"{name}: {ours} instead of {theirs}" for name, (theirs, ours) in differing.items())


def _lists_by_index(row: Row) -> bool:
    """Then HAMi lists devices in no order."""
    config = row["config"]
    by_flag = any("device-id-strategy=index" in flag for flag in config["flags"])
    return by_flag or config["env"].get("DEVICE_ID_STRATEGY") == "index"


def _response(response: Any, in_order: bool) -> Any:
    if response is None:
        return None
    answers = response["container_responses"]
    return [_container(answer, in_order) if isinstance(answer, dict) else answer for answer in answers]


def _listed(text: str, in_order: bool) -> str:
    return text if in_order else ",".join(sorted(text.split(",")))


def _container(answer: dict[str, Any], in_order: bool) -> dict[str, Any]:
    """One container's answer with what is random or unordered taken out, and without what we add."""
    # A name that ends in _ stands for all names that go on with a number.
    left_out = additions.names("environment")
    envs = {key: value for key, value in answer["envs"].items() if not {key, key.rstrip("0123456789")} & left_out}
    if _VISIBLE in envs:
        envs[_VISIBLE] = _listed(envs[_VISIBLE], in_order)
    added = tuple(additions.names("mount"))
    if _CACHE in envs:
        envs[_CACHE] = posixpath.normpath(_UUID4.sub("<UUID4>", envs[_CACHE]))
    return {
        "envs": envs,
        "mounts": sorted(
            map(
                _as_paths,
                (mount for mount in answer["mounts"] if not mount["container_path"].endswith(added)),
            ),
            key=lambda mount: (mount["container_path"], mount["host_path"]),
        ),
        "devices": sorted(answer["devices"], key=lambda device: (device["container_path"], device["host_path"])),
        "annotations": {
            _UUID4.sub("<UUID4>", key): _listed(value, in_order) for key, value in answer["annotations"].items()
        },
        "cdi_devices": answer["cdi_devices"] if in_order else sorted(answer["cdi_devices"]),
    }


def _as_paths(mount: dict[str, Any]) -> dict[str, Any]:
    """A doubled slash is no other path."""
    names = ("container_path", "host_path")
    return {**mount, **{name: posixpath.normpath(mount[name]) for name in names}}


def _limits_apart(response: list[dict[str, Any]]) -> list[tuple[dict[str, Any], list[str]]]:
    """The answers with memory limits and visible devices as sets: which limit is whose is decided by the order."""
    found = []
    for answer in response:
        envs = answer["envs"]
        limits = sorted(value for key, value in envs.items() if key.startswith(_LIMIT))
        visible = sorted(envs.get(_VISIBLE, "").split(","))
        others = {key: value for key, value in envs.items() if not key.startswith(_LIMIT) and key != _VISIBLE}
        names = {
            "cdi_devices": sorted(answer["cdi_devices"]),
            "annotations": {key: _listed(value, in_order=False) for key, value in answer["annotations"].items()},
        }
        found.append(({**answer, **names, "envs": others}, [*limits, *visible]))
    return found


def _pods(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    left_out = additions.names("pod-annotation")
    return {
        pod: {
            key: slots(value) if key in DEVICE_KEYS else value
            for key, value in (annotations or {}).items()
            if key not in left_out
        }
        for pod, annotations in (answer.get("pod_annotations_after") or {}).items()
    }


def compare_register(expect: dict[str, Any], got: dict[str, Any], _row: Row) -> str:
    if expect.get("start_error") is not None or got.get("start_error") is not None:
        same = bool(expect.get("start_error")) == bool(got.get("start_error"))
        return "passed" if same else f"start_error: {got.get('start_error')!r} instead of {expect.get('start_error')!r}"
    pairs = {
        "register_annotation": (_elements(expect, "register_annotation"), _elements(got, "register_annotation")),
        "score_annotation": (_elements(expect, "score_annotation"), _elements(got, "score_annotation")),
        "other_annotations": (expect["other_annotations"], got["other_annotations"]),
        "passes": (_passes(expect), _passes(got)),
        "kubelet_devices": (_by_uuid(expect), _by_uuid(got)),
        "events": (_events(expect), _events(got)),
        "not_started": (bool(expect.get("not_started")), bool(got.get("not_started"))),
    }
    differing = [f"{name}: {ours} instead of {theirs}" for name, (theirs, ours) in pairs.items() if theirs != ours]
    return "; ".join(differing) or "passed"


def _elements(answer: dict[str, Any], name: str) -> list[list[tuple[str, Any]]] | None:
    """An array's objects with their keys in the order written, in any order of the objects."""
    text = answer[name]
    if text is None:
        return None
    found = json.loads(text, object_pairs_hook=lambda pairs: [p for p in pairs if p[0] != register.HANDOFF_FIELD])
    return sorted(found, key=str)


def _passes(answer: dict[str, Any]) -> list[tuple[bool, bool]]:
    return [(found["changed"], found["error"] is None) for found in answer.get("passes") or []]


def _by_uuid(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(answer.get("kubelet_devices") or [], key=lambda device: str(device["uuid"]))


def _events(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((event["type"], event["reason"]) for event in answer.get("events") or [])
