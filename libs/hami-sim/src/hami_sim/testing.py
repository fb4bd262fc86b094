"""Fixtures of a real control plane and a real nats-server: `pytest_plugins = ["hami_sim.testing"]`.

    control_plane        one cluster for the whole session, without extender (tests that need one: `use_extender`)
    kube                 the administrator's RestClient, for one test
    namespace            a new namespace of this test's own, ready for pods; deleted afterwards
    kubernetes_binaries  the programs; they are built before the first test when they are nowhere
    nats_url             one nats-server with JetStream for the whole session

Where the programs cannot be had, tests that need them fail with the reason; they never skip.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from hami_sim.binaries import Binaries, BinariesUnavailableError, obtain_binaries
from hami_sim.controlplane import ControlPlane, ControlPlaneSettings, RestClient
from hami_sim.nats_server import NatsServer

Result = TypeVar("Result")
SETTINGS = ControlPlaneSettings(
    # Nodes that a test makes by hand have no kubelet that says they live: they stay Ready, however slow the machine is.
    extra_controller_manager_arguments=("--node-monitor-grace-period=1h",)
)
BINARIES: pytest.StashKey[Binaries | BinariesUnavailableError] = pytest.StashKey()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds the programs before any test's clock runs, when a collected test needs them."""
    needed = any("kubernetes_binaries" in getattr(item, "fixturenames", ()) for item in session.items)
    if not needed or session.config.option.collectonly:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")

    def progress(line: str) -> None:
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(line)

    try:
        session.config.stash[BINARIES] = obtain_binaries(progress)
    except BinariesUnavailableError as error:
        session.config.stash[BINARIES] = error


@pytest.fixture(scope="session")
def kubernetes_binaries(pytestconfig: pytest.Config) -> Binaries:
    """The programs of the control plane."""
    binaries = pytestconfig.stash[BINARIES]
    if isinstance(binaries, BinariesUnavailableError):
        pytest.fail(str(binaries), pytrace=False)
    return binaries


@pytest.fixture(scope="session")
def control_plane(kubernetes_binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A started cluster with controllers and no extender."""
    folder = tmp_path_factory.mktemp("cluster")
    started = run_outside_loop(ControlPlane.start(folder, kubernetes_binaries, SETTINGS))
    yield started
    run_outside_loop(started.stop())


@pytest.fixture
async def kube(control_plane: ControlPlane) -> AsyncIterator[RestClient]:
    """Requests as the administrator."""
    async with control_plane.client() as client:
        yield client


@pytest.fixture
async def namespace(control_plane: ControlPlane, kube: RestClient) -> AsyncIterator[str]:
    """Name of a new namespace in which pods can be created."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    await control_plane.create_namespace(name)
    yield name
    await kube.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a nats-server with JetStream."""
    server = run_outside_loop(NatsServer.start(tmp_path_factory.mktemp("nats")))
    yield server.url
    run_outside_loop(server.stop())


def run_outside_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine to its end in a loop and thread of its own: a session fixture outlives the loops of tests."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="hami-sim-testing") as executor:
        return executor.submit(asyncio.run, work).result()
