"""Which devices a node has, and which container holds which: kubelet's rules, without I/O.

Ids of an init container that ends are given again to later containers of its pod; those of a sidecar are not. Devices
of pods that are over become free at the next admission, not before, as in kubelet.
"""

import random
from collections.abc import Iterable, Mapping

import msgspec

ContainerKey = tuple[str, str]
"""Pod UID and container name."""
NO_NUMA_NODE = -1
"""Key under which kubelet files ids of a device without topology."""


class Device(msgspec.Struct, frozen=True):
    """One id a plugin advertises."""

    id: str
    healthy: bool
    numa_nodes: tuple[int, ...] = ()


class Holding(msgspec.Struct, frozen=True):
    """Devices of one resource in the hands of one container."""

    pod_uid: str
    container: str
    resource: str
    ids_by_numa: dict[int, tuple[str, ...]]
    response: bytes
    """The plugin's ContainerAllocateResponse, serialised."""

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(id_ for ids in self.ids_by_numa.values() for id_ in ids)


class AlreadyHeld(msgspec.Struct, frozen=True):
    """The container got its devices before (kubelet or container restarted)."""


class Unavailable(msgspec.Struct, frozen=True):
    """The container cannot have its devices; `message` is kubelet's wording."""

    message: str


class Choice(msgspec.Struct, frozen=True):
    """`taken` are settled; `missing` more are to be chosen from `candidates`."""

    taken: frozenset[str]
    candidates: frozenset[str]
    missing: int


class DeviceBook:
    """Owner of the node's devices and holdings."""

    def __init__(self) -> None:
        self._devices: dict[str, dict[str, Device]] = {}
        self._connected: set[str] = set()
        self._holdings: dict[tuple[str, str, str], Holding] = {}

    # ---- what plugins say ----

    def advertise(self, resource: str, devices: Iterable[Device]) -> None:
        """The plugin's whole list."""
        self._devices[resource] = {device.id: device for device in devices}
        self._connected.add(resource)

    def plugin_gone(self, resource: str) -> None:
        """Capacity stays, nothing of it is allocatable."""
        devices = self._devices.get(resource, {})
        self._devices[resource] = {
            id_: msgspec.structs.replace(device, healthy=False) for id_, device in devices.items()
        }
        self._connected.discard(resource)

    def expect(self, resource: str) -> None:
        """A resource known from the checkpoint whose plugin has not registered yet."""
        self._devices.setdefault(resource, {})

    def knows(self, resource: str) -> bool:
        return resource in self._devices

    def resources(self) -> list[str]:
        return sorted(self._devices)

    def capacity(self, resource: str) -> int:
        return len(self._devices[resource])

    def allocatable(self, resource: str) -> int:
        return len(self._healthy(resource))

    def healthy_ids(self) -> dict[str, list[str]]:
        """For the checkpoint: ids by resource."""
        return {resource: sorted(self._healthy(resource)) for resource in self.resources()}

    def healthy_devices(self) -> list[tuple[str, Device]]:
        return [
            (resource, device)
            for resource in self.resources()
            for device in self._devices[resource].values()
            if device.healthy
        ]

    # ---- who holds what ----

    def holdings(self) -> list[Holding]:
        """In the order in which they were handed out."""
        return list(self._holdings.values())

    def held(self, pod_uid: str, container: str) -> list[Holding]:
        return [h for h in self._holdings.values() if h.pod_uid == pod_uid and h.container == container]

    def numa_nodes(self, resource: str, device_id: str) -> tuple[int, ...]:
        device = self._devices.get(resource, {}).get(device_id)
        return device.numa_nodes if device else ()

    def retain_pods(self, active_uids: Iterable[str]) -> None:
        """Free what pods that are over held."""
        active = set(active_uids)
        self._holdings = {key: h for key, h in self._holdings.items() if h.pod_uid in active}

    def restore(self, holding: Holding) -> None:
        """Take over an entry of the checkpoint."""
        self._holdings[holding.pod_uid, holding.container, holding.resource] = holding

    # ---- giving ----

    def choose(
        self, container: ContainerKey, resource: str, count: int, reusable: frozenset[str], rng: random.Random
    ) -> AlreadyHeld | Unavailable | Choice:
        """What is settled before the plugin is asked for its preference."""
        holding = self._holdings.get((*container, resource))
        fault = self._fault(holding, container, resource, count)
        if fault:
            return Unavailable(fault)
        if holding:
            return AlreadyHeld()
        taken = frozenset(rng.sample(sorted(reusable), min(count, len(reusable))))
        missing = count - len(taken)
        in_use = {id_ for h in self._holdings.values() if h.resource == resource for id_ in h.ids}
        available = self._healthy(resource) - in_use
        if len(available) < missing:
            return Unavailable(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {missing}, Available: {len(available)}"
            )
        return Choice(taken, available, missing)

    def _fault(self, holding: Holding | None, container: ContainerKey, resource: str, count: int) -> str | None:
        """Why nothing of the resource can be given, whatever is free."""
        if holding and len(holding.ids) != count:
            pod_uid, name = container
            return (
                f"pod {pod_uid!r} container {name!r} changed request for resource {resource!r} "
                f"from {len(holding.ids)} to {count}"
            )
        if resource not in self._connected:
            return f"cannot allocate unregistered device {resource}"
        healthy = self._healthy(resource)
        if not healthy:
            return f"cannot allocate unhealthy devices {resource}"
        if holding and not holding.ids <= healthy:
            return f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
        return None

    def record(self, container: ContainerKey, resource: str, ids: Iterable[str], response: bytes) -> None:
        """The plugin has answered Allocate for these ids."""
        by_numa: dict[int, tuple[str, ...]] = {}
        for id_ in ids:
            for node in self.numa_nodes(resource, id_) or (NO_NUMA_NODE,):
                by_numa[node] = (*by_numa.get(node, ()), id_)
        self.restore(Holding(*container, resource, by_numa, response))

    def _healthy(self, resource: str) -> frozenset[str]:
        return frozenset(d.id for d in self._devices.get(resource, {}).values() if d.healthy)


class Reuse:
    """Ids that later containers of one pod get first: those of its init containers that end."""

    def __init__(self) -> None:
        self._ids: dict[str, frozenset[str]] = {}

    def of(self, resource: str) -> frozenset[str]:
        return self._ids.get(resource, frozenset())

    def offer(self, held: Mapping[str, frozenset[str]]) -> None:
        """A container that ends before the later ones start held these."""
        for resource, ids in held.items():
            self._ids[resource] = self.of(resource) | ids

    def withdraw(self, held: Mapping[str, frozenset[str]]) -> None:
        """A container that stays holds these."""
        for resource, ids in held.items():
            self._ids[resource] = self.of(resource) - ids
