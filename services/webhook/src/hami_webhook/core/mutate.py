"""From a pod to the patch that makes it ready for placement, or to the reason why it is not admitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from hami_model import kube
from hami_model.device_config import DeviceConfig

from hami_webhook.core.allocation_keys import OWNED_LABELS, owned_annotations
from hami_webhook.core.patch import Add, JsonObject, Operation, Patch, Remove, pointer
from hami_webhook.core.refusal import Refusal
from hami_webhook.core.rules import ContainerChange, changed_container, container_change, effective_env


class Mutation(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules of all families make of a pod."""

    pod: kube.Pod
    """The pod as it is after the patch."""
    patch: Patch
    claimed: bool
    """A container asks for a card of a configured family."""


def mutate(raw: JsonObject, pod: kube.Pod, config: DeviceConfig) -> Mutation | Refusal:
    """Applies the rules to every container: init containers first, then app containers.

    `raw` and `pod` are the same object, undecoded and decoded: the patch is built against what was really sent.
    """
    patch: list[Operation] = []
    claimed = False
    runtime_class = ""
    changed: dict[str, list[kube.Container]] = {"initContainers": [], "containers": []}
    for field, containers in (("initContainers", pod.init_containers), ("containers", pod.app_containers)):
        for index, container in enumerate(containers):
            change = _all_families(container, config, pod.annotations)
            if isinstance(change, Refusal):
                return change
            claimed = claimed or change.claims
            runtime_class = runtime_class or change.runtime_class
            changed[field].append(changed_container(container, change))
            patch.extend(_container_patch(raw["spec"][field][index], ("spec", field, index), change))
    spec = msgspec.structs.replace(
        pod.spec,
        containers=changed["containers"],
        init_containers=changed["initContainers"] if pod.spec.init_containers is not None else None,
    )
    if runtime_class and spec.runtime_class_name is None:
        spec = msgspec.structs.replace(spec, runtime_class_name=runtime_class)
        patch.append(Add(path=pointer("spec", "runtimeClassName"), value=runtime_class))
    return Mutation(pod=msgspec.structs.replace(pod, spec=spec), patch=tuple(patch), claimed=claimed)


def claim(mutation: Mutation, scheduler_name: str) -> Mutation:
    """The pod given to our scheduler."""
    if mutation.pod.spec.scheduler_name == scheduler_name:
        return mutation
    spec = msgspec.structs.replace(mutation.pod.spec, scheduler_name=scheduler_name)
    return Mutation(
        pod=msgspec.structs.replace(mutation.pod, spec=spec),
        patch=(*mutation.patch, Add(path=pointer("spec", "schedulerName"), value=scheduler_name)),
        claimed=mutation.claimed,
    )


def strip_allocation(pod: kube.Pod, config: DeviceConfig) -> Patch:
    """Removes what only the system may write on a pod."""
    return (
        *_removed(pod.annotations, "annotations", owned_annotations(config)),
        *_removed(pod.labels, "labels", OWNED_LABELS),
    )


def _removed(table: dict[str, str], field: str, owned: Iterable[str]) -> Iterable[Operation]:
    return (Remove(path=pointer("metadata", field, key)) for key in owned if key in table)


def _all_families(
    container: kube.Container, config: DeviceConfig, annotations: Mapping[str, str]
) -> ContainerChange | Refusal:
    claims = False
    limits: dict[str, str] = {}
    requests: dict[str, str] = {}
    shown: set[str] = set()
    env: list[tuple[str, str]] = []
    runtime_class = ""
    for settings in config.vendors:
        change = container_change(container, settings, annotations)
        if isinstance(change, Refusal):
            return change
        claims = claims or change.claims
        limits |= change.limits
        requests |= change.requests
        if change.gets_card:
            shown.add(settings.vendor.visible_devices_env)
        env.extend(change.env)
        runtime_class = runtime_class or change.runtime_class
    env.extend(_hidden(container, config, shown))
    return ContainerChange(claims=claims, limits=limits, requests=requests, env=tuple(env), runtime_class=runtime_class)


def _hidden(container: kube.Container, config: DeviceConfig, shown: set[str]) -> Iterable[tuple[str, str]]:
    """Hides the cards of which the container gets none, once for each variable that shows some."""
    values = {
        settings.vendor.visible_devices_env: settings.vendor.hide_cards_value
        for settings in config.vendors
        if settings.overwrite_env and settings.vendor.visible_devices_env not in shown
    }
    return [(name, value) for name, value in values.items() if effective_env(container, name) != value]


def _container_patch(raw: JsonObject, at: tuple[str | int, ...], change: ContainerChange) -> Iterable[Operation]:
    if change.env:
        entries = [{"name": name, "value": value} for name, value in change.env]
        if raw.get("env") is None:
            yield Add(path=pointer(*at, "env"), value=entries)
        else:
            yield from (Add(path=pointer(*at, "env", "-"), value=entry) for entry in entries)
    tables = {"limits": change.limits, "requests": change.requests}
    added = {table: values for table, values in tables.items() if values}
    if added and raw.get("resources") is None:
        yield Add(path=pointer(*at, "resources"), value=added)
    else:
        for table, values in added.items():
            yield from _table_patch(raw["resources"].get(table), (*at, "resources", table), values)


def _table_patch(
    present: dict[str, Any] | None, at: tuple[str | int, ...], values: dict[str, str]
) -> Iterable[Operation]:
    if present is None:
        yield Add(path=pointer(*at), value=values)
    else:
        yield from (Add(path=pointer(*at, name), value=value) for name, value in values.items())
