"""One cluster for all end-to-end tests: two nodes with four cards each, two schedulers.

`HAMI_E2E_CONTAINER_MODE` chooses how containers see files: `namespace` (default) or `prefix`; CI runs both.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import hypothesis as _hypothesis  # noqa: F401 (its plugin imports it after a failure, which Python 3.11 may not survive then)
import pytest
from hami_sim.binaries import Binaries
from hami_sim.cluster import LocalCluster, start_cluster
from hami_sim.cluster.profile import profile_of
from hami_sim.testing import run_outside_loop

sys.path.insert(0, str(Path(__file__).parent))

from world import World

MODE = os.environ.get("HAMI_E2E_CONTAINER_MODE", "namespace")
TEST_SECONDS = 900
"""For one test, the cluster's start included; a machine of CI may be many times as slow as an idle laptop."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.fixture(scope="session")
def cluster(
    kubernetes_binaries: Binaries,  # noqa: ARG001 (built before the first test's time runs)
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LocalCluster]:
    """A started cluster; its logs are kept when it ends."""
    folder = tmp_path_factory.mktemp("e2e")
    profile = profile_of(
        {
            "nodes": [{"count": 2, "cards": [{"count": 4}]}],
            "schedulers": 2,
            "container_mode": MODE,
            "time_scale": 0.1,
            "settings": {"monitor": {"sampling": {"period_seconds": 1.0}}},
        },
        "the end-to-end tests",
    )
    started = run_outside_loop(start_cluster(folder / "s", profile))
    yield started
    shutil.copytree(started.layout.root / "logs", folder / "logs")
    run_outside_loop(started.stop())


async def start_what_ended(cluster: LocalCluster) -> None:
    """Returns when every service is ready."""
    await asyncio.gather(*(cluster.start_service(service) for service in cluster.specs))


@pytest.fixture
async def world(cluster: LocalCluster) -> AsyncIterator[World]:
    """The cluster with everything running, seen from a namespace of the test's own."""
    await start_what_ended(cluster)
    namespace = f"e2e-{uuid.uuid4().hex[:8]}"
    await cluster.control_plane.create_namespace(namespace)
    async with cluster.client() as kube:
        found = World(cluster, kube, namespace)
        await found.until_all_ready()  # the test before may have ended one of them
        yield found
        await start_what_ended(cluster)
        await found.clear()
        await kube.delete(f"/api/v1/namespaces/{namespace}")
