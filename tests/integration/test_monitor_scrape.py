"""A scrape of the running monitor: by Prometheus' rules, and gone with the pod."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hami_sim.fake_kube import FakeKube
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "services/monitor/tests"), str(ROOT / "tools/observability")]

from catalogues import all_specs  # noqa: E402  # lies beside the tool that uses it
from exposition_lint import faults  # noqa: E402
from monitor_world import SimulatedNode, monitor_of, pod  # noqa: E402


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
