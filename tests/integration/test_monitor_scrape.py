"""The running monitor: its scrape keeps to Prometheus' rules, and it tells of who uses cards without a slice."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from hami_model import events
from hami_sim.fake_kube import FakeKube
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "services/monitor/tests"), str(ROOT / "tools/observability")]

from catalogues import all_specs  # noqa: E402  # lies beside the tool that uses it
from exposition_lint import faults  # noqa: E402
from monitor_world import CARDS, MIB, NODE, SimulatedNode, after_first_word, monitor_of, pod  # noqa: E402


@pytest.fixture
def node(tmp_path: Path) -> Any:
    found = SimulatedNode(tmp_path)
    yield found
    found.end()


@pytest.fixture
async def kube() -> AsyncIterator[FakeKube]:
    fake = FakeKube()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.mark.case("MON-08")
async def test_a_real_scrape_follows_prometheus_rules_and_the_catalogue(node: SimulatedNode, kube: FakeKube) -> None:
    kube.put("pods", pod("a", 0, 4000))
    node.run("a", 0, 4000, "alloc", "--mib", "100", "--hold-until-signal")
    node.driver("xid", "0", "31")
    async with monitor_of(node, kube) as monitor:
        await monitor.until(lambda series: any(key[:2] == ("hami_slice_memory_used_bytes", "a") for key in series))
        _, text = await monitor.get("/metrics")
    assert faults(text) == []
    specs = {spec.name.removesuffix("_total"): spec for spec in all_specs().values()}
    for family in text_string_to_metric_families(text):
        if not family.name.startswith("hami_"):
            continue
        assert family.type == specs[family.name].kind
        for one in family.samples:
            assert set(one.labels) - {"le"} == set(specs[family.name].labels), one.name


async def test_who_uses_a_card_without_a_slice_of_it_is_told_of(
    node: SimulatedNode, kube: FakeKube, nats_url: str
) -> None:
    """A program of no pod, and one of a pod that holds a slice of another card; beside one by right."""
    for name, card in (("right", 0), ("wrong", 1)):
        kube.put("pods", pod(name, card, 4000))
        node.folder(name).mkdir()
    hold = ("--hold-until-signal",)
    right = node.run("right", 0, 4000, "alloc", "--mib", "100", *hold)
    wrong = node.run_without_library("wrong", 0, "alloc", "--mib", "200", *hold)
    stranger = after_first_word(node.start("stranger", 0, 0, "alloc", "--mib", "300", *hold, preload=False))
    client = await nats.connect(nats_url)
    told = await client.subscribe(f"hami.v1.usage-node.{NODE}.out-of-band")
    await client.flush()
    async with monitor_of(node, kube, nats_url) as monitor:
        by_pid: dict[int, events.OutOfBandUser] = {}
        while len(by_pid) < 2:
            event = events.decode((await told.next_msg(timeout=120)).data)
            assert isinstance(event, events.OutOfBandUser)
            # Told again after a sample without cards.
            assert by_pid.setdefault(event.pid, event).user == event.user
        assert right.pid not in by_pid
        assert by_pid[wrong.pid].pod is not None
        assert by_pid[wrong.pid].pod.name == "wrong"
        assert by_pid[wrong.pid].user == "other-pod"
        # Where these tests themselves run in a pod, what they start does so, too.
        assert by_pid[stranger.pid].user in ("host", "other-pod")
        assert by_pid[stranger.pid].pod is None
        assert by_pid[stranger.pid].cards == (events.CardMemory(card_id=CARDS[0], memory_used_bytes=300 * MIB),)
        await monitor.until(
            lambda series: (
                series["hami_card_processes", CARDS[0], "slice"] == 1
                and sum(series["hami_card_process_memory_bytes", CARDS[0], kind] for kind in ("host", "other-pod"))
                == 500 * MIB
            )
        )
        for process in (wrong, stranger):
            process.kill()
            process.wait()
        await monitor.until(
            lambda series: sum(series["hami_card_processes", CARDS[0], kind] for kind in ("host", "other-pod")) == 0
        )
    await client.close()
