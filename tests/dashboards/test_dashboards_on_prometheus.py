"""Every query of every dashboard on a real Prometheus that scrapes a cluster: all well, then with everything wrong."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml
from dashboards import DASHBOARDS
from hami_sim.binaries import Binaries
from hami_sim.cluster import LocalCluster, start_cluster
from hami_sim.cluster.profile import profile_of
from hami_sim.testing import run_outside_loop
from panels import Variable, queries
from prometheus import FOLDER_VARIABLE, POLL_SECONDS, Prometheus, program, running_prometheus, targets
from promql import filled
from world import World

ROOT = Path(__file__).resolve().parents[2]
RULES = yaml.safe_load((ROOT / "k8s/dashboards/alerts.yaml").read_text(encoding="utf-8"))["spec"]
NODE = "sim-0"
NAMESPACE = "default"
CHOSEN = {"node": ".*", "namespace": ".*", "pod": ".*"}
WORK = ("vgpu-workload", "launch", "--seconds", "3600")
STRANGER_MIB = 300
TEST_SECONDS = 900

pytestmark = [
    pytest.mark.timeout(TEST_SECONDS),
    pytest.mark.skipif(FOLDER_VARIABLE not in os.environ, reason="tests/dashboards/run.py fetches Prometheus first"),
]


@pytest.fixture(scope="module")
def cluster(
    kubernetes_binaries: Binaries,  # noqa: ARG001 (built before the first test's time runs)
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LocalCluster]:
    profile = profile_of(
        {
            "nodes": [{"count": 1, "cards": [{"count": 2}]}],
            "schedulers": 1,
            "settings": {"monitor": {"sampling": {"period_seconds": 1.0}}},
        },
        "the dashboards' tests",
    )
    started = run_outside_loop(start_cluster(tmp_path_factory.mktemp("dashboards") / "s", profile))
    yield started
    run_outside_loop(started.stop())


@asynccontextmanager
async def watched(cluster: LocalCluster, folder: Path) -> AsyncIterator[tuple[World, Prometheus]]:
    """The cluster with pods that run and one that waits, all made under Prometheus' eyes."""
    async with cluster.client() as kube, running_prometheus(cluster, folder, RULES) as prometheus:
        await prometheus.until_scraped()
        world = World(cluster, kube, NAMESPACE)
        try:
            await world.create_pod("busy", WORK, gpu=1, gpumem=3000, gpucores=30)
            await world.create_pod("holding", gpu=1, gpumem=2000, gpucores=20)
            await world.create_pod("too-large", gpu=1, gpumem=90_000)
            await world.until_phase("busy", "Running")
            await world.until_phase("holding", "Running")
            await world.until_rejected("too-large")
            yield world, prometheus
        finally:
            await world.clear()


def expressions(*, quiet: bool) -> dict[str, str]:
    """Queries by dashboard and panel."""
    return {
        f"{dashboard.uid}: {panel.title}: {query.legend}": filled(query.expression, CHOSEN)
        for dashboard in DASHBOARDS
        for panel, query in queries(dashboard)
        if panel.is_quiet == quiet
    }


async def test_queries_are_valid_and_have_data(cluster: LocalCluster, tmp_path: Path) -> None:
    async with watched(cluster, tmp_path) as (_, prometheus):
        for query in expressions(quiet=True).values():
            await prometheus.values(query)
        await prometheus.until_all_have_data(expressions(quiet=False))
        for dashboard in DASHBOARDS:
            for variable in dashboard.variables:
                assert await choices(prometheus, variable), f"{dashboard.uid}: nothing to choose for {variable.name}"
        used = f'hami_slice_memory_used_bytes{{pod="holding"}} == {100 << 20}'
        await prometheus.until_all_have_data({"what the process holds": used})
        assert await prometheus.health_of_rules() == {"ok"}


async def test_what_is_wrong_shows_and_fires(cluster: LocalCluster, tmp_path: Path) -> None:
    async with watched(cluster, tmp_path) as (world, prometheus):
        place = cluster.node_layout(NODE)
        programs = Path(world.cluster.specs["kubelets"].settings["nodes"][0]["programs_dirs"][0])  # type: ignore[index]
        environment = {
            **os.environ,
            "HAMI_SIM_DRIVER": str(place.driver),
            "HAMI_SIM_STATE": str(place.driver_state),
            "LD_LIBRARY_PATH": str(programs.parent / "sim"),
        }

        def sim_driver(*words: str) -> None:
            subprocess.run([programs / "sim-driver", *words], env=environment, check=True)

        sim_driver("xid", "1", "63")
        sim_driver("temperature", "1", "95")
        sim_driver("ecc", "1", "corrected", "1")
        stranger = await asyncio.create_subprocess_exec(
            *(programs / "vgpu-workload", "alloc", "--mib", str(STRANGER_MIB), "--hold-until-signal"),
            env=environment,
            stdout=asyncio.subprocess.DEVNULL,
        )
        try:
            wrong = expressions(quiet=True)
            await prometheus.until_all_have_data(
                {name: wrong[name] for name in wrong if name.partition(": ")[2].startswith(("XIDs", "Clocks held"))}
            )
            await prometheus.until_all_have_data(
                {"out of band": f'sum(hami_card_process_memory_bytes{{of=~"other-pod|host"}}) == {STRANGER_MIB << 20}'}
            )
            await prometheus.until_firing("HamiXid")
            await until_out_of_band_shows(world)
        finally:
            stranger.kill()
            await stranger.wait()
            sim_driver("temperature", "1", "auto")


async def until_out_of_band_shows(world: World) -> None:
    """In the status that people see, and as an event that was kept."""
    while True:
        shown = any(card.out_of_band_processes for card in (await world.status()).cards)
        kept = await world.kept_out_of_band(NODE)
        if shown and kept:
            # Told at its second sample, which may be before it has allocated, once it is on the card.
            assert kept[0].cards[0].memory_used_bytes in (0, STRANGER_MIB << 20)
            return
        await asyncio.sleep(POLL_SECONDS)


async def choices(prometheus: Prometheus, variable: Variable) -> list[str]:
    """What Grafana offers for `label_values(series, label)`."""
    series, _, label = variable.values.removeprefix("label_values(").removesuffix(")").rpartition(", ")
    found: list[str] = await prometheus.ask(f"label/{label}/values", **{"match[]": filled(series, CHOSEN)})
    return found


def check_metrics(text: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([program("promtool"), "check", "metrics"], input=text, capture_output=True, check=False)


@pytest.mark.parametrize("what", [("check", "rules", "rules.yml"), ("test", "rules", "alerts_test.yaml")])
def test_alerts_are_as_promtool_wants_them_and_fire_when_they_should(tmp_path: Path, what: tuple[str, ...]) -> None:
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(RULES), encoding="utf-8")
    shutil.copy(Path(__file__).with_name("alerts_test.yaml"), tmp_path)
    done = subprocess.run([program("promtool"), *what], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


async def test_promtool_finds_no_fault_in_what_services_serve(cluster: LocalCluster) -> None:
    for target in targets(cluster):
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"http://{target['targets'][0]}/metrics") as response,
        ):
            text = await response.read()
        done = await asyncio.to_thread(check_metrics, text)
        assert done.returncode == 0, (target["labels"], done.stderr.decode(), done.stdout.decode())
