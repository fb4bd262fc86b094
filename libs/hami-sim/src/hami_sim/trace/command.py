"""`hami-sim replay-trace`: reads, replays, reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hami_sim.trace.files import TraceError, list_names, read_published, read_trace
from hami_sim.trace.replay import DEFAULT_POLICIES, POLICY_WORDS, Policy, empty_cluster, parse_policy, replay_seed
from hami_sim.trace.report import ListReport, policy_report, published_report

ALL = "all"


class WrongChoiceError(Exception):
    """An option names nothing that there is; says what there is."""


def chosen_policies(texts: list[str]) -> list[Policy]:
    """`all`, a word, or `NODE/CARD`; each may come several times, and counts once."""
    policies: list[Policy] = []
    for text in texts:
        for word in DEFAULT_POLICIES if text == ALL else (text,):
            policy = parse_policy(word)
            if policy is None:
                words = ", ".join(POLICY_WORDS)
                raise WrongChoiceError(f"--policy {text}: write {ALL}, or {words}, or two of these as NODE/CARD")
            if policy not in policies:
                policies.append(policy)
    return policies


def chosen_seeds(text: str) -> list[int]:
    """`42-51`, `42`, or `1,5,9-12`."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise WrongChoiceError(f"--seeds {text}: write numbers and ranges, as 42-51 or 1,2,7")
        seeds.extend(range(int(first), int(last if dash else first) + 1))
    if not seeds:
        raise WrongChoiceError(f"--seeds {text}: the range is empty")
    return sorted(set(seeds))


def chosen_lists(directory: Path, given: list[str]) -> list[str]:
    """`all` stands for every list of the directory."""
    lists: list[str] = []
    for word in given:
        lists.extend(list_names(directory) if word == ALL else [word])
    if not lists:
        raise TraceError(f"{directory} holds no openb_pod_list_*.csv or .csv.xz")
    return list(dict.fromkeys(lists))


def replay_list(
    directory: Path,
    given: str,
    *,
    nodes: str,
    policies: list[Policy],
    seeds: list[int],
    most_load_percent: int,
    progress: Callable[[str], None],
) -> ListReport:
    """Every policy with every seed on one list."""
    trace = read_trace(directory, given, nodes)
    empty = empty_cluster(trace)
    reports = []
    for policy in policies:
        replayed = []
        for number, seed in enumerate(seeds, 1):
            replayed.append(replay_seed(empty, trace, policy, seed, most_load_percent))
            last = replayed[-1]
            progress(
                f"{trace.name}, {policy.name}, seed {seed} ({number} of {len(seeds)}): "
                f"{last.allocated_percent[-1]:.2f} % allocated in the end, {last.seconds:.1f} s"
            )
        reports.append(policy_report(policy.name, replayed))
    return ListReport(
        list_name=trace.name,
        nodes=len(trace.nodes),
        cards=trace.capacity_gpu_milli // 1000,
        pods_in_list=len(trace.pods),
        policies=reports,
        published=published_report(read_published(directory, trace.name)),
    )
