"""`hami-sim replay-trace` on a small trace of our own."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from pathlib import Path

import pytest
from hami_sim.cli import app
from hami_sim.trace import TraceError, list_names, parse_policy, read_trace, replay_seed
from hami_sim.trace.arrivals import arrivals
from hami_sim.trace.command import WrongChoiceError, chosen_policies, chosen_seeds
from hami_sim.trace.files import read_published
from hami_sim.trace.replay import empty_cluster, percent_of
from typer.testing import CliRunner

TRACE = Path(__file__).parents[3] / "tests/data/trace"


def replay_command(*arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output, standard error."""
    result = CliRunner().invoke(app, ["replay-trace", "--trace", str(TRACE), *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_lists_are_read_plain_and_compressed_with_or_without_late_columns() -> None:
    assert list_names(TRACE) == ["default", "short"]
    trace = read_trace(TRACE, "default", "gpu_node")
    assert (len(trace.nodes), trace.capacity_gpu_milli, len(trace.pods)) == (7, 22_000, 36)
    assert {pod.models for pod in trace.pods} == {(), ("SMALL",), ("BIG",), ("BIG", "SMALL")}
    short = read_trace(TRACE, str(TRACE / "openb_pod_list_short.csv"), "all_node")
    assert (short.name, len(short.nodes)) == ("short", 8)
    assert {pod.models for pod in short.pods} == {()}
    assert [pod.gpu_milli for pod in short.pods] == [pod.gpu_milli for pod in trace.pods]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("openb_pod_list_bad.csv", "name,cpu_milli\n", "has no column memory_mib, num_gpu, gpu_milli"),
        ("openb_pod_list_bad.csv", "cpu_milli,memory_mib,num_gpu,gpu_milli\nx,1,1,1\n", "line 2: cpu_milli is 'x'"),
        ("openb_pod_list_bad.csv", "cpu_milli,memory_mib,num_gpu,gpu_milli\n1,1,1,1001\n", "gpu_milli is 1001"),
        ("openb_pod_list_bad.csv", "cpu_milli,memory_mib,num_gpu,gpu_milli\n1,1,-1,10\n", "num_gpu is -1"),
        ("openb_pod_list_bad.csv", "cpu_milli,memory_mib,num_gpu,gpu_milli\ninf,1,1,10\n", "cpu_milli is 'inf'"),
        ("openb_pod_list_bad.csv", "cpu_milli,memory_mib,num_gpu,gpu_milli\n1,1,1e12,10\n", "num_gpu is 1e12"),
        ("openb_pod_list_bad.csv", "cpu_milli,memory_mib,num_gpu,gpu_milli\n1,1,0,0\n", "no pod asks for a card"),
        ("openb_pod_list_bad.csv.xz", "not compressed", "cannot be read"),
        ("openb_pod_list_other.csv", "", "has no openb_pod_list_bad.csv or"),
    ],
)
def test_what_is_wrong_with_a_trace_is_said(tmp_path: Path, name: str, text: str, problem: str) -> None:
    (tmp_path / name).write_text(text)
    nodes = str(TRACE / "openb_node_list_gpu_node.csv")
    with pytest.raises(TraceError, match=problem):
        read_trace(tmp_path, "bad", nodes)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("a,1,1,2\na,1,1,2\n", "lists node 'a' more than once"),
        ("a,1,1,70000\n", "gpu is 70000"),
        ("a,1,99999999999999999999,2\n", "memory_mib is 99999999999999999999"),
    ],
)
def test_a_bad_node_list_is_told_with_its_place(tmp_path: Path, rows: str, problem: str) -> None:
    (tmp_path / "openb_node_list_bad.csv").write_text(f"sn,cpu_milli,memory_mib,gpu\n{rows}")
    (tmp_path / "openb_pod_list_some.csv").write_text("cpu_milli,memory_mib,num_gpu,gpu_milli\n1,1,1,500\n")
    with pytest.raises(TraceError, match=problem):
        read_trace(tmp_path, "some", "bad")


def test_all_pods_of_the_list_arrive_before_any_is_drawn_again() -> None:
    trace = read_trace(TRACE, "default", "gpu_node")
    order = arrivals(trace, 42, 130)
    assert Counter(order[: len(trace.pods)]) == Counter(trace.pods)
    assert order == arrivals(trace, 42, 130)
    assert order[: len(trace.pods)] != arrivals(trace, 43, 130)[: len(trace.pods)]
    asked = [pod.total_gpu_milli for pod in order]
    assert sum(asked) >= trace.capacity_gpu_milli * 1.3 > sum(asked[:-1])
    half = arrivals(trace, 42, 50)
    assert half == order[: len(half)]
    assert len(half) < len(trace.pods)


@pytest.mark.parametrize("policy", ["binpack", "spread", "binpack/spread", "fgd"])
def test_nothing_is_given_twice_and_the_curve_never_falls(policy: str) -> None:
    trace = read_trace(TRACE, "default", "gpu_node")
    parsed = parse_policy(policy)
    assert parsed is not None
    assert parsed.name == policy
    replayed = replay_seed(empty_cluster(trace), trace, parsed, 42, 130)
    curve = replayed.allocated_percent
    assert len(curve) == 131
    assert curve == sorted(curve)
    assert curve[0] == 0
    assert all(allocated <= min(100, load + 100 / 11) for load, allocated in enumerate(curve))
    assert replayed.placed_pods + replayed.dropped_pods == len(arrivals(trace, 42, 130))
    again = replay_seed(empty_cluster(trace), trace, parsed, 42, 130)
    assert again.allocated_percent == curve


def test_fgd_allocates_at_least_what_the_others_do() -> None:
    code, stdout, _ = replay_command("--policy", "all", "--seeds", "1-8", "--json")
    assert code == 0
    (listed,) = json.loads(stdout)["lists"]
    ends = {policy: means["130"] for policy, means in listed["means"].items()}
    assert ends["fgd"] == max(ends.values())


def test_the_json_has_every_curve_and_the_published_ones() -> None:
    code, stdout, stderr = replay_command("--list", "all", "--policy", "fgd", "--seeds", "42,43", "--json")
    assert code == 0
    document = json.loads(stdout)
    default, short = document["lists"]
    assert (default["list_name"], short["list_name"]) == ("default", "short")
    (ours,) = default["policies"]
    assert [seed["seed"] for seed in ours["seeds"]] == [42, 43]
    curves = [seed["allocated_percent"] for seed in ours["seeds"]]
    assert ours["mean_allocated_percent"][100] == pytest.approx((curves[0][100] + curves[1][100]) / 2)
    (theirs,) = default["published"]
    assert (theirs["policy"], theirs["seeds"], theirs["mean_allocated_percent"][100]) == ("FGD", [42, 43], 80.5)
    assert short["published"] == []
    assert stderr.count("seed 43 (2 of 2)") == 2


def test_the_table_sets_published_figures_beside_ours() -> None:
    code, stdout, _ = replay_command("--policy", "binpack/spread", "--seeds", "42")
    assert code == 0
    lines = [line.split() for line in stdout.splitlines()]
    assert lines[0] == ["default:", "36", "pods", "on", "7", "nodes", "with", "22", "cards"]
    assert lines[2][:2] == ["binpack/spread", "1"]
    assert lines[3][:3] == ["published:", "FGD", "2"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--policy", "best"], 2, "--policy best: write all, or binpack, spread, fgd"),
        (["--seeds", "42-x"], 2, "--seeds 42-x"),
        (["--seeds", "5-4"], 2, "the range is empty"),
        (["--list", "absent"], 1, "pod lists there: default, short"),
        (["--nodes", "absent"], 1, "has no openb_node_list_absent.csv"),
        (["--load", "0"], 2, ""),
    ],
)
def test_wrong_use_and_missing_data_differ(arguments: list[str], code: int, message: str) -> None:
    status, stdout, stderr = replay_command(*arguments)
    assert status == code
    assert message in stderr
    assert stdout == ""


def test_choices_are_read() -> None:
    assert chosen_seeds("42-44,7,43") == [7, 42, 43, 44]
    assert [policy.name for policy in chosen_policies(["all", "fgd/binpack", "fgd"])] == [
        "binpack",
        "spread",
        "binpack/spread",
        "fgd",
        "fgd/binpack",
    ]
    with pytest.raises(WrongChoiceError):
        chosen_policies(["fgd/none"])
    assert [percent_of(milli) for milli in (0, 1, 10, 995, 1000)] == [0, 1, 1, 100, 100]


def test_a_trace_without_published_figures_has_none(tmp_path: Path) -> None:
    assert read_published(tmp_path, "default") == {}
    with lzma.open(tmp_path / "fgd_paper_allocated.csv.xz", "wt") as stream:
        stream.write("workload,sc_policy,seed,0,1\nopenb_pod_list_a,02-X,1,0.5,1.5\n")
    assert read_published(tmp_path, "a") == {"X": {1: [0.5, 1.5]}}
    assert read_published(tmp_path, "b") == {}
