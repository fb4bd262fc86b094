"""The command line where no cluster runs, and the pieces its commands are made of."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from hami_model import events
from hami_sim.cli import app
from hami_sim.cluster.card_places import card_places, with_places
from hami_sim.cluster.driver_description import card_ids
from hami_sim.cluster.errors import ClusterError
from hami_sim.cluster.follow_events import SeenEvent, as_json, as_text, is_query, is_usage_sample
from hami_sim.cluster.log_files import log_lines
from hami_sim.cluster.profile import node_plans, uniform_profile
from hami_sim.cluster.workload_pod import Slice, workload_pod
from typer.testing import CliRunner

NOW = datetime(2026, 11, 29, 12, 30, 5, tzinfo=UTC)


def hami_sim(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


class TestWithoutACluster:
    @pytest.mark.parametrize(
        "arguments",
        ["status", "logs webhook", "events", "snapshot", "explain pod", "apply -f x", "delete pod/x", "run -- true"],
    )
    def test_commands_say_how_to_make_one(self, tmp_path, arguments):
        command, *rest = arguments.split()
        status, said = hami_sim(command, f"--state={tmp_path / 's'}", *rest)
        assert status == 1
        assert "holds no cluster" in said
        assert "hami-sim up" in said

    def test_down_has_nothing_to_do(self, tmp_path):
        status, said = hami_sim("down", "--state", tmp_path / "s")
        assert (status, "holds no cluster" in said) == (0, True)

    def test_a_profile_excludes_the_options_it_replaces(self, tmp_path):
        status, said = hami_sim("up", "--state", tmp_path / "s", "--profile", tmp_path / "p", "--nodes", 3)
        assert (status, "--profile names nodes" in said) == (2, True)

    def test_a_profile_that_is_not_there_is_named(self, tmp_path):
        status, said = hami_sim("up", "--state", tmp_path / "s", "--profile", tmp_path / "p.yaml")
        assert (status, "p.yaml" in said) == (1, True)
        assert not (tmp_path / "s").exists()

    @pytest.mark.parametrize("arguments", [(), ("pod/a", "-f", "x.yaml")])
    def test_delete_wants_names_or_a_file(self, tmp_path, arguments):
        status, said = hami_sim("delete", f"--state={tmp_path}", *arguments)
        assert (status, "-f FILE" in said) == (2, True)

    @pytest.mark.parametrize(("option", "form"), [("--env", "NAME=VALUE"), ("--annotation", "KEY=VALUE")])
    def test_values_have_names(self, tmp_path, option, form):
        status, said = hami_sim("run", f"--state={tmp_path}", option, "novalue", "--", "true")
        assert (status, form in said) == (2, True)


class TestWorkloadPod:
    @pytest.mark.parametrize(
        ("asked", "limits"),
        [
            pytest.param(Slice(), {}, id="no cards"),
            pytest.param(
                Slice(cards=1, memory_mib=3000, cores_percent=30),
                {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"},
                id="a slice",
            ),
            pytest.param(
                Slice(cards=2, memory_percent=50),
                {"nvidia.com/gpu": "2", "nvidia.com/gpumem-percentage": "50"},
                id="a percentage of two cards",
            ),
            pytest.param(
                Slice(cards=1, cores_percent=0), {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "0"}, id="no cores"
            ),
        ],
    )
    def test_limits(self, asked, limits):
        assert asked.limits() == limits

    def test_pod(self):
        (main,) = workload_pod("p", ["a", "b"], Slice(cards=1), {"K": "v"})["spec"]["containers"]
        assert (main["command"], main["env"]) == (["a", "b"], [{"name": "K", "value": "v"}])

    def test_annotations_are_the_pod_s(self):
        key = "hami.io/gpu-scheduler-policy"
        assert workload_pod("p", ["a"], Slice(), {}, {key: "spread"})["metadata"]["annotations"] == {key: "spread"}
        assert "annotations" not in workload_pod("p", ["a"], Slice(), {})["metadata"]


def seen(event: events.Event) -> SeenEvent:
    return SeenEvent(subject=event.subject(), headers={"ce-id": event.id}, payload=events.encode(event))


class TestEvents:
    POD = events.PodRef(namespace="d", name="p", uid="u")

    def test_a_line_for_a_person(self):
        event = events.PlacementUnschedulable(
            source="s",
            time=NOW,
            pod=self.POD,
            nodes_considered=2,
            nodes_never_fitting=0,
            reasons={"x": 2},
            reason="full",
        )
        line = as_text(seen(event))
        assert line.split() == ["12:30:05", "placement.unschedulable", "pods/d/p", "full"]

    def test_usage_samples_are_told_from_what_happens(self):
        def of(event: events.Event) -> bool:
            return is_usage_sample(SeenEvent(subject="", headers=events.headers(event), payload=b""))

        assert of(events.UsageNodeSampled(source="s", time=NOW, node="n", cards=()))
        assert of(events.UsageSampled(source="s", time=NOW, pod=self.POD, node="n", containers=()))
        whole = {"node": "n", "vendor": "NVIDIA", "resource_version": "1", "cards": ()}
        assert not of(events.InventoryReported(source="s", time=NOW, **whole))
        assert not is_usage_sample(SeenEvent(subject="", headers={}, payload=b""))

    @pytest.mark.parametrize(
        ("subject", "question"),
        [("hami.v1.query.explain", True), ("hami.v1.placement.query.uid.placed", False), ("hami.v1.queryx.a", False)],
    )
    def test_questions_to_the_scheduler_are_told_from_what_happens(self, subject, question):
        assert is_query(SeenEvent(subject=subject, headers={}, payload=b"{}")) is question

    @pytest.mark.parametrize("payload", [b"\xff", b"{}", b""])
    def test_what_is_no_event_is_said(self, payload):
        broken = SeenEvent(subject="hami.v1.x", headers={}, payload=payload)
        assert as_text(broken) == f"hami.v1.x  {len(payload)} bytes that are no event"
        assert json.loads(as_json(broken))["subject"] == "hami.v1.x"

    def test_a_line_for_programs(self):
        event = events.UsageNodeSampled(source="s", time=NOW, node="n", cards=())
        shown = json.loads(as_json(seen(event)))
        assert shown["headers"] == {"ce-id": event.id}
        assert shown["payload"]["node"] == "n"


def test_cards_have_the_names_of_status_and_strangers_keep_their_ids():
    plans = node_plans(uniform_profile(2, 2))
    places = card_places(plans)
    stranger = "GPU-00000000-0000-0000-0000-000000000000"
    text = f"card {card_ids(plans[1])[0]}, {card_ids(plans[0])[1]}; {stranger}"
    assert with_places(text, places) == f"card sim-1/0, sim-0/1; {stranger}"
    table = f"{card_ids(plans[1])[0]}  NEEDS\n{stranger}  NEEDS"
    assert [line.index("NEEDS") for line in with_places(table, places).splitlines()] == [len(stranger) + 2] * 2


class TestLogs:
    async def test_lines_to_the_end(self, tmp_path):
        file = tmp_path / "log"
        file.write_bytes(b"a\nb\nrest")
        assert [line async for line in log_lines(file, following=False)] == [b"a", b"b", b"rest"]

    async def test_followed_lines_come_whole(self, tmp_path):
        file = tmp_path / "log"
        file.write_bytes(b"a\nhal")
        lines = log_lines(file, following=True)
        assert await anext(lines) == b"a"
        waiting = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0)
        with file.open("ab") as log:
            log.write(b"f\n")
        assert await waiting == b"half"
        await lines.aclose()

    async def test_an_absent_file_is_named(self, tmp_path):
        with pytest.raises(ClusterError, match="nothing"):
            _ = [line async for line in log_lines(tmp_path / "nothing", following=False)]


WAITS = """
import asyncio
from hami_sim import cli

@cli.app.command()
def wait() -> None:
    async def work() -> None:
        try:
            print("waits", flush=True)
            await asyncio.Event().wait()
        finally:
            print("took away what it made", flush=True)
    cli._run(work())

cli.app(["wait"])
"""


def test_a_command_that_is_terminated_takes_away_what_it_made() -> None:
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.terminate()
        assert process.stdout.read() == "took away what it made\n"
    assert process.returncode == 143
