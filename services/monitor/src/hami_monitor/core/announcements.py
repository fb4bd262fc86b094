"""Events of a sample."""

from __future__ import annotations

from collections.abc import Container, Iterator
from datetime import UTC, datetime

from hami_model import events
from hami_model.events.envelope import Event

from hami_monitor.core.process_trace import ProcessKey
from hami_monitor.core.sample import CardUse, Sample, SliceUse


def usage_events(sample: Sample, *, source: str) -> Iterator[Event]:
    """One of each pod that holds slices, and one of the node where its cards can be seen."""
    time = datetime.fromtimestamp(sample.at_seconds, tz=UTC)
    by_pod: dict[str, list[SliceUse]] = {}
    for use in sample.slices:
        by_pod.setdefault(use.pod.uid, []).append(use)
    for uses in by_pod.values():
        yield events.UsageSampled(
            source=source, time=time, pod=uses[0].pod, node=sample.node, containers=_containers(uses)
        )
    if not sample.host_problem:
        yield events.UsageNodeSampled(
            source=source,
            time=time,
            node=sample.node,
            cards=tuple(_telemetry(card) for card in sample.cards),
        )


def enforcement_events(
    sample: Sample, *, told: Container[ProcessKey], source: str
) -> Iterator[events.SliceNotEnforced]:
    """One of each process that its library does not hold, but for those that were told of before."""
    for process in sample.enforcement.unheld:
        if process.key not in told:
            yield events.SliceNotEnforced(
                source=source,
                time=datetime.fromtimestamp(sample.at_seconds, tz=UTC),
                pod=process.pod,
                node=sample.node,
                container=process.container,
                pid=process.key.pid,
                began_at_ticks=process.key.began_at_ticks,
                process=process.name,
                reason=process.reason,
                control_from=process.control_from,
                cards=tuple(
                    events.CardMemory(card_id=card_id, memory_used_bytes=used)
                    for card_id, used in process.memory_bytes.items()
                ),
            )


def out_of_band_events(sample: Sample, *, told: Container[ProcessKey], source: str) -> Iterator[events.OutOfBandUser]:
    """One of each process that uses cards without a slice, but for those that were told of before."""
    for process in sample.out_of_band.processes:
        if process.key not in told:
            yield events.OutOfBandUser(
                source=source,
                time=datetime.fromtimestamp(sample.at_seconds, tz=UTC),
                node=sample.node,
                pid=process.key.pid,
                began_at_ticks=process.key.began_at_ticks,
                process=process.name,
                user=process.kind,
                pod=process.pod,
                cards=tuple(
                    events.CardMemory(card_id=card_id, memory_used_bytes=used)
                    for card_id, used in process.memory_bytes.items()
                ),
            )


def _containers(uses: list[SliceUse]) -> tuple[events.ContainerUsage, ...]:
    by_container: dict[str, list[events.CardUsage]] = {}
    for use in uses:
        by_container.setdefault(use.container, []).append(
            events.CardUsage(
                card_id=use.card_id,
                memory_promised_bytes=use.memory_promised_bytes,
                memory_used_bytes=use.memory_used_bytes,
                cores_promised_percent=use.cores_promised_percent,
                cores_used_percent=use.cores_used_percent,
                enforced_by=use.enforced_by,
            )
        )
    return tuple(events.ContainerUsage(container=name, cards=tuple(cards)) for name, cards in by_container.items())


def _telemetry(use: CardUse) -> events.CardTelemetry:
    card = use.host
    return events.CardTelemetry(
        card_id=card.id,
        index=card.index,
        model=card.model,
        memory_total_bytes=card.memory_total_bytes or 0,
        memory_promised_bytes=use.memory_promised_bytes,
        memory_used_bytes=card.memory_used_bytes,
        cores_promised_percent=use.cores_promised_percent,
        cores_used_percent=card.utilisation_percent,
        temperature_celsius=card.temperature_celsius,
        power_milliwatts=card.power_milliwatts,
        processes=tuple(
            events.CardProcess(
                pid=process.pid,
                memory_used_bytes=process.memory_used_bytes,
                used_by=use.users[process.pid].pod,
                user=use.users[process.pid].kind,
            )
            for process in card.processes or ()
        ),
        used_by=use.pods,
    )
