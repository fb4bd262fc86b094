"""Allocate and GetPreferredAllocation in the lock hand-off, over an API server in memory."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from answer_node_register import card_facts, inventory_of, node_options_of, settings_of
from hami_chassis.errors import Permanent, Transient
from hami_chassis.kube.errors import NotFound
from hami_chassis.log import LogSettings, configure_logging
from hami_chassis.settings import Fault, SettingsError, load_settings
from hami_model import keys, kube
from hami_model.errors import HamiError
from hami_node_agent.adapters.driver_files import find_driver_files
from hami_node_agent.adapters.enforcing import Enforcing
from hami_node_agent.adapters.lock_handoff import LockHandoff
from hami_node_agent.adapters.machine_files import USUAL_DRIVER_ROOT, device_rules
from hami_node_agent.adapters.mig_instances import MigInstances
from hami_node_agent.config import NodeAgentSettings
from hami_node_agent.core import hami_names, nvidia_config
from hami_node_agent.core.backends import EnforcementPolicy
from hami_node_agent.core.cdi_spec import OwnSpec
from hami_node_agent.core.device_lists import VisibleDevice
from hami_node_agent.core.grant import ContainerFiles, HostLayout, HostState, LimitPolicy
from hami_node_agent.core.handed_out import HandedOut
from hami_node_agent.core.inventory import Inventory
from hami_node_agent.core.machine_devices import MachineDevices
from hami_node_agent.core.static_mig import StaticDevices
from hami_node_agent.metrics import NodeAgentMetrics
from hami_node_agent.ports import HostView, RefusedForGoodError
from hami_sim.manual_clock import ManualClock
from kubelet_api import deviceplugin_v1beta1_pb2 as pb
from mig_driver import VectorMigDriver
from prometheus_client import CollectorRegistry
from vectors import Row

configure_logging(LogSettings(level="error"), service="conformance")

REGION: Final = "<UUID4>.cache"


class Api:
    """A LockApi with the faults of a vector. A call fails when it is the n-th of its kind; 0 fails every one."""

    def __init__(self, row: Row) -> None:
        node = row["node"]
        self.lock: str | None = None if node is None else (node["annotations"] or {}).get(keys.NODE_LOCK)
        self.node_exists = node is not None
        self.node_name = row["config"]["env"]["NODE_NAME"]
        self.pods = {_key(pod): json.loads(json.dumps(pod)) for pod in row["pods"]}
        self._faults = [(fault["verb"], fault["resource"], fault["nth"]) for fault in row["faults"]]
        self._calls: Counter[tuple[str, str]] = Counter()

    def _call(self, verb: str, resource: str) -> None:
        self._calls[verb, resource] += 1
        number = self._calls[verb, resource]
        if any(fault in ((verb, resource, 0), (verb, resource, number)) for fault in self._faults):
            raise Transient("injected failure")

    async def node_lock(self) -> tuple[str | None, str]:
        self._call("get", "nodes")
        if not self.node_exists:
            raise NotFound(f"node {self.node_name} not found", code=404)
        return self.lock, "1"

    async def clear_node_lock(self, resource_version: str) -> None:  # noqa: ARG002
        self._call("patch", "nodes")
        self.lock = None

    async def get_pod(self, namespace: str, name: str) -> kube.Pod:
        self._call("get", "pods")
        if (namespace, name) not in self.pods:
            raise NotFound(f'pods "{name}" not found', code=404)
        return msgspec.convert(self.pods[namespace, name], kube.Pod)

    async def pods_of_node(self) -> Sequence[kube.Pod]:
        self._call("list", "pods")
        here = [pod for _, pod in sorted(self.pods.items()) if pod["spec"].get("nodeName") == self.node_name]
        return [msgspec.convert(pod, kube.Pod) for pod in here]

    async def patch_pod(self, pod: kube.Pod, annotations: Mapping[str, str]) -> None:
        self._call("patch", "pods")
        self.pods[pod.metadata.namespace, pod.metadata.name]["metadata"].setdefault("annotations", {}).update(
            annotations
        )


class Files:
    """HandoverFiles where what a vector names is there."""

    def __init__(self, row: Row, layout: HostLayout) -> None:
        present = set(row["files_present"])
        versioned = layout.versioned_library(row["config"].get("plugin_version", ""))
        self._state = HostState(
            library=versioned if versioned in present else layout.library, has_license=layout.license in present
        )

    async def look(self, *, with_specs: bool) -> HostView:  # noqa: ARG002
        return HostView(state=self._state)

    async def put(self, files: ContainerFiles | None, specification: OwnSpec | None) -> None:
        pass

    async def refresh_page(self, files: ContainerFiles) -> None:
        pass


class Listed:
    """Folders below a root, by the files that a vector names."""

    def __init__(self, files: Sequence[str], root: str) -> None:
        self._files = [file.removeprefix(f"{root}/") for file in files if file.startswith(f"{root}/")]

    def names(self, folder: str) -> Sequence[str]:
        return [file.removeprefix(f"{folder}/") for file in self._files if file.rpartition("/")[0] == folder]

    def exists(self, path: str) -> bool:
        return any(file == path or file.startswith(f"{path}/") for file in self._files)


class Silence:
    """Outcomes and OwnCheckpoint that nobody looks at."""

    async def write(self, *_: object) -> None:
        pass

    def announce_allocated(self, pod: kube.Pod, verification: str, held_by: object) -> None:
        pass

    def announce_failed(self, pod: kube.Pod, reason: str, holders: Iterable[kube.Pod] = ()) -> None:
        pass

    def warn(self, pod: kube.Pod, reason: str, message: str) -> None:
        pass


class LaterWrites(Silence):
    """What is to be written later is not part of the answer."""

    def write(self, pod: kube.Pod, annotations: Mapping[str, str]) -> None:  # type: ignore[override]
        pass


class Pods:
    """A PodLedger of the vector's pods."""

    has_synced = True

    def __init__(self, api: Api) -> None:
        self._api = api

    def cached(self, uid: str) -> kube.Pod | None:
        return next((pod for pod in self.all_cached() if pod.uid == uid), None)

    def all_cached(self) -> Iterable[kube.Pod]:
        return [msgspec.convert(pod, kube.Pod) for pod in self._api.pods.values()]

    async def read(self, uid: str) -> kube.Pod | None:
        return self.cached(uid)

    async def read_all(self) -> Sequence[kube.Pod]:
        return list(self.all_cached())


class Cards(msgspec.Struct, frozen=True):
    inventory: Inventory


def _key(pod: dict[str, Any]) -> tuple[str, str]:
    return pod["metadata"].get("namespace", ""), pod["metadata"].get("name", "")


def answer(row: Row) -> dict[str, Any]:
    try:
        return asyncio.run(_answer(row))
    except (HamiError, Permanent) as error:
        return {"start_error": str(error)}


def _agent_settings(row: Row) -> NodeAgentSettings:
    """As the process would have them. Raises SettingsError."""
    given = hami_names.found_in(row["config"]["flags"], row["config"]["env"])
    if given.faults:
        raise SettingsError([Fault("", source, problem) for source, problem in given.faults])
    return load_settings(NodeAgentSettings, others=given.values, environment={})


def _static_devices(row: Row) -> StaticDevices:
    """What the vector adds after discovery. Shares of a device are several ids of it."""
    found = [
        VisibleDevice(uuid=extra["id"].partition("::")[0], index=extra["index"], nodes=tuple(extra["paths"]))
        for extra in row["rm_extra_devices"] or ()
    ]
    nvidia = nvidia_config.parse(json.dumps(row["config"]["device_config"]))
    return StaticDevices(devices=lambda: {device.uuid: device for device in found}, one_at_most=nvidia.one_at_most)


async def _answer(row: Row) -> dict[str, Any]:
    agent, settings, options = _agent_settings(row), settings_of(row), node_options_of(row)
    rules = device_rules(agent.devices, agent.nvml, MachineDevices(nodes=frozenset(row["char_devices_present"])))
    if rules.uses_cdi:
        find_driver_files(
            Listed(row["files_present"], agent.nvml.driver_root or USUAL_DRIVER_ROOT), "the driver's root"
        )
    layout = HostLayout(hook_path=agent.files.hook_path)
    api = Api(row)
    clock, book = ManualClock(), HandedOut()
    cards, outcomes = Cards(inventory_of(row)), LaterWrites()
    limits = LimitPolicy(
        oversubscribed=options.memory_scaling > 1,
        library_log_level=options.library_log_level,
        disable_core_limit=options.disable_core_limit,
    )
    handoff = LockHandoff(
        api.node_name,
        rules,
        settings,
        book,
        api=api,
        files=Files(row, layout),
        own=Silence(),
        inventory=cards,
        outcomes=outcomes,
        metrics=NodeAgentMetrics(CollectorRegistry()),
        clock=clock,
        new_region_name=lambda: REGION,
        enforcing=Enforcing(EnforcementPolicy(), layout, limits, settings, inventory=cards, outcomes=outcomes),
        pre_start=None,
        static=_static_devices(row),
        mig=MigInstances(VectorMigDriver(card_facts(row)), book, ledger=Pods(api)),
    )
    asked = asyncio.ensure_future(_ask(handoff, row))
    while not asked.done():
        await asyncio.sleep(0)
        clock.advance(1)
    response, error = await asked
    return {
        "response": response,
        "error": error,
        "pod_annotations_after": {
            f"{namespace}/{name}": pod["metadata"].get("annotations", {}) for (namespace, name), pod in api.pods.items()
        },
        "lock_after": api.lock,
    }


async def _ask(handoff: LockHandoff, row: Row) -> tuple[Any, str | None]:
    requests = row["request"]["container_requests"]
    try:
        if row["op"] == "preferred":
            chosen = await handoff.preferred([_preferred(request) for request in requests])
            # A request that cannot be answered has no entry in the vectors, and an empty one with us.
            return {"container_responses": [ids for ids in chosen if ids]}, None
        answers = await handoff.allocate([request["devicesIDs"] for request in requests])
    except (Transient, Permanent, RefusedForGoodError) as error:
        return None, str(error)
    return {"container_responses": [_response(found) for found in answers]}, None


def _preferred(request: Row) -> pb.ContainerPreferredAllocationRequest:
    return pb.ContainerPreferredAllocationRequest(
        available_deviceIDs=request["available"],
        must_include_deviceIDs=request["must_include"],
        allocation_size=request["size"],
    )


def _response(found: pb.ContainerAllocateResponse) -> dict[str, Any]:
    return {
        "annotations": dict(found.annotations),
        "cdi_devices": [device.name for device in found.cdi_devices],
        "devices": [
            {"container_path": node.container_path, "host_path": node.host_path, "permissions": node.permissions}
            for node in found.devices
        ],
        "envs": dict(found.envs),
        "mounts": [
            {"container_path": mount.container_path, "host_path": mount.host_path, "read_only": mount.read_only}
            for mount in found.mounts
        ],
    }
