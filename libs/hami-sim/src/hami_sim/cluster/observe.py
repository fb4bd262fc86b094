"""Looks at a running cluster and says how it stands."""

from __future__ import annotations

import asyncio

import aiohttp
import msgspec
from hami_model import kube

from hami_sim.cluster.ledger_view import cards_of_node, node_status, pod_status
from hami_sim.cluster.local_cluster import LocalCluster
from hami_sim.cluster.node_problems import not_offered, why_unhealthy
from hami_sim.cluster.service_spec import ServiceSpec
from hami_sim.cluster.status import CardStatus, ClusterStatus, ServiceState, ServiceStatus
from hami_sim.cluster.usage_samples import UsageSamples, UsageUnknownError, latest_samples
from hami_sim.controlplane import ApiError, RestClient
from hami_sim.controlplane.rest import JsonObject
from hami_sim.processes import Program

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
NO_SAMPLES = UsageSamples(slices={}, cards={})


async def observe(cluster: LocalCluster) -> ClusterStatus:
    """Never raises for what does not answer: it is then told as not ready, and its numbers as unknown."""
    services = await _services(cluster)
    try:
        async with cluster.client() as client:
            raw_nodes, pods, events = await asyncio.gather(_nodes(client), _pods(client), _node_events(client))
    except (ApiError, aiohttp.ClientError, TimeoutError):
        raw_nodes, pods, events = [], [], []
    nodes = [msgspec.convert(raw, kube.Node) for raw in raw_nodes]
    samples = NO_SAMPLES
    usage_known = True
    try:
        samples = await latest_samples(cluster.nats_url)
    except UsageUnknownError:
        usage_known = False
    cards = {node.name: _with_reasons(cards_of_node(node, pods, samples), events) for node in nodes}
    return ClusterStatus(
        state_directory=str(cluster.layout.root),
        kubeconfig=str(cluster.kubeconfig),
        api_server=cluster.control_plane.url,
        nats=cluster.nats_url,
        running=all(service.state == "ready" for service in services),
        usage_known=usage_known,
        services=tuple(services),
        nodes=tuple(
            msgspec.structs.replace(
                node_status(node, _os_image(raw)), not_offered=not_offered(events, node.name, cards[node.name])
            )
            for node, raw in zip(nodes, raw_nodes, strict=True)
        ),
        cards=tuple(card for found in cards.values() for card in found),
        pods=tuple(pod_status(pod, samples) for pod in sorted(pods, key=lambda pod: pod.key)),
    )


async def _services(cluster: LocalCluster) -> list[ServiceStatus]:
    running = cluster.control_plane.programs()
    wanted = [name for name in CONTROL_PLANE if name != CONTROL_PLANE[2] or cluster.record.profile.controllers]
    control_plane = [
        ServiceStatus(
            name=name,
            state="ready" if name in running else _without_program(cluster.runner.program(name)),
            pid=running[name].pid if name in running else None,
            log=str(cluster.layout.log(name)),
        )
        for name in wanted
    ]
    async with cluster.client() as client:
        own = await asyncio.gather(*(_service(cluster, spec, client) for spec in cluster.specs.values()))
    return [*control_plane, *own]


async def _service(cluster: LocalCluster, spec: ServiceSpec, client: RestClient) -> ServiceStatus:
    program = cluster.runner.program(spec.name)
    state: ServiceState
    pid, problem = None, ""
    if program is None or not program.is_alive():
        state = _without_program(program)
        problem = "" if program is None else program.log_tail(1) or "it wrote nothing"
    else:
        pid = program.pid
        try:
            missing = await cluster.runner.probe(spec, client)()
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            missing = str(error) or type(error).__name__
        state, problem = ("ready", "") if missing is None else ("not-ready", missing)
    log = str(cluster.layout.log(spec.name))
    return ServiceStatus(name=spec.name, state=state, pid=pid, node=spec.node or None, problem=problem, log=log)


def _without_program(started: Program | None) -> ServiceState:
    """Of a service that does not run; `started`: what was started last and not ended in order."""
    return "stopped" if started is None else "dead"


async def _nodes(client: RestClient) -> list[JsonObject]:
    items: list[JsonObject] = (await client.get("/api/v1/nodes"))["items"]
    return sorted(items, key=lambda node: str(node["metadata"]["name"]))


async def _node_events(client: RestClient) -> list[JsonObject]:
    items: list[JsonObject] = (await client.get("/api/v1/events", fieldSelector="involvedObject.kind=Node"))["items"]
    return items


def _with_reasons(cards: list[CardStatus], events: list[JsonObject]) -> list[CardStatus]:
    return [
        card if card.healthy else msgspec.structs.replace(card, problem=why_unhealthy(events, card)) for card in cards
    ]


async def _pods(client: RestClient) -> list[kube.Pod]:
    return msgspec.convert((await client.get("/api/v1/pods"))["items"], list[kube.Pod])


def _os_image(raw: JsonObject) -> str:
    return str(raw.get("status", {}).get("nodeInfo", {}).get("osImage", ""))
