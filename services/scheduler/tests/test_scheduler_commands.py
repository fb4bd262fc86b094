"""The commands as users call them."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from hami_engine import Cluster
from hami_scheduler.config import EventSettings, PlacementSettings
from hami_sim.fake_kube import FakeKube
from hami_sim.fake_kube.faults import EVERY
from scheduler_builders import node, pod, quota
from scheduler_service import Scheduler, eventually, running, settings_for

HAMI_SCHEDULER = str(Path(sys.executable).parent / "hami-scheduler")


@pytest.fixture
def prefix() -> str:
    return f"c{uuid.uuid4().hex[:8]}"


@pytest.fixture
async def scheduler(fake_kube: FakeKube, nats_url: str, prefix: str) -> AsyncIterator[Scheduler]:
    """Over one node with one card of 10,000 MiB: pod `held` is bound, pod `waiting` was rejected."""
    fake_kube.put("nodes", node("n1"))
    settings = settings_for(
        fake_kube.url, nats=nats_url, events=EventSettings(prefix=prefix), placement=PlacementSettings(record_steps=100)
    )
    async with running(settings) as found:
        held = fake_kube.put("pods", pod("held", memory=6000, cores=30))
        await found.filter(held, ["n1"])
        await found.bind(held, "n1")
        await found.filter(fake_kube.put("pods", pod("waiting", memory=6000)), ["n1"])

        async def all_questions_are_taken() -> bool:
            """They are taken up one after the other, this one last."""
            return (await call("snapshot", "--server", nats_url, "--prefix", prefix))[0] == 0

        await eventually(all_questions_are_taken)
        yield found


async def call(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        HAMI_SCHEDULER, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


@pytest.mark.usefixtures("scheduler")
async def test_what_the_commands_say(nats_url: str, prefix: str, tmp_path: Path) -> None:
    at = ("--server", nats_url, "--prefix", prefix)

    _, out, _ = await call("explain", "default/waiting", *at)
    sentence = (
        "fits on none of 1 nodes: 6,000 MiB asked; 4,000 free on card n1-0 of n1; would fit on n1 (card n1-0) if "
        "container main asked NVIDIA for at most 4,000 MiB of each card (asks 6,000), or when pod default/held ends"
    )
    assert out.splitlines() == [
        f"default/waiting: {sentence}",
        "",
        "n1: 1/1 CardInsufficientMemory",
        "  would fit on n1 (card n1-0) if container main asked NVIDIA for at most 4,000 MiB of each card (asks 6,000)",
        "  would fit on n1 (card n1-0) when pod default/held ends",
        "  CARD  NEEDS          PROMISED                 FREE                     REASON",
        "  n1-0  6000 MiB, 0 %  6000 MiB, 30 %, 1 slots  4000 MiB, 70 %, 9 slots  CardInsufficientMemory",
    ]
    _, out, _ = await call("explain", "default/waiting", "--json", *at)
    told = json.loads(out)
    assert (told["change"]["kind"], told["change"]["numbers"]) == (
        "lower-ask",
        {"memory_mib": {"now": 6000, "needed": 4000}},
    )
    assert told["nodes"][0]["changes"][1]["pods"][0]["name"] == "held"
    card = told["nodes"][0]["cards"][0]
    assert (card["needed_memory_mib"], card["used_memory_mib"], card["free_memory_mib"]) == (6000, 6000, 4000)
    _, out, _ = await call("explain", "default/held", "--json", *at)
    assert json.loads(out)["slices"][0]["card_id"] == "n1-0"

    _, out, _ = await call("state", "n1", *at)
    assert out.splitlines() == [
        "1 nodes, 1 bound pods, 0 reservations, 1 rejected pods",
        "n1: 1 pods",
        "  n1-0: memory 6000/10000 MiB, cores 30/100 %, slots 1/10",
        "  default/held: bound",
    ]

    file = tmp_path / "pods.yaml"
    file.write_text(yaml.safe_dump_all([pod("x", memory=4000), pod("y", memory=4000)]), encoding="utf-8")
    code, out, _ = await call("what-if", str(file), *at)
    crowded = (
        "fits on none of 1 nodes: 4,000 MiB asked; 0 free on card n1-0 of n1; would fit on n1 (card n1-0) when pod "
        "default/x ends"
    )
    assert (code, out.splitlines()) == (
        1,
        [
            "default/x: n1",
            "  main: n1-0, 4000 MiB, 0 % of its cores",
            f"default/y: {crowded}",
        ],
    )
    held = json.loads((await call("explain", "default/held", "--json", *at))[1])["uid"]
    code, out, _ = await call("what-if", str(file), "--remove", held, "--json", *at)
    planned = json.loads(out)
    assert (code, planned["removed"], [each["node"] for each in planned["pods"]]) == (0, [held], ["n1", "n1"])

    assert await call("explain", "default/nobody", *at) == (
        1,
        "",
        "hami-scheduler: no live pod default/nobody asks for cards or holds some\n",
    )


@pytest.mark.usefixtures("scheduler")
async def test_a_name_that_nothing_has_is_told(nats_url: str, prefix: str, tmp_path: Path) -> None:
    at = ("--server", nats_url, "--prefix", prefix)
    for options in ((), ("--json",)):
        refused = (1, "", "hami-scheduler: no node n2 has told of cards\n")
        assert await call("state", "n2", *options, *at) == refused

    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(pod("x", memory=4000)), encoding="utf-8")
    assert await call("what-if", str(file), "--remove", "nobody", *at) == (
        0,
        "default/x: n1\n  main: n1-0, 4000 MiB, 0 % of its cores\n",
        "hami-scheduler: --remove nobody: no pod of this UID holds cards\n",
    )


async def test_a_pod_without_a_namespace_is_planned_within_the_quota_of_default(
    fake_kube: FakeKube, nats_url: str, prefix: str, tmp_path: Path
) -> None:
    fake_kube.put("nodes", node("n1"))
    fake_kube.put("resourcequotas", quota("q", "default", gpumem=1000))
    planned = pod("x", memory=4000)
    del planned["metadata"]["namespace"]
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(planned), encoding="utf-8")
    at = ("--server", nats_url, "--prefix", prefix)
    async with running(settings_for(fake_kube.url, nats=nats_url, events=EventSettings(prefix=prefix))):

        async def is_planned() -> bool:
            return "x: " in (await call("what-if", str(file), *at))[1]

        await eventually(is_planned)
        code, out, _ = await call("what-if", str(file), "--json", *at)
    assert (code, json.loads(out)["pods"][0]["reasons"]) == (1, {"ResourceQuotaNotFit": 1})


@pytest.mark.usefixtures("scheduler")
async def test_a_pod_that_the_watch_has_not_told_of_is_explained(
    fake_kube: FakeKube, nats_url: str, prefix: str
) -> None:
    at = ("--server", nats_url, "--prefix", prefix)
    fake_kube.pause_watches("pods")
    fake_kube.put("pods", pod("late", memory=6000))
    code, out, _ = await call("explain", "default/late", *at)
    assert (code, out.splitlines()[0].partition(";")[0]) == (
        0,
        "default/late: fits on none of 1 nodes: 6,000 MiB asked",
    )
    fake_kube.fail("get", "pods", 503, times=EVERY)
    code, out, err = await call("explain", "default/late", *at)
    assert (code, out) == (1, "")
    assert "pod default/late is not known, and the API server does not say whether there is such a pod" in err


@pytest.mark.parametrize(
    ("arguments", "status", "problem"),
    [
        pytest.param(("explain", "nobody"), 2, "write NAMESPACE/POD", id="a name without namespace"),
        pytest.param(
            ("explain", "a/b", "--server", "nats://127.0.0.1:1"), 1, "nats://127.0.0.1:1", id="nobody listens"
        ),
        pytest.param(
            ("what-if", "/nowhere.yaml"), 2, "hami-scheduler: /nowhere.yaml: No such file or directory\n", id="no file"
        ),
        pytest.param(
            ("serve", "--set", "placement.annotate_at=never"), 2, "placement.annotate_at", id="a wrong setting"
        ),
        pytest.param(
            ("serve", "--set", "placement.node_policy=fdg"), 2, "'fdg'; there are binpack", id="no node policy"
        ),
        pytest.param(
            ("serve", "--set", "placement.card_policy=numa,fdg"), 2, "'fdg'; there are binpack", id="no card policy"
        ),
        pytest.param(
            ("serve", "--set", "extender.http.host=0.0.0.0"), 2, "extender.tls.client_ca_file", id="an open extender"
        ),
        pytest.param(
            ("serve", "--set", "placement.device_config_file=/nowhere"), 2, "/nowhere", id="a file that is not there"
        ),
    ],
)
async def test_wrong_use_is_said_in_one_line(arguments: tuple[str, ...], status: int, problem: str) -> None:
    code, _, err = await call(*arguments)
    assert code == status
    assert problem in err
    assert "Traceback" not in err


async def test_what_is_no_pod_is_not_planned(tmp_path: Path) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text("{kind: Deployment, metadata: {name: d}, spec: {template: {spec: {containers: []}}}}")
    code, out, err = await call("what-if", str(file))
    assert (code, out) == (2, "")
    assert "kind Deployment is no Pod" in err


@pytest.mark.usefixtures("scheduler")
async def test_a_snapshot_is_replayed_with_the_same_answers(nats_url: str, prefix: str, tmp_path: Path) -> None:
    at = ("--server", nats_url, "--prefix", prefix)
    plain, hidden = tmp_path / "plain.json", tmp_path / "hidden.json"
    assert await call("snapshot", "--output", str(plain), *at) == (0, "", "")
    code, out, _ = await call("snapshot", "--anonymise", *at)
    assert code == 0
    hidden.write_text(out, encoding="utf-8")
    assert "held" not in out
    assert "n1" not in out
    assert Cluster.from_snapshot(plain.read_bytes()).node_cards("n1")[0].used_memory_mib == 6000
    for file in (plain, hidden):
        told = await replay(file)
        assert "1 decisions, 0 differ" in told
        assert "as recorded: none of 1 nodes fits, 0 never would: 1 CardInsufficientMemory" in told


@pytest.mark.usefixtures("scheduler")
async def test_decisions_are_looked_at_after_the_fact(nats_url: str, prefix: str, tmp_path: Path) -> None:
    file = tmp_path / "recorded.json"
    at = ("--server", nats_url, "--prefix", prefix)
    assert await call("snapshot", "--recorded", "--output", str(file), *at) == (0, "", "")
    told = await replay(file)
    assert "reserve default/held" in told
    assert "as recorded: node n1" in told
    assert "reserve default/waiting" in told
    assert "2 decisions, 0 differ" in told


async def replay(file: Path) -> str:
    command = [sys.executable, "-c", "from hami_engine.command import main; raise SystemExit(main())"]
    process = await asyncio.create_subprocess_exec(*command, "replay", str(file), stdout=asyncio.subprocess.PIPE)
    told, _ = await process.communicate()
    assert process.returncode == 0
    return told.decode()


async def test_a_snapshot_file_that_cannot_be_written_is_named(
    scheduler: Scheduler, nats_url: str, prefix: str
) -> None:
    code, _, err = await call("snapshot", "--output", "/no/such/place", "--server", nats_url, "--prefix", prefix)
    assert (code, err.strip()) == (1, "hami-scheduler: /no/such/place: No such file or directory")
    scheduler.check()
