"""The monitor's process over the real libvgpu in real processes: what it tells equals the simulated driver's books."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from hami_model import events
from hami_sim.fake_kube import FakeKube

sys.path.insert(0, str(Path(__file__).parents[2] / "services" / "monitor" / "tests"))

from monitor_world import CARDS, MIB, NODE, SimulatedNode, after_first_word, monitor_of, pod


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


def used(name: str, card: int = 0) -> tuple[str, ...]:
    return ("hami_slice_memory_used_bytes", name, CARDS[card])


async def test_what_is_told_equals_the_books_of_the_driver(node: SimulatedNode, kube: FakeKube, nats_url: str) -> None:
    kube.put("pods", pod("a", 0, 4000))
    kube.put("pods", pod("b", 0, 2000))
    kube.put("pods", pod("idle", 1, 1000))
    first = node.run("a", 0, 4000, "alloc", "--mib", "1500", "--hold-until-signal")
    second = node.run("b", 0, 2000, "alloc", "--mib", "700", "--hold-until-signal")
    client = await nats.connect(nats_url)
    subscription = await client.subscribe(f"hami.v1.usage.team.{NODE}.uid-a")
    cards_told = await client.subscribe(f"hami.v1.usage-node.{NODE}")
    await client.flush()
    async with monitor_of(node, kube, nats_url) as monitor:
        by_pid = {process["pid"]: process["used_bytes"] for process in node.books()["cards"][0]["processes"]}
        assert by_pid == {first.pid: 1500 * MIB, second.pid: 700 * MIB}
        await monitor.shows(
            {
                used("a"): by_pid[first.pid],
                used("b"): by_pid[second.pid],
                ("hami_card_memory_used_bytes", CARDS[0]): node.books()["cards"][0]["used_bytes"],
                ("hami_card_memory_promised_bytes", CARDS[0]): 6000 * MIB,
                ("hami_slice_memory_limit_bytes", "a", CARDS[0]): 4000 * MIB,
                ("hami_slice_memory_promised_bytes", "idle", CARDS[1]): 1000 * MIB,
                used("idle", 1): None,
                ("hami_card_processes", CARDS[0], "slice"): 2,
                ("hami_card_processes", CARDS[0], "host"): 0,
            }
        )

        usage = events.decode((await subscription.next_msg(timeout=120)).data)
        assert isinstance(usage, events.UsageSampled)
        card = usage.containers[0].cards[0]
        assert (card.memory_used_bytes, card.memory_promised_bytes) == (1500 * MIB, 4000 * MIB)
        owners: dict[int, str] = {}
        while not owners:  # a sample may be taken before the driver has answered
            told = events.decode((await cards_told.next_msg(timeout=120)).data)
            assert isinstance(told, events.UsageNodeSampled)
            owners = {
                process.pid: process.used_by.name
                for each in told.cards
                for process in each.processes or ()
                if process.used_by
            }
        assert owners == {first.pid: "a", second.pid: "b"}

        second.terminate()
        second.wait()
        await monitor.shows({used("b"): 0})
    await client.close()


async def test_launches_show_as_use_of_cores(node: SimulatedNode, kube: FakeKube) -> None:
    kube.put("pods", pod("busy", 0, 1000))
    node.start("busy", 0, 1000, "launch", "--seconds", "3600")  # says its word at the end
    cores = ("hami_slice_cores_used_ratio", "busy", CARDS[0])
    async with monitor_of(node, kube) as monitor:
        found = await monitor.until(lambda series: series.get(cores, 0) > 0)
        assert found[cores] <= 1


async def test_a_lost_card_leaves_the_rest_to_be_seen(node: SimulatedNode, kube: FakeKube) -> None:
    kube.put("pods", pod("a", 0, 4000))
    kube.put("pods", pod("b", 1, 2000))
    node.run("a", 0, 4000, "alloc", "--mib", "1500", "--hold-until-signal")
    node.run("b", 1, 2000, "alloc", "--mib", "700", "--hold-until-signal")
    used_of = [("hami_card_memory_used_bytes", card) for card in CARDS]
    async with monitor_of(node, kube) as monitor:
        await monitor.until(lambda series: set(used_of) <= series.keys())
        node.driver("lose", "0")
        await monitor.shows(
            {
                used_of[0]: None,
                used_of[1]: 700 * MIB,
                ("hami_card_memory_promised_bytes", CARDS[0]): 4000 * MIB,
                used("a"): 1500 * MIB,
                used("b", 1): 700 * MIB,
            }
        )
        assert (await monitor.series())["hami_monitor_driver_failures_total", "handle"] > 0
        node.driver("restore", "0")
        await monitor.until(lambda series: used_of[0] in series)


async def test_a_slow_driver_holds_up_no_slice(node: SimulatedNode, kube: FakeKube) -> None:
    kube.put("pods", pod("a", 0, 4000))
    first = node.run("a", 0, 4000, "alloc", "--mib", "1500", "--hold-until-signal")
    async with monitor_of(node, kube) as monitor:
        await monitor.until(lambda series: used("a") in series)
        node.driver("nvml-delay", "2000000")
        await monitor.until(lambda series: series["hami_monitor_driver_up",] == 0)
        first.terminate()
        first.wait()
        await monitor.until(lambda series: series[used("a")] == 0)
        node.driver("nvml-delay", "0")
        await monitor.until(lambda series: series["hami_monitor_driver_up",] == 1)


async def test_without_a_driver_slices_are_told(node: SimulatedNode, kube: FakeKube) -> None:
    kube.put("pods", pod("a", 0, 4000))
    node.run("a", 0, 4000, "alloc", "--mib", "1500", "--hold-until-signal")
    node.environment = {key: value for key, value in node.environment.items() if key != "HAMI_SIM_DRIVER"}
    async with monitor_of(node, kube) as monitor:
        await monitor.shows({used("a"): 1500 * MIB, ("hami_monitor_driver_up",): 0})


async def test_what_a_container_does_to_its_region_harms_no_other(node: SimulatedNode, kube: FakeKube) -> None:
    for name in ("good", "cut", "pipe", "link", "gone"):
        kube.put("pods", pod(name, 0, 4000))
        node.run(name, 0, 4000, "alloc", "--mib", "100", "--hold-until-signal")
    async with monitor_of(node, kube) as monitor:
        await monitor.until(lambda series: series["hami_monitor_folders", "read"] == 5)
        for process in node.processes[1:]:
            process.kill()
            process.wait()
        region = "region.cache"
        os.truncate(node.folder("cut") / region, 100)
        for name in ("pipe", "link", "gone"):
            (node.folder(name) / region).unlink()
        os.mkfifo(node.folder("pipe") / region)
        (node.folder("link") / region).symlink_to(node.folder("good") / region)
        await monitor.shows(
            {
                ("hami_monitor_folders", "unreadable"): 3,
                ("hami_monitor_folders", "no-region"): 1,
                used("good"): 100 * MIB,
                **{used(name): None for name in ("cut", "pipe", "link", "gone")},
            }
        )


def may_mount() -> bool:
    tried = subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True)
    return tried.returncode == 0


@pytest.mark.skipif(not may_mount(), reason="a mount namespace needs CAP_SYS_ADMIN")
async def test_a_process_without_the_library_is_told_of(node: SimulatedNode, kube: FakeKube, nats_url: str) -> None:
    """Beside one with it in the same container, one in a container where the library never ran, and one with it that
    has other pids than the host's."""
    for name, card in (("a", 0), ("b", 1), ("c", 1)):
        kube.put("pods", pod(name, card, 4000))
    own_pids = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    hold = ("alloc", "--mib", "100", "--hold-until-signal")
    after_first_word(node.start("c", 1, 4000, *hold, wrapper=own_pids))
    held = node.run("a", 0, 4000, "alloc", "--mib", "1500", "--hold-until-signal")
    outside = node.run_without_library("a", 0, "alloc", "--mib", "5000", "--hold-until-signal")
    node.folder("b").mkdir()
    alone = node.run_without_library("b", 1, *hold)
    client = await nats.connect(nats_url)
    told = await client.subscribe(f"hami.v1.usage.team.{NODE}.*.not-enforced")
    await client.flush()
    async with monitor_of(node, kube, nats_url) as monitor:
        metric = "hami_slice_not_enforced_processes"
        of_a, of_b = (metric, "a", CARDS[0]), (metric, "b", CARDS[1])
        found = await monitor.until(
            lambda series: {of_a, of_b} <= series.keys() and series["hami_card_processes", CARDS[1], "slice"] == 2
        )
        assert {key: value for key, value in found.items() if key[0] == metric} == {of_a: 1, of_b: 1}
        by_pid: dict[int, events.SliceNotEnforced] = {}
        while len(by_pid) < 2:
            event = events.decode((await told.next_msg(timeout=120)).data)
            if isinstance(event, events.SliceNotEnforced):
                # Told again after a sample without cards.
                assert by_pid.setdefault(event.pid, event).reason == event.reason
        assert held.pid not in by_pid
        one = by_pid[outside.pid]
        assert (one.pod.name, one.container, one.reason, one.process) == ("a", "main", "no-slot", "vgpu-workload")
        assert one.cards == (events.CardMemory(card_id=CARDS[0], memory_used_bytes=5000 * MIB),)
        assert (by_pid[alone.pid].pod.name, by_pid[alone.pid].reason) == ("b", "no-region")

        outside.kill()
        outside.wait()
        await monitor.shows({of_a: None, of_b: 1})

        of_c = (metric, "c", CARDS[1])
        (node.folder("c") / "region.cache").unlink()  # its account is nobody's any more
        await monitor.shows({of_c: 1})
    await client.close()


@pytest.mark.case("MON-15")
async def test_the_api_server_may_go_away(node: SimulatedNode, kube: FakeKube) -> None:
    kube.put("pods", pod("a", 0, 4000))
    first = node.run("a", 0, 4000, "alloc", "--mib", "1500", "--hold-until-signal")
    async with monitor_of(node, kube) as monitor:
        await monitor.until(lambda series: used("a") in series)
        await kube.stop()
        first.terminate()
        first.wait()
        await monitor.shows({used("a"): 0, ("hami_slice_memory_promised_bytes", "a", CARDS[0]): 4000 * MIB})
        assert (node.folder("a") / "region.cache").exists()
        await kube.start()
        kube.remove("pods", "a", "team")
        await monitor.until(lambda series: used("a") not in series)
    assert node.folder("a").exists()


@pytest.mark.case("MON-14")
async def test_a_finished_pod_is_told_no_more(node: SimulatedNode, kube: FakeKube) -> None:
    kube.put("pods", pod("a", 0, 4000))
    node.run("a", 0, 4000, "alloc", "--mib", "1500", "--hold-until-signal")
    async with monitor_of(node, kube) as monitor:
        await monitor.until(lambda series: used("a") in series)
        kube.put("pods", {**pod("a", 0, 4000), "status": {"phase": "Succeeded"}})
        await monitor.shows({used("a"): None, ("hami_card_memory_promised_bytes", CARDS[0]): 0})


def test_the_command_reads_a_live_region(node: SimulatedNode) -> None:
    process = node.run("a", 1, 4000, "alloc", "--mib", "1500", "--hold-until-signal")
    shown = subprocess.run(
        [Path(sys.executable).with_name("hami-monitor"), "region", node.folder("a") / "region.cache", "--json"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = json.loads(shown)
    assert found["version"] == [1, 3]
    (card,) = [device for device in found["read"]["devices"] if device["uuid_valid"]]
    assert (card["uuid_label"], card["limit"], card["total"]) == (CARDS[1], 4000 * MIB, 1500 * MIB)
    assert [one["pid"] for one in found["processes"]] == [process.pid]
