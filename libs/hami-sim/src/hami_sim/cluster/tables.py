"""The cluster's status as text for a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from hami_sim.cluster.status import CardStatus, ClusterStatus, NodeStatus, PodStatus, ServiceStatus

REASON_WIDTH = 100
CARD_ID_WIDTH = 12
UNKNOWN = "?"


def render(status: ClusterStatus) -> str:
    """Services that are not well, nodes, cards, pods."""
    ended = any(service.state in ("dead", "stopped") for service in status.services)
    parts = [
        services_table([service for service in status.services if service.state != "ready"]),
        f"`hami-sim up --state {status.state_directory}` starts what has ended; "
        "of what is dead, the last line that it wrote is shown."
        if ended
        else "",
        nodes_table(status.nodes),
        cards_table(status.cards),
        not_offered_table(status.nodes),
        pods_table(status.pods, status.cards),
    ]
    if not status.usage_known:
        parts.append("What is used is not known: NATS does not answer.")
    return "\n\n".join(part for part in parts if part)


def services_table(services: Sequence[ServiceStatus]) -> str:
    """Empty without services."""
    rows = [(service.name, service.state, _shortened(service.problem)) for service in services]
    return _table(("SERVICE", "STATE", "PROBLEM"), rows)


def nodes_table(nodes: Sequence[NodeStatus]) -> str:
    """Empty without nodes."""
    rows = [
        (
            node.name,
            "yes" if node.ready else "no",
            str(node.slots_allocatable),
            node.handoff or "-",
            node.container_mode or "-",
            _shortened(node.problem),
        )
        for node in nodes
    ]
    return _table(("NODE", "READY", "SLOTS", "HAND-OFF", "CONTAINERS", ""), rows)


def cards_table(cards: Sequence[CardStatus]) -> str:
    """Empty without cards."""
    rows = [
        (
            f"{card.node}/{card.index}",
            card.model,
            f"{card.slots_used}/{card.slots}",
            f"{card.memory_promised_mib} / {card.memory_total_mib}",
            _known(card.memory_used_mib),
            f"{card.cores_promised_percent} %",
            _known(card.cores_used_percent, " %"),
            _remarks(card),
        )
        for card in cards
    ]
    header = ("CARD", "MODEL", "SLOTS", "MEMORY MiB PROMISED", "USED", "CORES PROMISED", "USED", "")
    return _table(header, rows)


def not_offered_table(nodes: Sequence[NodeStatus]) -> str:
    """Empty where every card is offered."""
    return _table(("NODE", "CARDS NOT OFFERED"), [(node.name, text) for node in nodes for text in node.not_offered])


def pods_table(pods: Sequence[PodStatus], cards: Sequence[CardStatus]) -> str:
    """A line per container and card; pods without cards get one. Empty without pods."""
    places = {card.id: f"{card.node}/{card.index}" for card in cards}
    rows: list[tuple[str, ...]] = []
    for pod in pods:
        named = (f"{pod.namespace}/{pod.name}", pod.phase)
        if not pod.cards:
            rows.append((*named, "", pod.node or "-", "", "", "", "", "", _shortened(pod.reason)))
        over = pod.phase in ("Succeeded", "Failed")
        for number, held in enumerate(pod.cards):
            rows.append(
                (
                    *(named if number == 0 else ("", "")),
                    held.container,
                    places.get(held.card_id, held.card_id[:CARD_ID_WIDTH]),
                    str(held.memory_promised_mib),
                    "-" if over else _known(held.memory_used_mib),
                    f"{held.cores_promised_percent} %",
                    "-" if over else _known(held.cores_used_percent, " %"),
                    "-" if over else held.enforced_by or UNKNOWN,
                    _shortened(pod.reason) if number == 0 else "",
                )
            )
    header = (
        "POD",
        "PHASE",
        "CONTAINER",
        "CARD",
        "MEMORY MiB PROMISED",
        "USED",
        "CORES PROMISED",
        "USED",
        "HELD BY",
        "",
    )
    return _table(header, rows)


def _remarks(card: CardStatus) -> str:
    strangers = card.out_of_band_processes or 0
    told = () if not strangers else (f"{strangers} out-of-band process{'es' if strangers > 1 else ''}",)
    return ", ".join((*(() if card.healthy else (_unhealthy(card),)), *told))


def _unhealthy(card: CardStatus) -> str:
    return f"unhealthy: {_shortened(card.problem)}" if card.problem else "unhealthy"


def _known(value: int | None, unit: str = "") -> str:
    return UNKNOWN if value is None else f"{value}{unit}"


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= REASON_WIDTH else line[: REASON_WIDTH - 1] + "…"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def programs_folder() -> str:
    """Where our commands lie, as short as the shell understands it from here."""
    folder = Path(sys.executable).parent
    here = Path.cwd()
    return str(folder.relative_to(here)) if folder.is_relative_to(here) else str(folder)


def next_steps(state: str, kubeconfig: str, kubectl: str, nats: str, programs: str, *, samples: bool) -> str:
    """What to try now, ready to paste. `programs`: the folder of our commands; `samples`: the sample pods are there."""
    option = "" if state == ".hami-sim" else f" --state {state}"
    waiting = [f"  {programs}/hami-sim explain{option} pending           # why a pod waits, and what would help"]
    return "\n".join(
        (
            "Try next:",
            f"  {programs}/hami-sim run{option} --mem-mib 4000 -- vgpu-workload over-alloc   # refused its 4,001st MiB",
            f"  {programs}/hami-sim events{option}                    # what happens, as it happens",
            f"  {programs}/hami-sim status{option}                    # this table",
            *(waiting if samples else ()),
            f"  nats --server {nats} sub 'hami.v1.>'    # the events as other programs see them",
            f"  {kubectl} --kubeconfig {kubeconfig} get pods -A",
            f"  {programs}/hami-sim down{option}",
        )
    )
