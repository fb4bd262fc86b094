"""Lets the tests of this folder share their builders, and a simulated node."""

import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hami_sim.kubelet import end_containers
from hami_sim.kubelet.shim_server import ShimServer

sys.path.insert(0, str(Path(__file__).parent))
from kubelet_node import Node, skip_without_namespaces


@pytest.fixture
async def short_root() -> AsyncIterator[Path]:
    """A unix socket's path has a limit that pytest's own folders exceed."""
    root = Path(tempfile.mkdtemp(prefix="kl"))
    yield root
    await end_containers(root)
    shutil.rmtree(root)


@pytest.fixture
def shims() -> Iterator[ShimServer]:
    server = ShimServer()
    yield server
    server.close()


@pytest.fixture(params=["prefix", "namespace"])
async def node(request: pytest.FixtureRequest, short_root: Path, shims: ShimServer) -> Node:
    if request.param == "namespace":
        await skip_without_namespaces(short_root, shims)
    return Node(short_root, request.param)


@pytest.fixture
def prefix_node(short_root: Path) -> Node:
    """For what does not depend on the mode."""
    return Node(short_root, "prefix")
