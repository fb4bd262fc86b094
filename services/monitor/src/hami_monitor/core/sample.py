"""One look at the node: whose region is it, what was promised, what is used."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec
from hami_model.cards import ContainerKind
from hami_model.events.parts import PodRef
from hami_model.ids import CardId
from hami_model.limits_page import LimitsPage

from hami_monitor.core.card_users import CardUser, OutOfBand, out_of_band, users_of
from hami_monitor.core.container_folder import FolderOwner, FolderReading
from hami_monitor.core.enforcement import EnforcedBy, Enforcement, enforced_by, judge, owner_of_process
from hami_monitor.core.host import HostCard, HostProcess, HostReading
from hami_monitor.core.mig import instance_memory_used
from hami_monitor.core.pods import MonitoredContainer, MonitoredPod, without_impostors
from hami_monitor.core.process_trace import ProcessKey, ProcessTrace
from hami_monitor.core.region import MemoryUse, Region, RegionCard

MIB: Final = 1 << 20
_CARD_ID: Final = re.compile(r"(GPU|MIG)-[0-9A-Za-z-]{1,90}")
_ALL_CORES: Final = 100
_PROMISED_ID: Final = re.compile(r"[0-9A-Za-z._-]{1,96}")
_PROMISED_MAX: Final = 64
"""Cards of one container, which are more than any node has: whoever may change a pod may write any number into its
annotation, and each would have series of its own."""


class SliceUse(msgspec.Struct, frozen=True, kw_only=True):
    """One container on one card."""

    pod: PodRef
    container: str
    kind: ContainerKind
    card_id: str
    memory_promised_bytes: int
    """By the pod's annotation; 0: none, though it uses the card."""
    cores_promised_percent: int
    """0: what is free."""
    enforced_by: EnforcedBy = ""
    """What holds the container to the promise, as far as the monitor can tell; empty: not promised, or not known."""
    memory_limit_bytes: int | None = None
    """That its library holds it to; 0: none. None: no region yet."""
    cores_limit_percent: int | None = None
    memory: MemoryUse | None = None
    """None: no region yet, it does not name the card, or what it says cannot be."""
    instance_memory_used_bytes: int | None = None
    """On its MIG instances of the card, as the driver tells; None: it has none there, or they are not told of."""
    cores_used_percent: int | None = None
    last_launch_at_seconds: int | None = None
    """Since the epoch."""
    processes: int | None = None

    @property
    def memory_used_bytes(self) -> int | None:
        return self.instance_memory_used_bytes if self.memory is None else self.memory.total


class CardUse(msgspec.Struct, frozen=True, kw_only=True):
    """One whole card."""

    host: HostCard
    memory_promised_bytes: int
    cores_promised_percent: int
    pods: tuple[PodRef, ...]
    """That hold slices of it."""
    users: dict[int, CardUser]
    """Of its processes, by pid."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    at_seconds: float
    """Since the epoch."""
    pods: tuple[MonitoredPod, ...]
    """Of the node, in the order of their names."""
    slices: tuple[SliceUse, ...]
    cards: tuple[CardUse, ...]
    folders: tuple[FolderReading, ...]
    host_problem: str
    folder_states: dict[str, int]
    """Folders by state: read, no-region, unreadable, unknown-pod, ended."""
    implausible: int
    """Numbers in regions that cannot be, and are left out."""
    enforcement: Enforcement
    out_of_band: OutOfBand


def take_sample(
    *,
    node: str,
    at_seconds: float,
    pods: Iterable[MonitoredPod],
    folders: Iterable[FolderReading],
    host: HostReading,
    traces: Mapping[int, ProcessTrace],
    suspected: Collection[ProcessKey] = (),
    suspected_out_of_band: Collection[ProcessKey] = (),
    pages: Mapping[FolderOwner, LimitsPage] = MappingProxyType({}),
) -> Sample:
    """`traces`: what the kernel tells of the cards' processes, by their pid on the host; `suspected...`: by the sample
    before; `pages`: of the containers that have a limits page."""
    pods = without_impostors(pods)
    folders = tuple(folders)
    by_uid = {pod.kubelet_uid: pod for pod in pods}
    owners = {pid: owner for pid, trace in traces.items() if (owner := owner_of_process(trace, by_uid)) is not None}
    live = {
        FolderOwner(pod_uid=uid, container=container.name): (pod, container)
        for uid, pod in by_uid.items()
        for container in pod.containers
        if not pod.is_finished and not container.has_ended
    }
    regions = {folder.owner: folder.region for folder in folders}
    joined = _Join({card.id: card for card in host.cards}, _by_owner(host, owners))
    slices = [
        use
        for owner, (pod, container) in live.items()
        for use in joined.container(owner, pod, container, regions.get(owner), pages.get(owner))
    ]
    users = {card.id: users_of(card, traces, by_uid) for card in host.cards}
    return Sample(
        node=node,
        at_seconds=at_seconds,
        pods=pods,
        slices=tuple(slices),
        cards=tuple(_card_use(card, pods, users[card.id]) for card in host.cards),
        folders=folders,
        host_problem=host.problem,
        folder_states=dict(Counter(_state(folder, by_uid.keys(), live.keys()) for folder in folders)),
        implausible=joined.implausible,
        enforcement=judge(
            pods=by_uid, folders=folders, cards=host.cards, traces=traces, suspected=suspected, pages=pages
        ),
        out_of_band=out_of_band(((card, users[card.id]) for card in host.cards), traces, suspected_out_of_band),
    )


def _by_owner(host: HostReading, owners: Mapping[int, FolderOwner]) -> dict[tuple[FolderOwner, str], list[HostProcess]]:
    found: dict[tuple[FolderOwner, str], list[HostProcess]] = {}
    for card in host.cards:
        for process in card.processes or ():
            owner = owners.get(process.pid)
            if owner is not None:
                found.setdefault((owner, card.id), []).append(process)
    return found


def _state(folder: FolderReading, known: Container[str], live: Container[FolderOwner]) -> str:
    if folder.owner.pod_uid not in known:
        return "unknown-pod"
    if folder.owner not in live:
        return "ended"
    if folder.problem:
        return "unreadable"
    return "read" if folder.region is not None else "no-region"


def _card_use(card: HostCard, pods: Iterable[MonitoredPod], users: dict[int, CardUser]) -> CardUse:
    holding = [(pod, pod.promised[CardId(card.id)]) for pod in pods if not pod.is_finished and card.id in pod.promised]
    return CardUse(
        host=card,
        memory_promised_bytes=sum(promised.memory_mib for _, promised in holding) * MIB,
        cores_promised_percent=sum(promised.cores_percent for _, promised in holding),
        pods=tuple(pod.ref for pod, _ in holding),
        users=users,
    )


class _Join:
    def __init__(
        self,
        cards: Mapping[str, HostCard],
        processes: Mapping[tuple[FolderOwner, str], list[HostProcess]],
    ) -> None:
        self._cards = cards
        self._processes = processes
        self.implausible = 0

    def container(
        self,
        owner: FolderOwner,
        pod: MonitoredPod,
        container: MonitoredContainer,
        region: Region | None,
        page: LimitsPage | None,
    ) -> Iterable[SliceUse]:
        promised: dict[str, tuple[int, int]] = {}
        backends: dict[str, EnforcedBy] = {}
        for held in container.slices:
            if held.card_id not in promised and (
                len(promised) >= _PROMISED_MAX or not _PROMISED_ID.fullmatch(held.card_id)
            ):
                continue
            backends[held.card_id] = enforced_by(held, container, region=region, page=page)
            memory_mib, cores_percent = promised.get(held.card_id, (0, 0))
            promised[held.card_id] = (memory_mib + held.memory_mib, cores_percent + held.cores_percent)
        named = _named_cards(region)
        used_only = [
            card_id
            for card_id, card in named.items()
            if card_id not in promised and card_id in self._cards and card.used.total
        ]
        for card_id in (*promised, *used_only):
            memory_mib, cores_percent = promised.get(card_id, (0, 0))
            use = SliceUse(
                pod=pod.ref,
                container=container.name,
                kind=container.kind,
                card_id=card_id,
                memory_promised_bytes=memory_mib * MIB,
                cores_promised_percent=cores_percent,
                enforced_by=backends.get(card_id, ""),
            )
            card = named.get(card_id)
            host = self._cards.get(card_id)
            if host is not None and host.instances:
                use = msgspec.structs.replace(
                    use, instance_memory_used_bytes=instance_memory_used(pod, container, host)
                )
            yield use if region is None or card is None else self._used(use, owner, region, card)

    def _used(self, use: SliceUse, owner: FolderOwner, region: Region, card: RegionCard) -> SliceUse:
        return msgspec.structs.replace(
            use,
            memory_limit_bytes=card.memory_limit_bytes,
            cores_limit_percent=card.cores_limit_percent,
            memory=self._plausible(card),
            cores_used_percent=self._cores_used(owner, region, card),
            last_launch_at_seconds=region.last_kernel_time_seconds if region.last_kernel_time_seconds > 0 else None,
            processes=sum(1 for process in region.processes if process.used_bytes[card.index]),
        )

    def _plausible(self, card: RegionCard) -> MemoryUse | None:
        """A container may write what it likes; more than the card has is no fact."""
        host = self._cards.get(card.id)
        bound = host.memory_total_bytes if host is not None else None
        largest = max(card.used.total, card.used.context, card.used.module, card.used.data)
        if largest <= (bound if bound is not None else (1 << 63)):
            return card.used
        self.implausible += 1
        return None

    def _cores_used(self, owner: FolderOwner, region: Region, card: RegionCard) -> int | None:
        """By the driver where it tells processes apart, else by the library; a share of one card, so at most 100."""
        measured = [
            process.utilisation_percent
            for process in self._processes.get((owner, card.id), ())
            if process.utilisation_percent is not None
        ]
        if measured:
            return min(sum(measured), _ALL_CORES)
        if not region.keeps_utilisation:
            return None
        if card.utilisation_percent >= 1 << 63:
            self.implausible += 1
            return None
        return min(card.utilisation_percent, _ALL_CORES)


def _named_cards(region: Region | None) -> dict[str, RegionCard]:
    """By id, the first of each; what is no id of a card is left out."""
    found: dict[str, RegionCard] = {}
    for card in region.cards if region is not None else ():
        if card.is_named and _CARD_ID.fullmatch(card.id):
            found.setdefault(card.id, card)
    return found
