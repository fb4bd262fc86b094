"""One replay: pods arrive one after the other and never leave; one that does not fit is dropped."""

from __future__ import annotations

import time
from collections import Counter

import msgspec
from hami_engine import Ask, Card, CardConstraint, Cluster, ContainerAsk, Family, Placement, PodAsk, WorkloadShape

from hami_sim.trace.arrivals import arrivals
from hami_sim.trace.files import Trace, TraceNode, TracePod

VENDOR = "NVIDIA"
CARD_MEMORY_MIB = 100_000
SLOTS = 1_000  # more shares than fit on a card: never binding
POLICY_WORDS = ("binpack", "spread", "fgd")
DEFAULT_POLICIES = ("binpack", "spread", "binpack/spread", "fgd")


class Policy(msgspec.Struct, frozen=True):
    """Policies of nodes and of cards, by the words that annotations use."""

    node: str
    card: str

    @property
    def name(self) -> str:
        """One word where both are the same."""
        return self.node if self.node == self.card else f"{self.node}/{self.card}"


class ReplayedSeed(msgspec.Struct, frozen=True):
    """What came of one order of arrival."""

    seed: int
    allocated_percent: list[float]  # of all cards, when the requests first reach 0, 1, 2 … percent of them
    placed_pods: int
    dropped_pods: int
    seconds: float  # of processor time


def parse_policy(text: str) -> Policy | None:
    """`WORD` for nodes and cards, or `NODE/CARD`. None where it names no policy."""
    node, slash, card = text.partition("/")
    card = card if slash else node
    if node in POLICY_WORDS and card in POLICY_WORDS:
        return Policy(node, card)
    return None


def percent_of(gpu_milli: int) -> int:
    """Thousandths of a card in whole percent, rounded up."""
    return -(-gpu_milli // 10)


def ask_of(pod: TracePod) -> Ask | None:
    """The cards a pod asks for: cores by its thousandths, of memory the same percentage."""
    if pod.cards == 0:
        return None
    percent = percent_of(pod.gpu_milli)
    return Ask(vendor=VENDOR, count=pod.cards, memory_percent=percent, cores_percent=percent)


def constraint_of(pod: TracePod) -> CardConstraint | None:
    """The models a pod allows."""
    return CardConstraint(use_models=list(pod.models)) if pod.models else None


def workload(trace: Trace) -> list[WorkloadShape]:
    """Each distinct request of the list, as often as it is in the list; in an order that does not matter."""
    return [
        WorkloadShape(
            weight=count,
            ask=ask_of(pod),
            constraint=constraint_of(pod),
            host=(pod.cpu_milli, pod.memory_mib),
        )
        for pod, count in Counter(trace.pods).items()
    ]


def empty_cluster(trace: Trace) -> Cluster:
    """The engine with the trace's nodes, and its list as the workload."""
    cluster = Cluster(families=[Family(word=VENDOR)])
    for node in trace.nodes:
        cluster.set_node(node.name, [_card(node, index) for index in range(node.cards)])
        cluster.set_node_host(node.name, (node.cpu_milli, node.memory_mib))
    cluster.set_workload(workload(trace))
    return cluster


def replay_seed(empty: Cluster, trace: Trace, policy: Policy, seed: int, most_load_percent: int) -> ReplayedSeed:
    """Lets the pods of one order arrive on a copy of the empty cluster.

    Nodes whose free CPU or memory is too small are taken out before the engine is asked, as kube-scheduler does.
    """
    began = time.process_time()
    cluster = empty.copy()
    names = [node.name for node in trace.nodes]
    places = {name: place for place, name in enumerate(names)}
    cpu_milli = [node.cpu_milli for node in trace.nodes]
    memory_mib = [node.memory_mib for node in trace.nodes]
    requests = _Requests(policy)
    capacity = trace.capacity_gpu_milli
    arrived = allocated = placed = dropped = 0
    curve: list[float] = [0.0]
    for number, pod in enumerate(arrivals(trace, seed, most_load_percent)):
        need_cpu, need_memory = pod.cpu_milli, pod.memory_mib
        candidates = [
            name
            for name, cpu, memory in zip(names, cpu_milli, memory_mib, strict=True)
            if cpu >= need_cpu and memory >= need_memory
        ]
        answer = cluster.reserve(requests.ask(pod, f"pod-{number:06}"), candidates)
        arrived += pod.total_gpu_milli
        if isinstance(answer, Placement):
            place = places[answer.node]
            cpu_milli[place] -= need_cpu
            memory_mib[place] -= need_memory
            cluster.set_node_host(answer.node, (cpu_milli[place], memory_mib[place]))
            allocated += pod.total_gpu_milli
            placed += 1
        else:
            dropped += 1
        while len(curve) * capacity <= arrived * 100 and len(curve) <= most_load_percent:
            curve.append(allocated * 100 / capacity)
    return ReplayedSeed(
        seed=seed,
        allocated_percent=curve,
        placed_pods=placed,
        dropped_pods=dropped,
        seconds=time.process_time() - began,
    )


class _Requests:
    """Pods as the engine takes them; what pods of one shape share is made once."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._parts: dict[TracePod, tuple[list[ContainerAsk], dict[str, CardConstraint]]] = {}

    def ask(self, pod: TracePod, uid: str) -> PodAsk:
        parts = self._parts.get(pod)
        if parts is None:
            ask, constraint = ask_of(pod), constraint_of(pod)
            container = ContainerAsk(name="main", kind="app", asks=[ask] if ask else [])
            parts = self._parts[pod] = [container], {VENDOR: constraint} if constraint else {}
        containers, constraints = parts
        return PodAsk(
            uid=uid,
            namespace="trace",
            name=uid,
            containers=containers,
            node_policy=self._policy.node,
            card_policy=self._policy.card,
            constraints=constraints,
            host=(pod.cpu_milli, pod.memory_mib),
        )


def _card(node: TraceNode, index: int) -> Card:
    return Card(
        id=f"{node.name}-{index}",
        vendor=VENDOR,
        model=node.model,
        index=index,
        slots=SLOTS,
        memory_mib=CARD_MEMORY_MIB,
        cores_percent=100,
    )
