"""A cluster of two nodes, one for each hand-off, and what a run is made of.

HAMI_CHAOS_SEED   which pods come and what goes wrong (a new one each time, printed)
HAMI_CHAOS_PODS   how many pods (30)
HAMI_E2E_CONTAINER_MODE   how containers see files: `namespace` (default) or `prefix`
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from hami_sim.binaries import Binaries
from hami_sim.cluster import LocalCluster, start_cluster
from hami_sim.cluster.profile import profile_of
from hami_sim.testing import run_outside_loop

sys.path.insert(0, str(Path(__file__).parent))

MODE = os.environ.get("HAMI_E2E_CONTAINER_MODE", "namespace")
CARDS = [{"count": 4}]


@pytest.fixture(scope="session")
def chaos_seed() -> int:
    return int(os.environ.get("HAMI_CHAOS_SEED") or random.SystemRandom().randrange(10**6))


@pytest.fixture
def say(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """A line of progress, shown at once."""
    reporter = pytestconfig.pluginmanager.get_plugin("terminalreporter")
    capture = pytestconfig.pluginmanager.get_plugin("capturemanager")

    def line(text: str) -> None:
        if reporter is not None:
            with capture.global_and_fixture_disabled() if capture is not None else nullcontext():
                reporter.ensure_newline()
                reporter.write_line(text)

    return line


@pytest.fixture
def cluster(
    kubernetes_binaries: Binaries,  # noqa: ARG001 (built before the first test's time runs)
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LocalCluster]:
    """A started cluster; its logs are kept when it ends."""
    folder = tmp_path_factory.mktemp("chaos")
    profile = profile_of(
        {
            "nodes": [
                {"name": "late", "cards": CARDS, "settings": {"node-agent": {"handoff": {"mode": "late-binding"}}}},
                {"name": "lock", "cards": CARDS, "settings": {"node-agent": {"handoff": {"mode": "lock"}}}},
            ],
            "schedulers": 2,
            "container_mode": MODE,
            "time_scale": 0.05,
            "settings": {"monitor": {"sampling": {"period_seconds": 1.0}}},
        },
        "the chaos tests",
    )
    started = run_outside_loop(start_cluster(folder / "s", profile))
    yield started
    shutil.copytree(started.layout.root / "logs", folder / "logs")
    run_outside_loop(started.stop())
