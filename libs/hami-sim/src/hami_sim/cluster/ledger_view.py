"""What Kubernetes objects say about cards, next to what the monitors measured. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hami_model import allocations, events, kube, register, usage
from hami_model.cards import Slice, shapes
from hami_model.device_config import VendorSettings, default_config
from hami_model.errors import MalformedAnnotation
from hami_model.ids import CardId

from hami_sim.cluster.status import CardStatus, NodeStatus, PodCardStatus, PodPhase, PodStatus
from hami_sim.cluster.usage_samples import UsageSamples

MIB = 1 << 20
PHASES: tuple[PodPhase, ...] = ("Pending", "Running", "Succeeded", "Failed")
SETTINGS: tuple[VendorSettings, ...] = default_config().vendors
_MODE_PREFIX = "hami-sim ("


def node_status(node: kube.Node, os_image: str) -> NodeStatus:
    """How a node stands. `os_image` names the containers' mode, as the stand-in writes it."""
    conditions = node.status.conditions or []
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in conditions)
    handoff, problem = "", ""
    for settings in SETTINGS:
        text = node.annotations.get(settings.vendor.register_key)
        if text is None:
            continue
        try:
            registration = register.read(settings.vendor, text)
        except MalformedAnnotation as error:
            problem = str(error)
            continue
        handoff = registration.handoff if registration.cards else ""
        problem = "; ".join(registration.problems)
    allocatable = node.status.allocatable or {}
    slots = sum(int(allocatable.get(settings.resources.count, 0)) for settings in SETTINGS)
    mode = os_image.removeprefix(_MODE_PREFIX).rstrip(")") if os_image.startswith(_MODE_PREFIX) else ""
    return NodeStatus(
        name=node.name, ready=ready, container_mode=mode, handoff=handoff, slots_allocatable=slots, problem=problem
    )


def cards_of_node(node: kube.Node, pods: Iterable[kube.Pod], samples: UsageSamples) -> list[CardStatus]:
    """The node's cards by index; an unreadable annotation gives none, which the node's status tells."""
    booked: dict[CardId, usage.CardUsage] = {}
    for pod in pods:
        if pod.spec.node_name == node.name and not pod.is_finished:
            for card_id, used in _effective(pod).items():
                booked[card_id] = booked.get(card_id, usage.CardUsage()) + used
    found: list[CardStatus] = []
    for settings in SETTINGS:
        try:
            cards = register.decode(settings.vendor, node.annotations.get(settings.vendor.register_key, "[]"))
        except MalformedAnnotation:
            continue
        for card in cards:
            own, measured = booked.get(card.id, usage.CardUsage()), samples.cards.get(card.id)
            found.append(
                CardStatus(
                    node=node.name,
                    index=card.index,
                    id=card.id,
                    model=card.model,
                    healthy=card.healthy,
                    slots=card.slots,
                    slots_used=own.slots,
                    memory_total_mib=card.memory_mib,
                    memory_promised_mib=own.memory_mib,
                    memory_used_mib=_mib(measured.memory_used_bytes) if measured else None,
                    cores_promised_percent=own.cores_percent,
                    cores_used_percent=measured.cores_used_percent if measured else None,
                    out_of_band_processes=_out_of_band(measured) if measured else None,
                )
            )
    return sorted(found, key=lambda card: card.index)


def _out_of_band(card: events.CardTelemetry) -> int:
    return sum(process.user in ("other-pod", "host") for process in card.processes)


def pod_status(pod: kube.Pod, samples: UsageSamples) -> PodStatus:
    """How a pod stands, and what each of its containers holds."""
    phase: PodPhase = next((known for known in PHASES if known == pod.status.phase), "Unknown")
    held = [
        _held(shape.name, piece, samples.slices.get((pod.uid, shape.name, piece.card_id)))
        for settings in SETTINGS
        for shape, slot in zip(shapes(pod), allocations.read(pod, settings).slots, strict=True)
        for piece in slot
        if pod.spec.node_name
    ]
    return PodStatus(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.uid,
        phase=phase,
        node=pod.spec.node_name,
        reason=_reason(pod),
        cards=tuple(held),
    )


def _held(container: str, piece: Slice, measured: events.CardUsage | None) -> PodCardStatus:
    return PodCardStatus(
        container=container,
        card_id=piece.card_id,
        memory_promised_mib=piece.memory_mib,
        memory_used_mib=_mib(measured.memory_used_bytes) if measured else None,
        cores_promised_percent=piece.cores_percent,
        cores_used_percent=measured.cores_used_percent if measured else None,
        enforced_by=measured.enforced_by if measured else "",
    )


def _effective(pod: kube.Pod) -> dict[CardId, usage.CardUsage]:
    total: dict[CardId, usage.CardUsage] = {}
    for settings in SETTINGS:
        slots = allocations.read(pod, settings).slots
        for card_id, used in usage.effective(slots, shapes(pod), init_done=pod.one_shot_init_done).items():
            total[card_id] = total.get(card_id, usage.CardUsage()) + used
    return total


def _reason(pod: kube.Pod) -> str:
    if pod.is_terminating:
        return "Terminating"
    scheduled = pod.condition("PodScheduled")
    if not pod.spec.node_name and scheduled is not None and scheduled.status == "False":
        return scheduled.message or scheduled.reason
    statuses = [*(pod.status.init_container_statuses or []), *(pod.status.container_statuses or [])]
    for status in statuses:
        state = status.state
        if state is not None and state.waiting and state.waiting.get("reason") not in (None, "PodInitializing"):
            return f"{status.name}: {state.waiting['reason']} {state.waiting.get('message', '')}".strip()
        if state is not None and state.terminated is not None and state.terminated.exit_code != 0:
            return f"{status.name}: exit code {state.terminated.exit_code}"
    return pod.status.reason


def _mib(size_bytes: int | None) -> int | None:
    return None if size_bytes is None else -(-size_bytes // MIB)
