"""Random histories: filter, bind with every way to fail, deletions, ends, resyncs, restarts, new leaders.

After every step the properties of `tests/data/cases/README.md` hold against the API server's truth: one slot per
container, no card beyond its size, the book equal to bound pods and reservations, quota equal to what live pods hold.
The server is a value here: what it holds is decided in one step, what the scheduler sees of it comes later.
"""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from hami_model import allocations, device_config, kube, usage
from hami_model.ids import AllocationId
from hami_model.lifecycle import ExpiryCause
from hami_scheduler.core import binding, holdings
from hami_scheduler.core.filter import filter_pod
from hami_scheduler.core.ledger import Ledger
from hami_scheduler.core.records import Reservation
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from scheduler_builders import ALLOCATED_KEY, NVIDIA, Json, container, limits, node, pod, quota

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
NODES = {"n1": 2, "n2": 1}
MEMORY = 10_000
QUOTAS = [3000, 16_000, 60_000]

asks = st.none() | st.builds(
    limits,
    st.integers(1, 2),
    st.sampled_from([1000, 4000, 6000, 10_000]),
    st.sampled_from([None, 30, 60, 100]),
)
init_kinds = st.sampled_from(["init", "sidecar"])


def container_of(position: int, ask: dict[str, str] | None, **fields: Any) -> Json:
    return container(f"c{position}", ask=ask or {}, **fields)


class Histories(RuleBasedStateMachine):
    """`server`: pods as the API server holds them. `seen`: as the informer has delivered them."""

    pods = Bundle("pods")

    def __init__(self) -> None:
        super().__init__()
        self.now = BEGIN
        self.version = 10
        self.serial = 0
        self.server: dict[str, Json] = {}
        self.unsettled: dict[str, Reservation] = {}
        self.present = set(NODES)
        self.quota = 16_000
        self.ledger = self._new_ledger()

    def _new_ledger(self) -> Ledger:
        ledger = Ledger(device_config.default_config())
        for name in sorted(self.present):
            ledger.upsert_node(self._node(name), self.now)
        ledger.upsert_quota(self._quota_object())
        ledger.adopting = False
        return ledger

    def _node(self, name: str) -> kube.Node:
        found = node(name, NODES[name])
        found["metadata"]["resourceVersion"] = str(self.version)
        return msgspec.convert(found, kube.Node)

    def _quota_object(self) -> kube.ResourceQuota:
        return msgspec.convert(quota("q", "default", gpumem=self.quota), kube.ResourceQuota)

    def _changed(self, uid: str) -> kube.Pod:
        self.version += 1
        self.server[uid]["metadata"]["resourceVersion"] = str(self.version)
        return self._read(uid)

    def _read(self, uid: str) -> kube.Pod:
        return msgspec.convert(self.server[uid], kube.Pod)

    # ---- what users, kubelet and time do -----------------------------------------------------------------------

    @rule(
        target=pods,
        apps=st.lists(asks, min_size=1, max_size=2),
        inits=st.lists(st.tuples(init_kinds, asks), max_size=2),
    )
    def create(self, apps: list[dict[str, str] | None], inits: list[tuple[str, dict[str, str] | None]]) -> str:
        self.serial += 1
        uid = f"uid-{self.serial}"
        created = pod(
            f"p{self.serial}",
            uid=uid,
            containers=[container_of(len(inits) + at, ask) for at, ask in enumerate(apps)],
            init_containers=[
                container_of(at, ask, **({"restartPolicy": "Always"} if kind == "sidecar" else {}))
                for at, (kind, ask) in enumerate(inits)
            ],
        )
        self.server[uid] = created
        self.ledger.upsert_pod(self._changed(uid), self.now)
        return uid

    @rule(uid=consumes(pods))
    def delete(self, uid: str) -> None:
        self.server.pop(uid)
        self.unsettled.pop(uid, None)
        self.ledger.remove_pod(uid)

    @rule(uid=pods, phase=st.sampled_from(["Succeeded", "Failed"]))
    def end(self, uid: str, phase: str) -> None:
        if self.server[uid]["spec"].get("nodeName"):
            self.server[uid]["status"]["phase"] = phase
            self.ledger.upsert_pod(self._changed(uid), self.now)

    @rule(uid=pods)
    def finish_init(self, uid: str) -> None:
        found = self.server[uid]
        if found["spec"].get("nodeName"):
            found["status"]["initContainerStatuses"] = [
                {"name": each["name"], "state": {"terminated": {"exitCode": 0}}}
                for each in found["spec"].get("initContainers", [])
                if "restartPolicy" not in each
            ]
            self.ledger.upsert_pod(self._changed(uid), self.now)

    @rule(uid=pods)
    def kube_scheduler_gives_up(self, uid: str) -> None:
        if uid in self.unsettled or self.server[uid]["spec"].get("nodeName"):
            return
        self.server[uid]["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "False", "message": str(self.version)}
        ]
        self.ledger.upsert_pod(self._changed(uid), self.now)

    @rule(seconds=st.sampled_from([10, 400]))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        self.ledger.expire_old(self.now, frozenset(self.unsettled))

    # ---- what happens to nodes and quotas ------------------------------------------------------------------------

    @rule(name=st.sampled_from(sorted(NODES)))
    def node_goes_or_comes_back(self, name: str) -> None:
        """Its pods stay bound to it: they hold its cards again once it is back."""
        self.version += 1
        if name in self.present:
            self.present.remove(name)
            self.ledger.remove_node(name)
        else:
            self.present.add(name)
            self.ledger.upsert_node(self._node(name), self.now)

    @rule(name=st.sampled_from(sorted(NODES)), healthy=st.booleans())
    def first_card_changes_its_health(self, name: str, healthy: bool) -> None:
        self.ledger.set_health(name, f"{name}-0", healthy=healthy, node_version=self.version + 1)

    @rule(memory=st.sampled_from(QUOTAS))
    def quota_changes(self, memory: int) -> None:
        """Pods that are there already keep what they hold, also above the new limit."""
        self.quota = memory
        self.ledger.upsert_quota(self._quota_object())

    # ---- what kube-scheduler asks --------------------------------------------------------------------------------

    @rule(uid=pods, names=st.sampled_from([["n1", "n2"], ["n2"], ["n1"], ["n3"]]))
    def filter(self, uid: str, names: list[str]) -> None:
        if uid in self.unsettled or self._read(uid).is_finished:
            return
        self.serial += 1
        allocation_id = AllocationId(f"id-{self.serial}")
        answer = filter_pod(self.ledger, self._read(uid), names, allocation_id=allocation_id, now=self.now)
        if answer.reservation is None:
            return
        assert answer.reservation.node in self.present & set(names)
        memory, _ = self.ledger.cluster.quota_used("default", NVIDIA)
        adds = sum(held[0] for held in self.ledger.cluster.booked(uid).values())
        assert memory <= self.quota or adds == 0
        healthy = {card.card_id: card.healthy for name in NODES for card in self.ledger.cluster.node_cards(name)}
        assert all(healthy[held.card_id] for slot in answer.reservation.slots for held in slot)

    @rule(uid=pods, end=st.sampled_from(["accepted", "refused", "lost-done", "lost-undone", "accepted-and-seen-first"]))
    def bind(self, uid: str, end: str) -> None:
        reservation = self.ledger.reservations.get(uid)
        if reservation is None or uid in self.unsettled:
            return
        if end in ("accepted", "lost-done", "accepted-and-seen-first"):
            self._write_binding(uid, reservation)
        if end == "accepted-and-seen-first":
            self.ledger.upsert_pod(self._read(uid), self.now)
        if end in ("accepted", "accepted-and-seen-first"):
            self.ledger.confirm(uid, reservation.allocation_id)
        elif end == "refused":
            self.ledger.expire(uid, ExpiryCause.BIND_FAILED)
        else:
            self.unsettled[uid] = reservation

    def _write_binding(self, uid: str, reservation: Reservation) -> None:
        carried = binding.binding_map(reservation, self.ledger.config, self.now)
        self.server[uid]["spec"]["nodeName"] = reservation.node
        self.server[uid]["metadata"]["annotations"] |= carried.annotations
        self._changed(uid)

    @rule(uid=pods)
    def settle(self, uid: str) -> None:
        """A consistent read tells the outcome of a bind that got no answer."""
        reservation = self.unsettled.pop(uid, None)
        if reservation is None:
            return
        self.ledger.upsert_pod(self._read(uid), self.now)
        if not self.server[uid]["spec"].get("nodeName"):
            self.ledger.expire(uid, ExpiryCause.BIND_FAILED)

    # ---- what the watch does -------------------------------------------------------------------------------------

    @rule(uid=pods)
    def watch_delivers(self, uid: str) -> None:
        """The current version, again or for the first time."""
        self.ledger.upsert_pod(self._read(uid), self.now)
        if self.server[uid]["spec"].get("nodeName"):
            self.unsettled.pop(uid, None)

    @rule(uid=pods)
    def watch_delivers_an_old_unbound_version(self, uid: str) -> None:
        if not self.server[uid]["spec"].get("nodeName") or self._read(uid).is_finished:
            return
        if uid not in self.ledger.bound_pods:
            return
        old = copy.deepcopy(self.server[uid])
        del old["spec"]["nodeName"]
        old["metadata"] |= {"annotations": {}, "resourceVersion": "5"}
        self.ledger.upsert_pod(msgspec.convert(old, kube.Pod), self.now)

    @rule()
    def resync(self) -> None:
        for uid in self.server:
            self.watch_delivers(uid)

    @rule()
    def restart(self) -> None:
        """A new process, or a new leader: it knows what a consistent list says."""
        self.ledger = self._new_ledger()
        self.ledger.adopting = True
        self.unsettled.clear()
        for uid in self.server:
            self.ledger.upsert_pod(self._read(uid), self.now)
        self.ledger.adopting = False

    # ---- what must hold ------------------------------------------------------------------------------------------

    def _known_bound(self) -> list[kube.Pod]:
        """Live bound pods, those apart whose bind has an unknown outcome: they count as reserved."""
        live = [self._read(uid) for uid in self.server if uid not in self.unsettled]
        return [found for found in live if found.assigned_node and not found.is_finished]

    def _charges(self) -> dict[str, list[usage.CardUsage]]:
        charges: dict[str, list[usage.CardUsage]] = {}

        def add(shapes: Any, slots: Any, init_done: bool) -> None:
            for card_id, used in usage.effective(slots, shapes, init_done=init_done).items():
                charges.setdefault(card_id, []).append(used)

        for found in self._known_bound():
            held = holdings.read(found, self.ledger.config)
            add(held.shapes, held.slots, found.one_shot_init_done)
        for reservation in self.ledger.reservations.values():
            add(reservation.shapes, reservation.slots, False)
        return charges

    @invariant()
    def the_book_is_what_bound_pods_and_reservations_say(self) -> None:
        charges = self._charges()
        for name in NODES:
            for card in self.ledger.cluster.node_cards(name):
                used = charges.get(card.card_id, [])
                assert card.used_memory_mib == sum(each.memory_mib for each in used)
                assert card.used_cores_percent == sum(each.cores_percent for each in used)
                assert card.used_slots == sum(each.slots for each in used)
                assert not card.blocked

    @invariant()
    def no_card_is_beyond_its_size(self) -> None:
        for name in NODES:
            for card in self.ledger.cluster.node_cards(name):
                assert card.used_memory_mib <= card.memory_mib
                assert card.used_cores_percent <= card.cores_percent
                assert card.used_slots <= card.slots

    @invariant()
    def quota_used_is_what_live_pods_hold(self) -> None:
        held = [each for used in self._charges().values() for each in used]
        memory = sum(each.memory_mib for each in held)
        cores = sum(each.cores_percent for each in held)
        assert self.ledger.cluster.quota_used("default", NVIDIA) == (memory, cores)

    @invariant()
    def every_container_has_one_slot_and_only_those_that_ask_hold_cards(self) -> None:
        for found in self._known_bound():
            text = found.annotations[ALLOCATED_KEY]
            slots = allocations.decode(text.removesuffix(";"))
            asking = [c.quantity("nvidia.com/gpu") is not None for c in found.all_containers]
            assert [bool(slot) for slot in slots] == asking

    @invariant()
    def an_unbound_pod_holds_only_its_reservation(self) -> None:
        for uid in self.server:
            if not self.server[uid]["spec"].get("nodeName"):
                booking = self.ledger.cluster.booking(uid)
                assert (booking is not None) is (uid in self.ledger.reservations)

    @invariant()
    def the_engine_adds_up(self) -> None:
        assert self.ledger.cluster.check_invariants() == []


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
