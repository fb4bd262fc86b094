"""API server and bus."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import NamedTuple

from hami_chassis.bus import Bus
from hami_chassis.kube import EventRecorder, KubeClient
from hami_model import events

from hami_node_agent.adapters.bus_events import AllocatingHints, allocating_subject, node_streams
from hami_node_agent.adapters.node import LockRelease, NodeRegistration, NodeWatch
from hami_node_agent.adapters.node_events import RecordedNodeEvents
from hami_node_agent.adapters.pods import NodePods, PodPatches, PodSubscriber
from hami_node_agent.core.card_holders import holders_of
from hami_node_agent.core.handed_out import HandedOut
from hami_node_agent.core.outcome import Origin
from hami_node_agent.parts.basis import Basis


class Cluster(NamedTuple):
    """API server and bus."""

    client: KubeClient
    recorder: EventRecorder
    node_events: RecordedNodeEvents
    bus: Bus
    origin: Origin
    subscriber: PodSubscriber
    pods: NodePods
    patches: PodPatches
    node: NodeWatch
    registration: NodeRegistration
    release: LockRelease


async def cluster_of(basis: Basis, book: HandedOut, stack: AsyncExitStack) -> Cluster:
    settings, nvidia, clock = basis.settings, basis.nvidia, basis.clock
    name, prefix = settings.node.name, settings.events.prefix
    client = await KubeClient.connect(
        settings.kube, metrics=basis.chassis_metrics, clock=clock, user_agent="hami-node-agent"
    )
    stack.push_async_callback(client.close)
    recorder = EventRecorder(
        client, component="hami-node-agent", instance=name, metrics=basis.chassis_metrics, clock=clock
    )
    bus = Bus(
        settings.bus,
        name=f"node-agent-{name}",
        metrics=basis.chassis_metrics,
        streams=node_streams(settings.events.streams, prefix=prefix),
    )
    origin = Origin(source=events.source("node-agent", name), node=name, prefix=prefix)
    subscriber = PodSubscriber()
    pods = NodePods(client, name, subscriber, metrics=basis.chassis_metrics, clock=clock)
    bus.subscribe(allocating_subject(name, prefix=prefix), AllocatingHints(name, pods.hint).handle)
    node = NodeWatch(client, name, nvidia.vendor, metrics=basis.chassis_metrics, clock=clock)
    registration = NodeRegistration(
        client,
        node,
        nvidia.vendor,
        origin,
        sink=bus,
        used_by=lambda card_id: holders_of(card_id, pods.all_cached(), nvidia, book),
        heartbeat_seconds=settings.node.heartbeat_seconds,
        metrics=basis.metrics,
        clock=clock,
    )
    return Cluster(
        client,
        recorder,
        RecordedNodeEvents(recorder, name),
        bus,
        origin,
        subscriber,
        pods,
        PodPatches(client, name, metrics=basis.metrics, clock=clock),
        node,
        registration,
        LockRelease(client, node, name, pods=pods.all_cached, metrics=basis.metrics, clock=clock),
    )
