"""MIG devices that somebody made beforehand: read through NVML, and told to kubelet where they have own resources."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pynvml
from hami_chassis.clock import Clock
from hami_chassis.errors import Transient
from hami_chassis.log import get_logger
from hami_chassis.run import RootTask, Stage
from hami_model.ids import CardId
from kubelet_api import deviceplugin_v1beta1_pb2 as pb

from hami_node_agent.adapters.allocate_response import allocate_response
from hami_node_agent.adapters.device_plugin import DevicePlugin, KubeletRegistration
from hami_node_agent.adapters.nvml import Nvml
from hami_node_agent.adapters.nvml_events import CriticalEvent
from hami_node_agent.adapters.nvml_library import text
from hami_node_agent.core import mig_uuid, static_mig
from hami_node_agent.core.device_lists import DeviceRules, VisibleDevice
from hami_node_agent.core.grant import Grant
from hami_node_agent.core.health import HealthBook
from hami_node_agent.core.inventory import CardFacts, Discovery, UnreadableCard, is_hidden
from hami_node_agent.core.node_options import NodeOptions
from hami_node_agent.core.static_mig import MigStrategy, StaticInstance, StaticOffer
from hami_node_agent.metrics import NodeAgentMetrics
from hami_node_agent.ports import NodeEvents, RefusedForGoodError

log = get_logger("static-mig")

CAPABILITIES: Final = Path("/proc/driver/nvidia-caps/mig-minors")
_NO_MIG: Final = (
    pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
)  # fmt: skip
_NOT_MADE: Final = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT)


class StaticMigNvml(Nvml):
    """Cards, and under a static strategy their MIG devices instead of those in MIG mode."""

    def __init__(
        self,
        library: Callable[[], str],
        *,
        strategy: MigStrategy = "none",
        options: NodeOptions,
        sysfs: Path = Path("/sys"),
        with_mig: bool = False,
        answer_seconds: float = 5.0,
        capabilities: Path = CAPABILITIES,
    ) -> None:
        """`capabilities`: the kernel's list of what opens MIG devices. The others as of Nvml."""
        super().__init__(library, sysfs=sysfs, with_mig=with_mig, answer_seconds=answer_seconds)
        self._strategy = strategy
        self._options = options
        self._capabilities_file = capabilities
        self._capabilities: Mapping[str, int] = {}
        self._waiting_faults: list[CriticalEvent] = []
        self._capabilities_problem = ""
        self._known: dict[str, StaticInstance] = {}
        """MIG devices by UUID."""
        self._listed: dict[str, tuple[CardFacts, list[StaticInstance] | None]] = {}
        """Cards as they were told last, with their MIG devices, by UUID: what cannot be asked now is not gone."""
        self.offer = StaticOffer(cards=())
        self.on_fault: list[Callable[[CriticalEvent], None]] = []
        """Told of faults of cards whose MIG devices have resources of their own."""

    def use(self, options: NodeOptions) -> None:
        """From now on these hold."""
        self._options = options

    async def discover(self) -> Discovery:
        found = await super().discover()
        if self._strategy == "none":
            return found
        silent = [self._listed[card.uuid][0] for card in found.unreadable if card.uuid in self._listed]
        cards = [card for card in (*found.cards, *silent) if not is_hidden(card, self._options)]
        listed = await asyncio.gather(*(self._mig_devices(card) for card in cards))
        instances = [instance for each in listed for instance in each or ()]
        in_mig_mode = frozenset(card.uuid for card, each in zip(cards, listed, strict=True) if each is not None)
        self._capabilities = await asyncio.to_thread(self._read_capabilities)
        self.offer = static_mig.static_offer(cards, in_mig_mode, instances, self._strategy, self._capabilities)
        self._known = {instance.uuid: instance for instance in instances}
        untold = (
            UnreadableCard(index=card.index, uuid="", reason="the driver does not tell its MIG devices")
            for card in cards
            if card.uuid not in self._listed
        )
        return Discovery(cards=self.offer.cards, unreadable=(*found.unreadable, *untold), problems=self.offer.problems)

    async def _mig_devices(self, card: CardFacts) -> list[StaticInstance] | None:
        """None of a card that is not in MIG mode.

        One that cannot be asked has what it had, and its health says the rest; before it told anything it is not
        offered as a whole.
        """
        try:
            found = await self.of_card(card.uuid, lambda: _instances_of(card))
        except (pynvml.NVMLError, Transient) as error:
            log.warning("mig-devices-unreadable", card=card.uuid, reason=str(error))
            return self._listed[card.uuid][1] if card.uuid in self._listed else []
        self._listed[card.uuid] = (card, found)
        return found

    def _read_capabilities(self) -> dict[str, int]:
        try:
            return static_mig.capability_minors(self._capabilities_file.read_text(encoding="ascii", errors="replace"))
        except OSError as error:
            if str(error) != self._capabilities_problem:
                self._capabilities_problem = str(error)
                log.warning("mig-capabilities-unknown", path=str(self._capabilities_file), reason=str(error))
            return dict(self._capabilities)

    def instances(self) -> dict[str, VisibleDevice]:
        """What containers are told of MIG devices with resources of their own."""
        found = [one for each in self.offer.by_resource.values() for one in each]
        return {one.uuid: static_mig.visible_instance(one, self._capabilities) for one in found}

    async def probe(self, uuid: str) -> str | None:
        """What is wrong with a card, or with the card of a MIG device. None where it was not asked."""
        if not mig_uuid.is_mig(uuid):
            return await super().probe(uuid)
        known = self._known.get(uuid)
        return await super().probe(known.card.uuid) if known is not None else "the MIG device is gone"

    async def watch_events(self, uuid: str) -> str:
        """Faults are reported of cards, never of their MIG devices."""
        known = self._known.get(uuid)
        return await super().watch_events(known.card.uuid if known is not None else uuid)

    async def next_event(self, timeout_seconds: float) -> CriticalEvent | None:
        """A fault of a card is one of each MIG device that is offered as a card; of other ones `on_fault` is told."""
        if self._waiting_faults:
            return self._waiting_faults.pop()
        event = await super().next_event(timeout_seconds)
        if event is None or event.uuid is None:
            return event
        struck = [one for one in self._known.values() if one.card.uuid == event.uuid]
        if not struck:
            return event
        if self._strategy == "mixed":
            for tell in self.on_fault:
                tell(event)
            return None
        if event.gpu_instance is not None:
            struck = [one for one in struck if one.gpu_instance == event.gpu_instance]
        self._waiting_faults = [msgspec.structs.replace(event, uuid=one.uuid) for one in struck]
        return self._waiting_faults.pop() if self._waiting_faults else None


def _instances_of(card: CardFacts) -> list[StaticInstance] | None:
    """None of a card that is not in MIG mode. Called on the card's thread. Raises NVMLError."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(card.uuid)
    if not _is_on(handle):
        return None
    devices = [_instance(handle, number, card) for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))]
    return [device for device in devices if device is not None]


def _is_on(handle: object) -> bool:
    """False also of a card without MIG."""
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError as error:
        if error.value in _NO_MIG:
            return False
        raise


def _instance(handle: object, number: int, card: CardFacts) -> StaticInstance | None:
    try:
        device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
    except pynvml.NVMLError as error:
        if error.value in _NOT_MADE:
            return None
        raise
    return StaticInstance(
        uuid=text(pynvml.nvmlDeviceGetUUID(device)),
        name=text(pynvml.nvmlDeviceGetName(device)),
        number=number,
        gpu_instance=pynvml.nvmlDeviceGetGpuInstanceId(device),
        compute_instance=pynvml.nvmlDeviceGetComputeInstanceId(device),
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(device).total),
        card=card,
    )


class StaticMigHandoff:
    """Answers kubelet for MIG devices with resources of their own: what it chose is what the container gets.

    No scheduler of ours placed the pod, so nothing is looked up and no node lock is touched.
    """

    prefers = False

    def __init__(
        self, known: Callable[[], Mapping[str, VisibleDevice]], rules: DeviceRules, *, one_at_most: bool
    ) -> None:
        self._known = known
        self._rules = rules
        self._one_at_most = one_at_most

    async def preferred(self, requests: Sequence[pb.ContainerPreferredAllocationRequest]) -> list[list[str]]:
        return [[] for _ in requests]

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[pb.ContainerAllocateResponse]:
        """Raises RefusedForGoodError."""
        answers: list[pb.ContainerAllocateResponse] = []
        for ids in requests:
            chosen = static_mig.chosen_instances(ids, self._known(), one_at_most=self._one_at_most)
            if isinstance(chosen, str):
                raise RefusedForGoodError(chosen)
            log.info("mig-devices-given", devices=[device.uuid for device in chosen])
            answers.append(allocate_response(Grant(), chosen, self._rules))
        return answers

    async def pre_start(self, device_ids: Sequence[str]) -> None:
        pass


class MixedResources:
    """Tells kubelet of the MIG devices of each resource, and which of them are healthy."""

    def __init__(
        self,
        cards: StaticMigNvml,
        plugins: Mapping[str, DevicePlugin],
        book: HealthBook,
        replicas: Mapping[str, int],
        handoff: StaticMigHandoff,
        *,
        probe_seconds: float,
        node_events: NodeEvents,
        clock: Clock,
    ) -> None:
        """`plugins`: by resource; those that the start found. `replicas`: shares of a device, by resource."""
        self._cards = cards
        self._plugins = plugins
        self._book = book
        self._replicas = replicas
        self._probe_seconds = probe_seconds
        self._node_events = node_events
        self._clock = clock
        self._told: frozenset[str] = frozenset()
        for plugin in plugins.values():
            plugin.use(handoff)
        for resource in sorted(replicas.keys() - plugins.keys()):
            log.warning(
                "setting-without-effect",
                problem=f"sharing.timeSlicing of {resource}: only MIG devices with resources of their own are shared "
                "in time; cards are shared in slices",
            )

    def root_tasks(self, plugins_folder: Path, metrics: NodeAgentMetrics) -> list[RootTask]:
        """None where there is no such resource."""
        if not self._plugins:
            return []
        self.tell()
        tasks = [RootTask("mig-devices", self.watch)]
        for resource, plugin in self._plugins.items():
            registration = KubeletRegistration(
                plugin, resource, plugins_folder, before_registering=_at_once, metrics=metrics, clock=self._clock
            )
            tasks.append(RootTask(f"kubelet-{resource}", registration.run, Stage.INTAKE))
        return tasks

    def tell(self) -> None:
        """Announces what is offered now."""
        offered = self._cards.offer.by_resource
        for resource, plugin in self._plugins.items():
            plugin.announce(
                static_mig.instance_devices(
                    offered.get(resource, ()), frozenset(self._book.unhealthy), self._replicas.get(resource, 1)
                )
            )
        for resource in sorted(offered.keys() - self._plugins.keys() - self._told):
            self._node_events.warn(
                "MigResourceNeedsRestart",
                f"MIG devices of resource {resource} were made after the start, and kubelet is told of that resource "
                "only once the node-agent is started anew",
            )
        self._told |= offered.keys()

    def fault(self, event: CriticalEvent) -> None:
        """The driver reported a fault of a card."""
        if event.uuid is not None:
            change = self._book.critical_event(CardId(event.uuid), event.xid)
            log.warning("xid", card=event.uuid, xid=event.xid, ignored=change is None)
            self.tell()

    async def watch(self) -> None:
        """Root task: probes the cards, and looks whether the devices are others."""
        while True:
            await self._clock.sleep(self._probe_seconds)
            cards = {one.card.uuid for each in self._cards.offer.by_resource.values() for one in each}
            for card in sorted(cards):
                refused = await self._cards.watch_events(card) if self._cards.has_events else ""
                fault = await self._cards.probe(card)
                change = None if fault is None else self._book.probed(CardId(card), fault or refused)
                if change is not None:
                    log.warning("mig-card-health", card=card, healthy=change.healthy, cause=change.cause)
            self.tell()


async def _at_once() -> None:
    """Nothing has to be known before these are offered."""
