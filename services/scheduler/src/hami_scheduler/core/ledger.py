"""The book of who holds which slice: kept from what the API server says and from the scheduler's own reservations.

    (nothing) ──reserve──▶ reserved ──bound by us──▶ bound ──ended or gone──▶ (nothing)
                              │                        ▲
                              └──expired──▶ (nothing)  └── a bound version of the pod was seen

- `reserved` lives here only. An unbound pod without a live reservation holds nothing.
- After our own Binding succeeded, unbound versions of that pod that still arrive are older and are ignored.
- A bound pod holds what its annotations say. What cannot be read blocks the cards that it names.
- Terminating pods hold their cards until they are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import hami_engine as engine
import msgspec
from hami_model import cards, keys, kube, quota, requests
from hami_model.device_config import DeviceConfig
from hami_model.ids import AllocationId, CardId
from hami_model.lifecycle import ExpiryCause
from hami_model.requests import PodRequest, Policies

from hami_scheduler.core import engine_values, holdings, inventory
from hami_scheduler.core.records import BoundPod, NodeChange, PodChange, Reservation

RESERVATION_LIFETIME: Final = timedelta(minutes=6)


_NOTHING: Final = PodChange()


class Ledger:
    """The kept state of one cluster. Not thread-safe: one task owns it (the engine inside is)."""

    def __init__(
        self,
        config: DeviceConfig,
        policies: Policies | None = None,
        *,
        node_selector: Mapping[str, str] | None = None,
    ) -> None:
        self.config = config
        self.policies = policies or Policies()
        self.cluster = engine.Cluster(families=engine_values.families(config))
        self.reservations: dict[str, Reservation] = {}
        self.bound_pods: dict[str, BoundPod] = {}
        self.adopting = True
        """True until the first full list was read: unbound allocations that HAMi wrote are taken over only then."""
        self.node_selector = dict(node_selector or {})
        self._nodes: dict[str, kube.Node] = {}
        self._views: dict[tuple[str, str], inventory.VendorView] = {}
        self._quotas: dict[str, dict[str, kube.ResourceQuota]] = {}
        self._limits: dict[str, dict[str, quota.QuotaLimits]] = {}
        self._health_overrides: dict[tuple[str, str], tuple[bool, int]] = {}

    # ---- nodes -------------------------------------------------------------------------------------------------

    def upsert_node(self, node: kube.Node, now: datetime) -> NodeChange:
        """Takes a node as observed. Call it again as time goes by: handshakes grow old (`inventory`)."""
        if any(node.labels.get(key) != value for key, value in self.node_selector.items()):
            return NodeChange(capacity_changed=self.remove_node(node.name))
        previous = self._nodes.get(node.name)
        problems: dict[str, str] = {}
        stamps: dict[str, str] = {}
        changed = previous is None or previous.annotations.get(keys.CARD_CORDON) != node.annotations.get(
            keys.CARD_CORDON
        )
        for settings in self.config.vendors:
            at = (node.name, settings.vendor.word)
            if at not in self._views and not inventory.concerns(node, settings):
                continue
            before = self._views.get(at, inventory.VendorView())
            view = inventory.observe(node, settings, before, now)
            self._views[at] = view
            changed = changed or (view.cards, view.pair_scores) != (before.cards, before.pair_scores)
            if view.problem is not None and view.problem != before.problem:
                problems[settings.vendor.word] = view.problem
            if view.stamp is not None:
                stamps[settings.vendor.handshake_key] = view.stamp
        self._nodes[node.name] = node
        changed = self._forget_old_health(node) or changed
        if changed:
            for word, card_ids in self._register(node).items():
                twice = f"cards {', '.join(map(repr, card_ids))} are listed by another family too and take no new pods"
                problems[word] = "; ".join(filter(None, (problems.get(word), twice)))
        return NodeChange(problems=problems, capacity_changed=changed, stamps=stamps)

    def _register(self, node: kube.Node) -> dict[str, list[CardId]]:
        """Returns by family the ids that another one offers too."""
        cordoned = inventory.cordoned(node.annotations.get(keys.CARD_CORDON))
        offered, shared = inventory.without_shared_ids(
            (settings.vendor, card)
            for settings in self.config.vendors
            for card in self.view(node.name, settings.vendor.word).cards or ()
        )
        found = [engine_values.card(descriptor, card, cordoned=card.id in cordoned) for descriptor, card in offered]
        if not found:
            self.cluster.remove_node(node.name)
            return shared
        scores: dict[str, dict[str, int]] = {
            card_id: peers
            for settings in self.config.vendors
            for card_id, peers in self.view(node.name, settings.vendor.word).pair_scores.items()
        }
        self.cluster.set_node(node.name, found, pair_scores=scores)
        for (name, card_id), (healthy, _) in self._health_overrides.items():
            if name == node.name:
                self.cluster.set_card_health(name, card_id, healthy)
        return shared

    def remove_node(self, name: str) -> bool:
        """Forgets a node. Bookings of its pods stay until the pods are gone. True when it was known."""
        known = self._nodes.pop(name, None) is not None
        for settings in self.config.vendors:
            self._views.pop((name, settings.vendor.word), None)
        for at in [at for at in self._health_overrides if at[0] == name]:
            del self._health_overrides[at]
        self.cluster.remove_node(name)
        return known

    def set_health(self, node: str, card_id: str, *, healthy: bool, node_version: int) -> bool:
        """A health event from the node agent: holds until the node has been observed at `node_version` or later.

        True when the card's state changed.
        """
        known = self._nodes.get(node)
        if known is None or _version(known.metadata.resource_version) >= node_version:
            return False
        _, newest = self._health_overrides.get((node, card_id), (healthy, node_version))
        if newest > node_version:
            return False
        self._health_overrides[node, card_id] = (healthy, node_version)
        return self.cluster.set_card_health(node, card_id, healthy)

    def _forget_old_health(self, node: kube.Node) -> bool:
        """True when an event's value was dropped: what the node itself says must be applied again."""
        version = _version(node.metadata.resource_version)
        old = [at for at, (_, until) in self._health_overrides.items() if at[0] == node.name and until <= version]
        for at in old:
            del self._health_overrides[at]
        return bool(old)

    def node(self, name: str) -> kube.Node | None:
        return self._nodes.get(name)

    def nodes(self) -> Iterable[kube.Node]:
        return self._nodes.values()

    def view(self, node: str, vendor: str) -> inventory.VendorView:
        return self._views.get((node, vendor), inventory.VendorView())

    # ---- quotas ------------------------------------------------------------------------------------------------

    def upsert_quota(self, found: kube.ResourceQuota) -> bool:
        """True when a limit of the namespace changed."""
        namespace = found.metadata.namespace
        self._quotas.setdefault(namespace, {})[found.metadata.name] = found
        return self._apply_quotas(namespace)

    def remove_quota(self, namespace: str, name: str) -> bool:
        self._quotas.get(namespace, {}).pop(name, None)
        return self._apply_quotas(namespace)

    def _apply_quotas(self, namespace: str) -> bool:
        limits = quota.limits(self._quotas.get(namespace, {}).values(), self.config)
        if limits == self._limits.get(namespace, {}):
            return False
        for settings in self.config.vendors:
            limit = limits.get(settings.vendor.word, quota.QuotaLimits())
            self.cluster.set_quota(
                namespace, settings.vendor.word, memory_mib=limit.memory_mib, cores_percent=limit.cores_percent
            )
        self._limits[namespace] = limits
        return True

    def quota_limits(self) -> Mapping[str, Mapping[str, quota.QuotaLimits]]:
        """Limits by namespace and vendor; a vendor that no quota of a namespace limits is not told."""
        unlimited = quota.QuotaLimits()
        return {
            namespace: {word: limit for word, limit in by_vendor.items() if limit != unlimited}
            for namespace, by_vendor in self._limits.items()
        }

    # ---- pods --------------------------------------------------------------------------------------------------

    def upsert_pod(self, pod: kube.Pod, now: datetime) -> PodChange:
        """Takes a pod as observed by the informer."""
        if pod.is_finished:
            return self._forget(pod.uid, ExpiryCause.POD_GONE)
        if pod.assigned_node:
            return self._book(pod)
        return self._observe_unbound(pod, now)

    def remove_pod(self, uid: str) -> PodChange:
        """The pod object is gone."""
        return self._forget(uid, ExpiryCause.POD_GONE)

    def _forget(self, uid: str, cause: ExpiryCause) -> PodChange:
        reservation = self.reservations.pop(uid, None)
        bound = self.bound_pods.pop(uid, None)
        if reservation is None and bound is None:
            return _NOTHING
        self.cluster.release(uid)
        return PodChange(
            released=bound if bound is not None and bound.holds_cards else None,
            expired=(reservation, cause) if reservation is not None else None,
        )

    def _book(self, pod: kube.Pod) -> PodChange:
        """A bound version: its annotations are what counts from now on."""
        before = self.bound_pods.get(pod.uid)
        texts = tuple(
            pod.annotations.get(key)
            for settings in self.config.vendors
            for key in (settings.vendor.allocated_key, settings.vendor.mig_allocations_key)
        )
        init_done = pod.one_shot_init_done
        fingerprint = (pod.assigned_node, texts, init_done)
        if before is not None and before.fingerprint == fingerprint:
            return _NOTHING
        reservation = self.reservations.pop(pod.uid, None)
        held = holdings.read(pod, self.config)
        if held.holds_cards:
            self.cluster.charge(
                uid=pod.uid,
                namespace=pod.metadata.namespace,
                node=pod.assigned_node,
                containers=engine_values.container_slices(held.shapes, held.slots),
                init_done=init_done,
                blocked_cards=held.blocked_cards,
                claims=engine_values.claims(held.claims),
            )
        else:
            self.cluster.release(pod.uid)
        bound = BoundPod(
            uid=pod.uid,
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            node=pod.assigned_node,
            fingerprint=fingerprint,
            allocation_id=holdings.allocation_id_of(pod),
            problem=held.problem,
            holds_cards=held.holds_cards,
        )
        self.bound_pods[pod.uid] = bound
        other = reservation is not None and (
            reservation.node != bound.node or reservation.allocation_id != bound.allocation_id
        )
        return PodChange(
            bound=bound,
            first_seen=before is None,
            init_finished=init_done and before is not None and not _init_was_done(before),
            new_problem=held.problem if before is None or before.problem != held.problem else None,
            expired=(reservation, ExpiryCause.SUPERSEDED) if reservation is not None and other else None,
        )

    def _observe_unbound(self, pod: kube.Pod, now: datetime) -> PodChange:
        if pod.uid in self.bound_pods:
            return _NOTHING
        reservation = self.reservations.get(pod.uid)
        if reservation is not None:
            if reservation.adopted or not _given_up(pod, reservation):
                return _NOTHING
            return PodChange(expired=self._expire(reservation, ExpiryCause.SUPERSEDED))
        if not holdings.written_keys(pod, self.config):
            return _NOTHING
        adopted = self._adoptable(pod, now) if self.adopting else None
        if adopted is None:
            return PodChange(stale_annotations=True)
        self.cluster.charge(
            uid=pod.uid,
            namespace=pod.metadata.namespace,
            node=adopted.node,
            containers=engine_values.container_slices(adopted.shapes, adopted.slots),
            claims=engine_values.claims(adopted.claims),
        )
        self.reservations[pod.uid] = adopted
        return _NOTHING

    def _adoptable(self, pod: kube.Pod, now: datetime) -> Reservation | None:
        """The reservation that HAMi's scheduler wrote on an unbound pod, while it may still be bound."""
        condition = pod.condition("PodScheduled")
        if pod.is_terminating or (condition is not None and condition.status == "False"):
            return None
        node, text = pod.annotations.get(keys.ASSIGNED_NODE, ""), pod.annotations.get(keys.ASSIGNED_TIME, "")
        if not (node and text.isascii() and text.isdigit() and len(text) <= len("9999999999")):
            return None
        written = datetime.fromtimestamp(int(text), UTC)
        if now - written >= RESERVATION_LIFETIME:
            return None
        held = holdings.read(pod, self.config)
        if held.problem or not held.holds_cards:
            return None
        return Reservation(
            uid=pod.uid,
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            node=node,
            allocation_id=holdings.allocation_id_of(pod) or AllocationId(""),
            reserved_at=written,
            slots=held.slots,
            shapes=held.shapes,
            claims=held.claims,
            pod_version=_version(pod.metadata.resource_version),
            scheduled_condition=condition,
            soft_split_modes=requests.soft_split_modes(pod.annotations, self.config),
            adopted=True,
        )

    # ---- reservations ------------------------------------------------------------------------------------------

    def reserve(
        self,
        pod: kube.Pod,
        request: PodRequest,
        candidates: list[str] | None,
        *,
        allocation_id: AllocationId,
        now: datetime,
    ) -> tuple[engine.Placement | engine.Rejection, tuple[Reservation, ExpiryCause] | None]:
        """Decides and books in one step. Also returns the reservation of the same pod that this ended, if any."""
        earlier = self.reservations.pop(pod.uid, None)
        answer = self.cluster.reserve(engine_values.pod_ask(request), candidates)
        if isinstance(answer, engine.Placement):
            self.reservations[pod.uid] = Reservation(
                uid=pod.uid,
                namespace=pod.metadata.namespace,
                name=pod.metadata.name,
                node=answer.node,
                allocation_id=allocation_id,
                reserved_at=now,
                slots=engine_values.slots(answer),
                shapes=cards.shapes(pod),
                soft_split_modes=requests.soft_split_modes(pod.annotations, self.config),
                stale_keys=holdings.stale_mig_keys(pod, self.config),
                pod_version=_version(pod.metadata.resource_version),
                scheduled_condition=pod.condition("PodScheduled"),
            )
        else:
            self.cluster.release(pod.uid)
        return answer, (earlier, ExpiryCause.SUPERSEDED) if earlier is not None else None

    def expire(self, uid: str, cause: ExpiryCause) -> Reservation | None:
        """Gives a reservation back; None when there is none (any more)."""
        reservation = self.reservations.get(uid)
        if reservation is not None:
            self._expire(reservation, cause)
        return reservation

    def _expire(self, reservation: Reservation, cause: ExpiryCause) -> tuple[Reservation, ExpiryCause]:
        del self.reservations[reservation.uid]
        self.cluster.release(reservation.uid)
        return reservation, cause

    def expire_old(self, now: datetime, busy: frozenset[str] = frozenset()) -> list[Reservation]:
        """Gives back reservations that are too old; pods in `busy` (a bind is under way) are left alone.

        One from the future is of before the clock was set back, and holds its cards no longer for it: its time begins
        anew.
        """
        for uid, reservation in self.reservations.items():
            if reservation.reserved_at > now:
                self.reservations[uid] = msgspec.structs.replace(reservation, reserved_at=now)
        old = [
            reservation
            for reservation in self.reservations.values()
            if now - reservation.reserved_at >= RESERVATION_LIFETIME and reservation.uid not in busy
        ]
        for reservation in old:
            self._expire(reservation, ExpiryCause.TIMEOUT)
        return old

    def confirm(self, uid: str, allocation_id: AllocationId) -> BoundPod | None:
        """Our Binding succeeded: the slice is bound, and unbound versions that still arrive are older.

        None when that reservation is not there any more: the informer was faster, or the pod went away meanwhile.
        """
        reservation = self.reservations.get(uid)
        if reservation is None or reservation.allocation_id != allocation_id:
            return None
        del self.reservations[uid]
        self.cluster.confirm(uid)
        bound = BoundPod(
            uid=uid,
            namespace=reservation.namespace,
            name=reservation.name,
            node=reservation.node,
            fingerprint=(),
            allocation_id=reservation.allocation_id,
            held=holdings.Holding(shapes=reservation.shapes, slots=reservation.slots, claims=reservation.claims),
        )
        self.bound_pods[uid] = bound
        return bound

    def held_by(self, bound: BoundPod, pod: kube.Pod | None) -> holdings.Holding | None:
        """What a bound pod holds. `pod`: as last seen, which may be before our own Binding."""
        if bound.held is not None:
            return bound.held
        return holdings.read(pod, self.config) if pod is not None else None

    def drop_reservations(self) -> None:
        """Forgets all reservations: another scheduler decides from now on."""
        for uid in self.reservations:
            self.cluster.release(uid)
        self.reservations.clear()


def _init_was_done(bound: BoundPod) -> bool:
    return bool(bound.fingerprint) and bool(bound.fingerprint[-1])


def _given_up(pod: kube.Pod, reservation: Reservation) -> bool:
    """True when a version later than the filtered one carries another PodScheduled condition."""
    version = _version(pod.metadata.resource_version)
    if not version > reservation.pod_version:
        return False
    condition = pod.condition("PodScheduled")
    return condition is not None and condition.status == "False" and condition != reservation.scheduled_condition


def _version(text: str) -> int:
    """resourceVersions of one API server can be compared as numbers; what is none counts as oldest."""
    return int(text) if text.isascii() and text.isdigit() else 0
