"""One node with a real kubelet for all tests. `run.py` makes the namespaces that it lives in and runs these tests."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import hypothesis as _hypothesis  # noqa: F401 (its plugin imports it after a failure, which Python 3.11 may not survive then)
import pytest
from hami_sim.binaries.containerd import obtain_containerd
from hami_sim.cluster import start_cluster
from hami_sim.cluster.profile import profile_of
from hami_sim.testing import run_outside_loop

sys.path.insert(0, str(Path(__file__).parent))

from kubelet_world import World
from node_places import FOLDER_VARIABLE, Folders
from real_node import Node

TEST_SECONDS = 900
"""For one test, the cluster's start included; a machine that also compiles is slow."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """The control plane without simulated nodes, and the real one."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        pytest.skip("these tests need a node of their own: tests/kubelet/run.py makes it")

    def progress(line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} kubelet: {line}", flush=True)

    folders = Folders(Path(folder))
    profile = profile_of({"nodes": []}, "the tests with a real kubelet")
    cluster = run_outside_loop(start_cluster(folders.state, profile, progress=progress))
    node = Node(cluster, folders, obtain_containerd(progress))
    try:
        run_outside_loop(node.start(progress))
        progress("the node is ready")
        yield node
    finally:
        run_outside_loop(node.stop_all())
        run_outside_loop(cluster.end_programs(progress))


@pytest.fixture
async def world(node: Node) -> AsyncIterator[World]:
    """The node with everything running, seen from a namespace of the test's own."""
    await node.start_what_ended()
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    await node.cluster.control_plane.create_namespace(namespace)
    async with node.cluster.client() as kube:
        found = World(node, kube, namespace)
        yield found
        await node.start_what_ended()
        await found.clear()
        await kube.delete(f"/api/v1/namespaces/{namespace}")
