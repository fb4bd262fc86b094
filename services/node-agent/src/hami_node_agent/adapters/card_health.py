"""Watches the cards: faults that the driver reports, probes, and cards that appear later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
from hami_chassis.clock import Clock
from hami_chassis.log import get_logger
from hami_chassis.retry import DEFAULT_BACKOFF, Retries
from hami_model.ids import CardId

from hami_node_agent.adapters.nvml import Nvml
from hami_node_agent.adapters.nvml_events import CriticalEvent
from hami_node_agent.adapters.nvml_library import DriverError
from hami_node_agent.core.health import HealthBook, HealthChange
from hami_node_agent.core.inventory import (
    CardFacts,
    Inventory,
    UnreadableCard,
    is_hidden,
    refreshed,
    take_inventory,
    wants_mig_on,
)
from hami_node_agent.core.node_options import NodeOptions
from hami_node_agent.core.topology import Topology, score_pairs
from hami_node_agent.metrics import NodeAgentMetrics
from hami_node_agent.ports import NodeEvents

log = get_logger("card-health")

_EVENT_WAIT_SECONDS = 1.0
"""How long one wait for a fault takes at most; bounds how long stopping takes."""

_FAILURES_TO_SUBSCRIBE_ANEW = 3
"""Of waiting for faults. What is reported until then is not lost; what comes while there is no subscription is."""


class Cards:
    """An InventoryView that stays true. Root tasks `watch_faults` and `probe`, after `begin`."""

    def __init__(
        self,
        nvml: Nvml,
        options: NodeOptions,
        book: HealthBook,
        *,
        with_topology: bool,
        may_switch_mig_on: bool,
        probe_seconds: float,
        node_events: NodeEvents,
        metrics: NodeAgentMetrics,
        clock: Clock,
    ) -> None:
        """`with_topology`: how cards are connected is published."""
        self._nvml = nvml
        self._options = options
        self._book = book
        self._with_topology = with_topology
        self._may_switch_mig_on = may_switch_mig_on
        self._probe_seconds = probe_seconds
        self._node_events = node_events
        self._metrics = metrics
        self._clock = clock
        self._facts: dict[str, CardFacts] = {}
        self._unreadable: tuple[UnreadableCard, ...] = ()
        self._mig_devices_left_out: tuple[str, ...] = ()
        self._mig_problems: dict[str, str] = {}
        """Why the MIG mode of cards could not be switched on."""
        self._topology = Topology()
        self._events_problem = ""
        self._problems: frozenset[str] = frozenset()
        self._being_asked: set[str] = set()
        """What of the last round has not come back: it must not be asked again meanwhile."""
        self._ask_now = asyncio.Event()
        self._subscribe_now = asyncio.Event()
        self.inventory = Inventory()
        self.on_change: list[Callable[[Inventory, tuple[HealthChange, ...]], None]] = []

    async def begin(self) -> None:
        """Looks at all cards and takes the first inventory. Raises DriverError."""
        await self._discover()
        if self._with_topology:
            self._topology = await self._nvml.topology(tuple(self._facts))
        if self._book.watches_events:
            try:
                await self._subscribe()
            except DriverError as error:
                self._events_problem = str(error)
        self.take()

    def is_hidden(self, card_id: str) -> bool:
        """Whether the card is none of HAMi's."""
        fact = self._facts.get(card_id)
        return card_id in self._options.hidden_uuids or (fact is not None and is_hidden(fact, self._options))

    def use(self, options: NodeOptions) -> None:
        """From now on these hold."""
        self._options = options
        self.take()

    def take(self, changes: tuple[HealthChange, ...] = ()) -> None:
        """Takes the inventory anew and tells of it."""
        self.inventory = take_inventory(self._facts.values(), self._options, self._book.unhealthy, self._unreadable)
        healthy = sum(card.healthy for card in self.inventory.cards)
        self._metrics.cards.labels("healthy").set(healthy)
        self._metrics.cards.labels("unhealthy").set(len(self.inventory.cards) - healthy)
        problems = dict.fromkeys(self.inventory.problems, "CardNotOffered")
        problems |= dict.fromkeys(self._mig_devices_left_out, "MigDeviceNotOffered")
        if self._with_topology:
            problems |= self._score_pairs(self._topology)
        if self._events_problem:
            problems[self._events_problem] = "FaultsNotReported"
        for problem, reason in problems.items():
            if problem not in self._problems:
                self._node_events.warn(reason, problem)
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

    # ---- faults that the driver reports ------------------------------------------------------------------------------

    async def watch_faults(self) -> None:
        """Root task: XIDs, as soon as the driver reports them."""
        if not self._book.watches_events:
            await asyncio.Event().wait()
        retries = Retries(DEFAULT_BACKOFF)
        while True:
            try:
                if not self._nvml.has_events:
                    await self._subscribe()
                event = await self._nvml.next_event(_EVENT_WAIT_SECONDS)
            except DriverError as error:
                # This says nothing of any card: their probes go on.
                self._faults_are_unreported(str(error))
                await self._pause(retries.delay_after(error), self._subscribe_now)
                if retries.failures >= _FAILURES_TO_SUBSCRIBE_ANEW:
                    await self._nvml.drop_events()
                continue
            retries.succeeded()
            self._faults_are_unreported("")
            if event is not None:
                self._critical(event)

    async def _subscribe(self) -> None:
        """Raises DriverError; a card that refuses is asked again at its next probe."""
        await self._nvml.create_events()
        await asyncio.gather(*(self._nvml.watch_events(uuid) for uuid in self._facts))

    def _faults_are_unreported(self, problem: str) -> None:
        if problem == self._events_problem:
            return
        log.warning("fault-watch", problem=problem or "none any more")
        self._events_problem = problem
        self.take()

    def _critical(self, event: CriticalEvent) -> None:
        log.warning("xid", card=event.uuid, mig_device=event.mig_device, xid=event.xid, instance=event.gpu_instance)
        if event.uuid is None:
            # It may be any card's, or nobody's: each is asked at once, and speaks for itself.
            self._node_events.warn(
                "FaultOfUnknownCard",
                f"the driver reported fault {_fault(event)} of a device that it does not name; all cards are probed",
            )
            self._ask_now.set()
            return
        instance = "" if event.gpu_instance is None else f"in GPU instance {event.gpu_instance}"
        change = self._book.critical_event(CardId(event.uuid), event.xid, instance)
        if change is not None and event.uuid in self._facts:
            self.take((change,))

    # ---- probes ------------------------------------------------------------------------------------------------------

    async def probe(self) -> None:
        """Root task: asks each card from time to time, and looks for cards that were not there.

        No card waits for another's answer.
        """
        async with asyncio.TaskGroup() as asking:
            while True:
                await self._pause(self._probe_seconds, self._ask_now)
                for uuid in tuple(self._facts):
                    self._ask(asking, uuid)
                if "" not in self._being_asked:
                    self._being_asked.add("")
                    asking.create_task(self._look_around())

    async def _pause(self, seconds: float, call: asyncio.Event) -> None:
        """That long, or until something calls."""
        woken = asyncio.ensure_future(call.wait())
        slept = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait((woken, slept), return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
            slept.cancel()
            await asyncio.gather(woken, slept, return_exceptions=True)
        call.clear()

    def _ask(self, asking: asyncio.TaskGroup, uuid: str) -> None:
        if uuid not in self._being_asked:
            self._being_asked.add(uuid)
            asking.create_task(self._probe(uuid))

    async def _probe(self, uuid: str) -> None:
        try:
            fault = await self._nvml.probe(uuid)
            if fault is None:
                return
            fault = fault or await self._watch(uuid)
        finally:
            self._being_asked.discard(uuid)
        change = self._book.probed(CardId(uuid), fault)
        if change is not None:
            self.take((change,))

    async def _watch(self, uuid: str) -> str:
        """Subscribes to the card's faults, unless that is done; why that cannot be, or empty."""
        if not self._book.watches_events or not self._nvml.has_events:
            return ""
        refused = await self._nvml.watch_events(uuid)
        return f"its faults are not reported: {refused}" if refused else ""

    async def _look_around(self) -> None:
        try:
            changed = await self._discover()
            changed |= await self._look_at_topology(appeared=changed)
        except DriverError as error:
            log.warning("driver-unusable", reason=str(error))
            if error.is_gone:
                await self._load_anew()
        else:
            if changed:
                self.take()
            if self._nvml.is_gone:
                await self._load_anew()
        finally:
            self._being_asked.discard("")

    async def _load_anew(self) -> None:
        try:
            await self._nvml.reload()
        except DriverError as error:
            log.warning("driver-not-loaded", reason=str(error))
        else:
            log.info("driver-loaded-anew")
            self._subscribe_now.set()  # a fault of the time without a subscription is never reported

    async def _discover(self) -> bool:
        """Whether anything about the cards is new. Raises DriverError."""
        found = await self._nvml.discover()
        if await self._switch_mig_on(found.cards):
            found = await self._nvml.discover()
        before = (dict(self._facts), self._unreadable, self._mig_devices_left_out)
        for fact in found.cards:
            problem = self._mig_problems.get(fact.uuid, "") if fact.is_mig_off else ""
            known = msgspec.structs.replace(fact, mig_mode_problem=problem)
            self._facts[fact.uuid] = refreshed(self._facts.get(fact.uuid), known)
        self._unreadable, self._mig_devices_left_out = found.unreadable, found.problems
        return before != (self._facts, self._unreadable, self._mig_devices_left_out)

    async def _switch_mig_on(self, cards: Sequence[CardFacts]) -> bool:
        """Whether any card's MIG mode was switched on."""
        wanted = [card.uuid for card in cards if self._may_switch_mig_on and wants_mig_on(card, self._options)]
        self._mig_problems = {uuid: await self._nvml.switch_mig_on(uuid) for uuid in wanted}
        done = [uuid for uuid, problem in self._mig_problems.items() if not problem]
        for uuid in done:
            log.info("mig-mode-switched-on", card=uuid)
        return bool(done)

    async def _look_at_topology(self, *, appeared: bool) -> bool:
        """Asks again where there are other cards, or where something could not be read."""
        before = self._topology
        if not self._with_topology or not (appeared or before.faults):
            return False
        self._topology = await self._nvml.topology(tuple(self._facts))
        return self._topology != before

    def _tell(self, change: HealthChange) -> None:
        xid = f" (XID {change.xid})" if change.xid is not None else ""
        detail = f": {change.detail}" if change.detail else ""
        state = "healthy again" if change.healthy else "unhealthy"
        message = f"card {change.card_id} is {state}: {change.cause}{xid}{detail}"
        if change.healthy:
            self._node_events.tell("CardHealthy", message)
        else:
            self._node_events.warn("CardUnhealthy", message)


def _fault(event: CriticalEvent) -> str:
    return "of its memory" if event.xid is None else f"XID {event.xid}"
