"""What NVIDIA's device plugin left behind, and the per-node file that changes while the agent runs."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hami_node_agent.core.node_options import NodeOptions, taken_over
from hami_node_agent.core.nvidia_remains import REMAINS, RIVAL, Ours, Traces, remains
from node_agent_world import NODE, World, card_id, new_world, until

OURS = Ours(
    resources=frozenset({"nvidia.com/gpu"}),
    sockets=frozenset({"nvidia-gpu.sock"}),
    writes_card_specs=False,
    mig_is_ours=True,
)


@pytest.mark.parametrize(
    ("traces", "reason", "said"),
    [
        pytest.param(Traces(sockets={"nvidia-gpu.sock": True}), RIVAL, "remove NVIDIA's device plugin", id="it runs"),
        pytest.param(
            Traces(labels={"nvidia.com/gpu.deploy.device-plugin": "true"}), RIVAL, "set it to false", id="operator"
        ),
        pytest.param(Traces(labels={"nvidia.com/mig.config": "all-1g.5gb"}), RIVAL, "MIG manager", id="MIG manager"),
        pytest.param(
            Traces(allocatable={"nvidia.com/mig-1g.5gb": "7", "nvidia.com/gpu": "4", "cpu": "8"}), REMAINS,
            "nvidia.com/mig-1g.5gb, which nobody serves", id="a resource that nobody serves",
        ),
        pytest.param(Traces(allocatable={"nvidia.com/gpu.shared": "8"}), REMAINS, "gpu.shared", id="shared in time"),
        pytest.param(Traces(sockets={"nvidia-mig-1g.5gb.sock": False}), REMAINS, "nobody answers", id="a dead socket"),
        pytest.param(
            Traces(cdi_files=("/var/run/cdi/k8s.device-plugin.nvidia.com-gpu.json",)), REMAINS, "cdi strategy",
            id="specifications",
        ),
        pytest.param(Traces(labels={"nvidia.com/device-plugin.config": "x"}), REMAINS, "no effect", id="its config"),
    ],
)  # fmt: skip
def test_each_trace_is_explained(traces: Traces, reason: str, said: str) -> None:
    found = remains(traces, OURS)

    assert [one.reason for one in found] == [reason]
    assert said in found[0].message


@pytest.mark.parametrize(
    "traces",
    [
        Traces(),
        Traces(sockets={"nvidia-gpu.sock": False}),
        Traces(labels={"nvidia.com/gpu.present": "true", "nvidia.com/gpu.deploy.device-plugin": "false"}),
        Traces(allocatable={"nvidia.com/gpu": "10", "nvidia.com/mig-1g.5gb": "0"}),
    ],
)
def test_what_does_no_harm_is_not_told(traces: Traces) -> None:
    assert remains(traces, OURS) == []


def test_what_is_safe_holds_at_once_and_the_rest_is_named() -> None:
    started = NodeOptions()
    found = NodeOptions(
        operating_mode="mig", split_count=3, memory_scaling=1.5, library_log_level="4", hidden_indexes=frozenset({1})
    )

    wanted, waiting = taken_over(started, found)

    assert wanted == NodeOptions(split_count=3, hidden_indexes=frozenset({1}))
    assert waiting == ("operatingmode", "libcudaloglevel", "devicememoryscaling")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with new_world() as made:
        made.configuration["node"]["overrides_file"] = str(made.root / "config.json")
        write(made, {})
        yield made


def write(world: World, entry: dict[str, Any] | None) -> None:
    text = "{" if entry is None else json.dumps({"nodeconfig": [{"name": NODE, **entry}]})
    aside = world.root / "aside"
    aside.write_text(text)
    aside.rename(world.root / "config.json")


async def test_a_changed_file_holds_while_the_agent_runs(world: World) -> None:
    async with world.kubelet():
        world.start_agent()
        await world.allocatable(20)

        write(world, {"devicesplitcount": 3, "filterdevices": {"index": [1]}})
        await world.allocatable(3)
        await until(lambda: [one["id"] for one in world.register()] == [card_id(0)], "one card to be registered")

        write(world, None)
        await until(lambda: world.events("NodeConfigurationUnusable"), "the event about a file that is none")
        assert len(world.register()) == 1

        write(world, {"operatingmode": "mig", "devicesplitcount": 3})
        await until(lambda: world.events("NodeConfigurationNeedsRestart"), "the event about what needs a restart")
        await world.allocatable(6)


async def test_a_plugin_that_still_runs_is_told_of(world: World) -> None:
    async with world.kubelet():
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(f"{world.configuration['kubelet']['plugins_dir']}/nvidia-gpu.sock")
            other.listen()
            world.start_agent()
            await until(lambda: world.events("DevicePluginConflict"), "the event about another device plugin")
