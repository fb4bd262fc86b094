"""Watches the cards: faults that the driver reports, probes, and cards that appear later."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from hami_chassis.clock import Clock
from hami_chassis.kube.events import EventRecorder, ObjectReference
from hami_chassis.log import get_logger
from hami_chassis.retry import DEFAULT_BACKOFF, Retries
from hami_model.ids import CardId

from hami_node_agent.adapters.nvml import CriticalEvent, DriverError, Nvml
from hami_node_agent.core.health import HealthBook, HealthChange
from hami_node_agent.core.inventory import CardFacts, Inventory, refreshed, take_inventory
from hami_node_agent.core.node_options import NodeOptions
from hami_node_agent.core.topology import Topology, score_pairs
from hami_node_agent.metrics import NodeAgentMetrics

log = get_logger("card-health")

_EVENT_WAIT_SECONDS = 1.0
"""How long one wait for a fault takes at most; bounds how long stopping takes."""


class Cards:
    """An InventoryView that stays true. Root tasks `watch_faults` and `probe`."""

    def __init__(
        self,
        nvml: Nvml,
        options: NodeOptions,
        book: HealthBook,
        facts: Sequence[CardFacts],
        topology: Topology | None = None,
        *,
        node_name: str,
        probe_seconds: float,
        recorder: EventRecorder,
        metrics: NodeAgentMetrics,
        clock: Clock,
    ) -> None:
        self._nvml = nvml
        self._options = options
        self._book = book
        self._facts = {fact.uuid: fact for fact in facts}
        self._topology = topology
        """None: how cards are connected is not published."""
        self._node_name = node_name
        self._probe_seconds = probe_seconds
        self._recorder = recorder
        self._metrics = metrics
        self._clock = clock
        self._problems: frozenset[str] = frozenset()
        self.inventory = Inventory()
        self.on_change: list[Callable[[Inventory, tuple[HealthChange, ...]], None]] = []

    def take(self, changes: tuple[HealthChange, ...] = ()) -> None:
        """Takes the inventory anew and tells of it."""
        self.inventory = take_inventory(self._facts.values(), self._options, self._book.unhealthy)
        healthy = sum(card.healthy for card in self.inventory.cards)
        self._metrics.cards.labels("healthy").set(healthy)
        self._metrics.cards.labels("unhealthy").set(len(self.inventory.cards) - healthy)
        problems = dict.fromkeys(self.inventory.problems, "CardNotOffered")
        if self._topology is not None:
            problems |= self._score_pairs(self._topology)
        for problem, reason in problems.items():
            if problem not in self._problems:
                self._warn(reason, problem)
        self._problems = frozenset(problems)
        for change in changes:
            self._metrics.health_changes.labels(change.cause).inc()
            self._tell(change)
        for tell in self.on_change:
            tell(self.inventory, changes)

    def _score_pairs(self, topology: Topology) -> dict[str, str]:
        """Adds pair scores to the inventory; answers the reasons of problems with them, by message."""
        scored = score_pairs(topology, [card.id for card in self.inventory.cards])
        self.inventory = msgspec.structs.replace(self.inventory, pair_scores=scored.elements)
        problems = dict.fromkeys(scored.unreadable, "PairScoresIncomplete")
        return problems | ({scored.asymmetric: "AsymmetricGPUP2PLink"} if scored.asymmetric else {})

    async def watch_faults(self) -> None:
        """Root task: XIDs, as soon as the driver reports them."""
        for uuid, reason in (await self._nvml.watch_events(list(self._facts))).items():
            log.warning("faults-not-reported", card=uuid, reason=reason)
        retries = Retries(DEFAULT_BACKOFF)
        while True:
            try:
                event = await self._nvml.next_event(_EVENT_WAIT_SECONDS)
            except DriverError as error:
                log.warning("fault-watch-failed", reason=str(error))
                await self._clock.sleep(retries.delay_after(error))
                continue
            retries.succeeded()
            if event is not None:
                self._critical(event)

    def _critical(self, event: CriticalEvent) -> None:
        if event.mig_device:
            log.warning("xid-of-unknown-mig-device", mig_device=event.mig_device, xid=event.xid)
            return
        # A fault without a card may be any card's: fail closed, the probes bring the others back.
        ids = [event.uuid] if event.uuid is not None else list(self._facts)
        changes = [self._book.critical_event(CardId(card_id), event.xid) for card_id in ids]
        found = tuple(change for change in changes if change is not None)
        log.warning("xid", card=event.uuid, xid=event.xid, ignored=not found)
        if found:
            self.take(found)

    async def probe(self) -> None:
        """Root task: asks each card from time to time, and looks for cards that were not there."""
        while True:
            await self._clock.sleep(self._probe_seconds)
            changes = [self._book.probed(CardId(uuid), await self._nvml.probe(uuid)) for uuid in tuple(self._facts)]
            found = tuple(change for change in changes if change is not None)
            appeared = await self._look_for_more()
            connected_otherwise = await self._look_at_topology(appeared=appeared)
            if found or appeared or connected_otherwise:
                self.take(found)

    async def _look_for_more(self) -> bool:
        try:
            facts = await self._nvml.facts()
        except DriverError as error:
            log.warning("driver-unusable", reason=str(error))
            return False
        found = [refreshed(self._facts.get(fact.uuid), fact) for fact in facts]
        news = [fact for fact in found if self._facts.get(fact.uuid) != fact]
        for fact in news:
            self._facts[fact.uuid] = fact
        if news:
            await self._nvml.watch_events([fact.uuid for fact in news])
        return bool(news)

    async def _look_at_topology(self, *, appeared: bool) -> bool:
        """Asks again where there are other cards, or where something could not be read."""
        before = self._topology
        if before is None or not (appeared or before.faults):
            return False
        self._topology = await self._nvml.topology(tuple(self._facts))
        return self._topology != before

    def _tell(self, change: HealthChange) -> None:
        xid = f" (XID {change.xid})" if change.xid is not None else ""
        detail = f": {change.detail}" if change.detail else ""
        state = "healthy again" if change.healthy else "unhealthy"
        message = f"card {change.card_id} is {state}: {change.cause}{xid}{detail}"
        if change.healthy:
            self._recorder.emit(self._about(), reason="CardHealthy", message=message)
        else:
            self._warn("CardUnhealthy", message)

    def _warn(self, reason: str, message: str) -> None:
        log.warning("node-event", reason=reason, message=message)
        self._recorder.emit(self._about(), reason=reason, message=message, event_type="Warning")

    def _about(self) -> ObjectReference:
        # Kubelet's own events about a node carry its name as UID; tools look them up so.
        return ObjectReference(kind="Node", name=self._node_name, uid=self._node_name)
