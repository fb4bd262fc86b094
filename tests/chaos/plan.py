"""What a seed stands for: the pods that come, and what befalls the cluster meanwhile. Pure.

The same seed gives the same pods and the same disturbances in the same order; only when they meet is up to the machine.
"""

# ruff: noqa: S311  # to be repeated, not secret

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["init", "sidecar", "app", "job"]
"""Of a container: `init` ends, `sidecar` is an init container that stays, `app` stays, `job` ends."""

SMALLEST_MIB = 300
STEP_MIB = 7
"""No two containers of a run have the same limit, so whoever has another's is found out."""


@dataclass(frozen=True)
class TenantContainer:
    name: str
    role: Role
    memory_mib: int
    gpus: int


@dataclass(frozen=True)
class Tenant:
    """One pod."""

    number: int
    name: str
    restart: Literal["Always", "OnFailure"]
    containers: tuple[TenantContainer, ...]
    """Init containers first."""
    outlasts: int
    """How many disturbances it is there for once it was served."""
    node: str = ""
    """Where it must go; empty: anywhere."""

    @property
    def is_job(self) -> bool:
        return all(container.role in ("init", "job") for container in self.containers)


def last_on(node: str, number: int) -> Tenant:
    """A pod after all others: with its admission kubelet's checkpoint forgets those that are gone."""
    container = TenantContainer(name="app-0", role="app", memory_mib=SMALLEST_MIB - 1 - number, gpus=1)
    return Tenant(number=-1, name=f"last-{node}", restart="Always", containers=(container,), outlasts=0, node=node)


SHAPES: tuple[tuple[Role, ...], ...] = (
    ("app",),
    ("app",),
    ("app", "app"),
    ("init", "app"),
    ("sidecar", "app"),
    ("init", "sidecar", "app", "app"),
    ("job",),
    ("init", "job"),
)


def tenants(seed: int, count: int, names: int) -> tuple[Tenant, ...]:
    """`count` pods. Half of them take one of `names` names again and again, each time with another size."""
    rng = random.Random(f"tenants {seed}")
    sizes = iter(rng.sample(range(count * 4), count * 4))
    found = []
    for number in range(count):
        shape = rng.choice(SHAPES)
        containers = tuple(
            TenantContainer(
                name=f"{role}-{position}",
                role=role,
                memory_mib=SMALLEST_MIB + STEP_MIB * next(sizes),
                gpus=rng.choice((1, 1, 1, 2)),
            )
            for position, role in enumerate(shape)
        )
        found.append(
            Tenant(
                number=number,
                name=f"again-{rng.randrange(names)}" if rng.random() < 0.5 else f"once-{number}",
                restart="OnFailure" if shape[-1] == "job" else "Always",
                containers=containers,
                outlasts=rng.choice((0, 1, 1, 2, 3)),
            )
        )
    return tuple(found)


@dataclass(frozen=True)
class Disturbance:
    """One thing that goes wrong."""

    kind: str
    draw: random.Random
    """Decides the rest, such as which node."""
    away_seconds: float
    pause_seconds: float
    """Before the next one."""


def disturbances(seed: int, kinds: Sequence[str]) -> Iterator[Disturbance]:
    """Without end; every kind comes once before any comes again."""
    rng = random.Random(f"disturbances {seed}")
    while True:
        for kind in rng.sample(kinds, len(kinds)):
            yield Disturbance(
                kind=kind,
                draw=random.Random(rng.random()),
                away_seconds=rng.choice((0.0, 0.3, 1.0, 3.0)),
                pause_seconds=rng.choice((0.2, 0.5, 1.0, 2.0)),
            )
