"""Builders of cards and pods."""

from collections.abc import Callable, Sequence

import pytest
from hami_engine import Ask, Card, CardConstraint, Cluster, ContainerAsk, ContainerKind, Family, PodAsk

VENDOR = "NVIDIA"


FAMILIES = [Family(word=VENDOR, model_contains="nvidia", partitioned_mode="mig", has_pair_scores=True)]


def make_cards(
    node: str,
    count: int,
    *,
    slots: int = 10,
    memory_mib: int = 10_000,
    numas: Sequence[int] = (),
    model: str = "NVIDIA A100",
) -> list[Card]:
    """Healthy cards of one node, named after it."""
    return [
        Card(
            id=f"{node}-{number}",
            vendor=VENDOR,
            model=model,
            index=number,
            slots=slots,
            memory_mib=memory_mib,
            cores_percent=100,
            numa=numas[number] if numas else 0,
            mode="hami-core",
        )
        for number in range(count)
    ]


def make_pod(
    uid: str,
    *asks: tuple[int, int, int] | None,
    kinds: Sequence[ContainerKind] = (),
    percent: int | None = None,
    node_policy: str = "binpack",
    card_policy: str = "spread",
    constraint: CardConstraint | None = None,
) -> PodAsk:
    """A pod whose containers ask (cards, MiB, cores) each; None: a container that asks nothing."""
    containers = [
        ContainerAsk(
            name=f"c{number}",
            kind=kinds[number] if kinds else "app",
            asks=[]
            if ask is None
            else [
                Ask(
                    vendor=VENDOR,
                    count=ask[0],
                    memory_mib=ask[1],
                    memory_percent=percent,
                    cores_percent=ask[2],
                )
            ],
        )
        for number, ask in enumerate(asks)
    ]
    return PodAsk(
        uid=uid,
        namespace="default",
        name=uid,
        containers=containers,
        node_policy=node_policy,
        card_policy=card_policy,
        constraints={} if constraint is None else {VENDOR: constraint},
    )


@pytest.fixture
def cards() -> Callable[..., list[Card]]:
    return make_cards


@pytest.fixture
def pod() -> Callable[..., PodAsk]:
    return make_pod


@pytest.fixture
def cluster() -> Cluster:
    """One node `a` with two cards."""
    cluster = Cluster(families=FAMILIES)
    cluster.set_node("a", make_cards("a", 2))
    return cluster


@pytest.fixture
def empty_cluster() -> Callable[[], Cluster]:
    """Makes clusters without nodes."""
    return lambda: Cluster(families=FAMILIES)
