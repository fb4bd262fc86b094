"""What holds a slice to its promise: a back end for each card of a container, and what that back end needs.

| back end | what holds | what the container is given |
|---|---|---|
| `preload` | libvgpu, preloaded into every process of the container | limits, mounts, and the page that says them |
| `mig` | the card itself: the slice is an instance of its own | the instance, nothing else |
| `driver` | the driver: memory limits of NVML, MPS version 3 (r615 and newer) | refused: see `refuse_unavailable` |
| `none` | nobody: the operator chose so, or the pod's specification did and the operator allows it | the card |

A back end answers with a `Grant`. Hand-offs join those of all cards and know none of them by name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Literal, get_args

import msgspec
from hami_model import allocations, env, kube, limits_page
from hami_model.cards import Slice
from hami_model.device_config import VendorSettings
from hami_model.errors import HamiError
from hami_model.limits_page import CardLimits, LimitsPage
from hami_model.limits_page import layout as page_layout
from hami_model.requests import wants_control

from hami_node_agent.core import grant, mig_uuid
from hami_node_agent.core.grant import ContainerFiles, Grant, HostLayout, HostState, LimitPolicy
from hami_node_agent.core.handed_out import HandedContainer, HandedOut, HandedPod, HandedSlice, as_handed, as_slices

Backend = Literal["preload", "mig", "driver", "none"]
CardBackend = Literal["preload", "driver", "none"]
"""Of a slice that is not an instance of its own."""

BACKENDS: Final[tuple[Backend, ...]] = get_args(Backend)
_DRIVER_RELEASE: Final = 615
"""First release of the driver that limits memory itself."""
_MIB: Final = 1 << 20
_WHOLE: Final = 100
"""Percent of a card's compute."""
_DEFAULT_PRIORITY: Final = 1
_NO_USER: Final = 2**32 - 1


class BackendUnavailableError(HamiError):
    """A back end was chosen that cannot hold anything here; the message says what to set instead."""


class EnforcementPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator wants held, and by what."""

    cards: CardBackend = "preload"
    by_card: Mapping[str, CardBackend] = {}
    """Other choices for single cards, by UUID."""
    may_opt_out: bool = True
    """Whether a pod's own specification may keep the library out."""
    compute: limits_page.Policy = limits_page.Policy.FORCE
    """When a share of compute holds."""
    context_bytes: int = 0
    """What a context costs on a card; 0: the library finds out."""

    def of(self, piece: Slice) -> Backend:
        if piece.placement is not None or mig_uuid.is_mig(piece.card_id):
            return "mig"
        return self.by_card.get(piece.card_id, self.cards)

    def uses(self, backend: CardBackend) -> bool:
        return backend == self.cards or backend in self.by_card.values()


def refuse_unavailable(policy: EnforcementPolicy, driver_version: str) -> None:
    """Raises BackendUnavailableError where the policy names a back end that this node cannot have."""
    if not policy.uses("driver"):
        return
    where = "enforcement.cards" if policy.cards == "driver" else "enforcement.by_card"
    release = re.match(r"[0-9]{1,6}", driver_version, re.ASCII)
    if release is None or int(release[0]) < _DRIVER_RELEASE:
        reason = f"the driver found is {driver_version or 'unknown'}, and r{_DRIVER_RELEASE} is the first that can"
    else:
        reason = f"the driver found is {driver_version}, which can, but this node-agent cannot set its limits yet"
    raise BackendUnavailableError(f"{where} says driver: {reason}; set preload, by which libvgpu holds the limits")


def names_of_no_card(policy: EnforcementPolicy, offered: Collection[str]) -> list[str]:
    """What to tell of cards that the policy names and this node does not offer."""
    return [
        f"enforcement.by_card says {backend} of {card_id}, which is no card that this node offers: correct or remove it"
        for card_id, backend in policy.by_card.items()
        if card_id not in offered
    ]


def compute_policy(core_policy: str, *, disabled: bool, contended_only: bool) -> limits_page.Policy:
    """When a share of compute holds, by HAMi's `gpuCorePolicy` and `disableCoreLimit` and by our own setting.

    HAMi's default lifts a limit while nobody else uses the card, by a word of the region that the container can write.
    """
    if disabled or core_policy == env.CORE_POLICY_DISABLE:
        return limits_page.Policy.DISABLE
    if core_policy != env.CORE_POLICY_FORCE and contended_only:
        return limits_page.Policy.DEFAULT
    return limits_page.Policy.FORCE


# ---- which ---------------------------------------------------------------------------------------------------------


def asks_out(container: kube.Container) -> bool:
    """Whether the container's own specification asks that nothing hold it: literally, not by a reference."""
    return not wants_control(container.env or ())


def promise(
    slices: Sequence[Slice],
    container: kube.Container,
    *,
    position: int,
    region_name: str,
    policy: EnforcementPolicy,
) -> HandedContainer:
    """What is to be remembered of a first hand-over; `slices` in limit order."""
    backends = [policy.of(piece) for piece in slices]
    opted_out = policy.may_opt_out and "preload" in backends and asks_out(container)
    return HandedContainer(
        slices=tuple(
            msgspec.structs.replace(handed, enforced_by="none" if opted_out and backend == "preload" else backend)
            for handed, backend in zip(as_handed(tuple(slices)), backends, strict=True)
        ),
        region_name=region_name,
        position=position,
        opted_out=opted_out,
    )


def unholdable(handed: HandedContainer) -> str:
    """Why the container cannot be held to its slices, however often it is tried; empty where it can."""
    if "preload" not in _involved(handed) or len(handed.slices) <= page_layout.MAX_CARDS:
        return ""
    return (
        f"it has {len(handed.slices)} cards, and limits can be held on {page_layout.MAX_CARDS} in one container; ask "
        "for no more, or have nothing held on this node's cards (enforcement.cards: none)"
    )


def settled(handed: HandedContainer, container: kube.Container) -> HandedContainer:
    """An entry of the book with its back ends; an earlier agent wrote none, and went by what follows."""
    if all(piece.enforced_by for piece in handed.slices):
        return handed
    return promise(
        as_slices(handed.slices, ""),
        container,
        position=handed.position,
        region_name=handed.region_name,
        policy=EnforcementPolicy(),
    )


HeldBy = Mapping[tuple[int, str], Backend]
"""Back ends by position of the container and card."""


def held_by(
    pod: kube.Pod, known: HandedPod | None, settings: VendorSettings, policy: EnforcementPolicy
) -> dict[tuple[int, str], Backend]:
    """What holds, or will hold, each slice of a pod."""
    found: dict[tuple[int, str], Backend] = {}
    given = {handed.position: handed for handed in known.containers.values()} if known is not None else {}
    slots = allocations.read(pod, settings).slots
    for position, container in enumerate(pod.all_containers):
        slices = slots[position] if position < len(slots) else ()
        handed = given.get(position) or promise(slices, container, position=position, region_name="", policy=policy)
        for piece in settled(handed, container).slices:
            found[position, piece.card_id] = piece.enforced_by or "none"
    return found


def count_slices(book: HandedOut, backend: Backend) -> int:
    """Slices of the book that a back end holds."""
    every = Counter(
        piece.enforced_by or ("mig" if piece.placement is not None else "preload")
        for _, pod in book.items()
        for handed in pod.containers.values()
        for piece in handed.slices
    )
    return every[backend]


# ---- what it takes -------------------------------------------------------------------------------------------------


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """One container, and the slices that it was promised."""

    pod_uid: str
    container: kube.Container
    pod_security: kube.SecurityContext | None = None
    handed: HandedContainer
    """With its back ends; in limit order."""
    priority_resource: str = ""


def needs_library(handed: HandedContainer) -> bool:
    """Whether the container is given the library, of which the book then says the file."""
    return handed.opted_out or any(piece.enforced_by == "preload" for piece in handed.slices)


def libraries_in_use(book: HandedOut) -> frozenset[str] | None:
    """Files that containers may be started with again; None where an earlier agent did not write down which."""
    every = [handed for _, pod in book.items() for handed in pod.containers.values()]
    if any(not handed.library and (needs_library(handed) or _is_earlier(handed)) for handed in every):
        return None
    return frozenset(handed.library for handed in every if handed.library)


def _is_earlier(handed: HandedContainer) -> bool:
    return any(not piece.enforced_by and piece.placement is None for piece in handed.slices)


class NodeTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all containers of the node."""

    layout: HostLayout
    host: HostState
    limits: LimitPolicy
    policy: EnforcementPolicy


def make_grant(promised: Promise, node: NodeTerms) -> Grant:
    """The hand-over of a container, from all back ends that hold its cards."""
    handed = settled(promised.handed, promised.container)
    promised = msgspec.structs.replace(promised, handed=handed)
    given = [_GIVERS[backend](promised, node) for backend in BACKENDS if backend in _involved(handed)]
    return Grant(
        card_ids=tuple(dict.fromkeys(_visible(piece) for piece in handed.slices)),
        environment={key: value for part in given for key, value in part.environment.items()},
        mounts=tuple(dict.fromkeys(mount for part in given for mount in part.mounts)),
        files=next((part.files for part in given if part.files is not None), None),
    )


def _involved(handed: HandedContainer) -> set[str]:
    """A container that opted out still gets the library's files, as with HAMi; the page says that nothing is held."""
    found: set[str] = {piece.enforced_by for piece in handed.slices}
    return found | {"preload"} if handed.opted_out else found


def _visible(piece: HandedSlice) -> str:
    return piece.instance.uuid if piece.instance is not None else piece.card_id


def _preload(promised: Promise, node: NodeTerms) -> Grant:
    handed, container = promised.handed, promised.container
    pieces = [
        piece if _is_limited(piece, handed) else msgspec.structs.replace(piece, memory_mib=0, cores_percent=0)
        for piece in handed.slices
    ]
    region_file = node.layout.region_file(handed.region_name)
    page = LimitsPage(
        region_file=region_file,
        cards=tuple(_card_limits(piece, node.policy) for piece in pieces),
        policy=_policy(container, node.policy),
        priority=_priority(container, promised.priority_resource),
        control=limits_page.Control.DISABLED if handed.opted_out else limits_page.Control.HELD,
    )
    return Grant(
        environment=grant.limits(as_slices(tuple(pieces), ""), region_file, node.limits),
        mounts=grant.mounts(
            node.layout, node.host, promised.pod_uid, container.name, with_preload=not handed.opted_out
        ),
        files=ContainerFiles(
            pod_uid=promised.pod_uid,
            container=container.name,
            page=page,
            library=node.host.library,
            owner=_owner(container.security_context, promised.pod_security),
        ),
    )


def _owner(own: kube.SecurityContext | None, pods: kube.SecurityContext | None) -> tuple[int, int] | None:
    """User and group; the container's word counts before the pod's. A group that is not named is root's, as there.

    None: not known, or root, whose processes can become any user.
    """
    contexts = [context for context in (own, pods) if context is not None]
    user = next((context.run_as_user for context in contexts if context.run_as_user is not None), None)
    group = next((context.run_as_group for context in contexts if context.run_as_group is not None), 0)
    if user is None or not (0 < user < _NO_USER and 0 <= group < _NO_USER):
        return None
    return user, group


def _is_limited(piece: HandedSlice, handed: HandedContainer) -> bool:
    return piece.enforced_by == "preload" or handed.opted_out


def _card_limits(piece: HandedSlice, policy: EnforcementPolicy) -> CardLimits:
    return CardLimits(
        uuid=piece.card_id,
        memory_limit_bytes=piece.memory_mib * _MIB,
        cores_percent=min(piece.cores_percent, _WHOLE) or _WHOLE,
        context_bytes=policy.context_bytes,
    )


def _policy(container: kube.Container, policy: EnforcementPolicy) -> limits_page.Policy:
    """A specification may ask to be held always, but not to be let go."""
    asked = _literal(container, env.CORE_POLICY)
    if policy.compute == limits_page.Policy.DEFAULT and asked is not None and asked.lower() == env.CORE_POLICY_FORCE:
        return limits_page.Policy.FORCE
    return policy.compute


def _priority(container: kube.Container, resource: str) -> int:
    """As the webhook writes it into the specification, else as the resource says it."""
    texts = (_literal(container, env.TASK_PRIORITY), container.quantity(resource) if resource else None)
    for text in texts:
        if text is not None and re.fullmatch(r"[+-]?[0-9]{1,9}", text.strip(), re.ASCII):
            return int(text)
    return _DEFAULT_PRIORITY


def _literal(container: kube.Container, name: str) -> str | None:
    """Of several entries the last one counts, as in the container."""
    values = [variable.value for variable in container.env or () if variable.name == name]
    return values[-1] if values else None


def _nothing(_promised: Promise, _node: NodeTerms) -> Grant:
    return Grant()


def _driver(_promised: Promise, _node: NodeTerms) -> Grant:
    raise BackendUnavailableError("a slice was handed out with the driver as its back end, which this node-agent lacks")


_GIVERS: Final[Mapping[str, Callable[[Promise, NodeTerms], Grant]]] = {
    "preload": _preload,
    "mig": _nothing,
    "driver": _driver,
    "none": _nothing,
}
