"""A book that an earlier node-agent left is read, and pods in it restart with what they had.

`tests/data/node-agent/handed-out-1.json` holds the first form byte for byte; it is never changed.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hami_node_agent.core import handed_out
from node_agent_world import REPOSITORY, World, container, new_world, slot, until

FIRST = REPOSITORY / "tests/data/node-agent/handed-out-1.json"
LIMIT, REGION = "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_MEMORY_SHARED_CACHE"
FIELDS = {
    "pod": {"namespace", "name", "allocation_id", "state", "reason", "containers"},
    "container": {"slices", "region_name", "position"},
    "slice": {"card_id", "memory_mib", "cores_percent", "profile", "placement", "making", "instance"},
}
"""Of the first form."""


def test_the_first_form_of_the_book_says_what_it_said() -> None:
    book = dict(handed_out.decode(FIRST.read_bytes()).items())
    states = {pod.name: (pod.state, pod.reason) for pod in book.values()}
    assert states == {
        "train": ("allocated", ""),
        "mig": ("allocated", ""),
        "refused": ("failed", "another count of cards"),
    }
    held = {
        pod.name: (name, one.position, one.region_name, [(piece.card_id, piece.memory_mib) for piece in one.slices])
        for pod in book.values()
        for name, one in pod.containers.items()
    }
    assert held == {
        "train": ("a", 1, "5f9a7c1e-0000-4000-8000-000000000002.cache", [("GPU-1", 3000), ("GPU-2", 3000)]),
        "mig": ("main", 0, "", [("GPU-3", 9856)]),
    }
    (instance,) = [
        piece.instance for pod in book.values() if pod.name == "mig" for piece in pod.containers["main"].slices
    ]
    assert instance is not None
    assert (instance.uuid, instance.gpu_instance, instance.compute_instance) == ("MIG-1", 3, 0)


def test_what_is_written_now_is_read_by_whoever_ignores_what_he_does_not_know() -> None:
    """An earlier agent skips new members, so the ones that it knows must be there with their meaning."""
    again = json.loads(handed_out.encode(handed_out.decode(FIRST.read_bytes())))
    assert in_first_form(again) == json.loads(FIRST.read_bytes())


def in_first_form(document: dict[str, object]) -> object:
    text = json.loads(json.dumps(document))
    for pod in text["pods"].values():
        _keep(pod, "pod")
        for one in pod["containers"].values():
            _keep(one, "container")
            for piece in one["slices"]:
                _keep(piece, "slice")
    return {key: text[key] for key in ("version", "pods")}


def _keep(value: dict[str, object], kind: str) -> None:
    for name in value.keys() - FIELDS[kind]:
        del value[name]


@pytest.fixture(params=["late-binding", "lock"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with new_world() as found:
        found.configuration["handoff"] = {"mode": request.param}
        yield found


def put_back_into_first_form(file: Path) -> None:
    file.write_text(json.dumps(in_first_form(json.loads(file.read_text()))))


async def test_a_pod_of_an_old_book_restarts_with_its_limit_and_region(world: World) -> None:
    seen, end = world.root / "seen", world.root / "end"
    script = f"env >> {seen}; until [ -e {end} ]; do sleep 0.05; done; rm {end}; exit 1"

    def starts(variable: str) -> list[str]:
        lines = seen.read_text().splitlines() if seen.exists() else []
        return [line.partition("=")[2] for line in lines if line.startswith(f"{variable}=")]

    world.start_agent()
    async with world.kubelet(allocatable=20):
        world.lock_node("old")
        world.bind_pod("old", slot((1, 2345, 10)), container(gpus=1, script=script), restartPolicy="Always")
        await until(lambda: len(starts(LIMIT)) == 1, "the first start")
        await world.stop_agent()
        put_back_into_first_form(Path(world.configuration["files"]["state_dir"]) / "handed-out.json")
        world.start_agent()
        await world.agent_serves()
        end.touch()
        await until(lambda: len(starts(LIMIT)) == 2, "the second start")
    assert starts(LIMIT) == ["2345m", "2345m"]
    assert len(set(starts(REGION))) == 1
