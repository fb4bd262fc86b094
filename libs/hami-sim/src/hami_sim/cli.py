"""`hami-sim`: a whole cluster on this machine, in one state directory. `hami_sim.cluster` does the work."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import aiohttp
import msgspec
import typer

from hami_sim.binaries import BinariesUnavailableError
from hami_sim.cluster import (
    ClusterError,
    ClusterProfile,
    LocalCluster,
    load_profile,
    start_cluster,
    uniform_profile,
)
from hami_sim.cluster.artefacts import EXAMPLES
from hami_sim.cluster.card_places import card_places, with_places
from hami_sim.cluster.follow_events import EVERYTHING, lines
from hami_sim.cluster.log_files import log_lines, service_log
from hami_sim.cluster.observe import observe
from hami_sim.cluster.run_pod import run_pod
from hami_sim.cluster.samples import apply_samples
from hami_sim.cluster.services import program
from hami_sim.cluster.tables import next_steps, programs_folder, render
from hami_sim.cluster.workload_pod import Slice, workload_pod
from hami_sim.controlplane import ApiError, ControlPlaneError
from hami_sim.nats_server import NatsServerUnavailableError
from hami_sim.processes import ProcessError
from hami_sim.trace import TraceError
from hami_sim.trace.command import WrongChoiceError, chosen_lists, chosen_policies, chosen_seeds, replay_list
from hami_sim.trace.report import as_json as trace_as_json
from hami_sim.trace.report import table

Result = TypeVar("Result")

FAILED = 1
WRONG_USE = 2
INTERRUPTED = 130
TERMINATED = 143
DEFAULT_STATE = Path(".hami-sim")
EXPECTED_ERRORS = (
    ApiError,
    BinariesUnavailableError,
    ClusterError,
    ControlPlaneError,
    NatsServerUnavailableError,
    ProcessError,
    TraceError,
    aiohttp.ClientError,
)


app = typer.Typer(
    help="A GPU-sharing cluster on this machine: real control plane and services, simulated nodes and cards.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

State = Annotated[Path, typer.Option("--state", metavar="DIR", help="Directory of the cluster.")]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace of what names none.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON in place of text.")]


@app.command()
def up(
    *,
    nodes: Annotated[int | None, typer.Option(help="Simulated nodes [default: 2].", min=0)] = None,
    cards: Annotated[int | None, typer.Option(help="Cards of each node [default: 4].", min=0, max=16)] = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML or JSON: groups of nodes and cards, settings of services.")
    ] = None,
    state: State = DEFAULT_STATE,
    controllers: Annotated[
        bool, typer.Option("--controllers/--no-controllers", help="Run kube-controller-manager.")
    ] = True,
    samples: Annotated[bool, typer.Option("--samples", help="Apply the sample pods and wait for them.")] = False,
) -> None:
    """Start the cluster, or what of it does not run, and wait until its cards can be asked for."""

    async def work() -> None:
        chosen = _profile(nodes, cards, profile, controllers=controllers)
        cluster = await start_cluster(state, chosen, progress=_say)
        if samples:
            await apply_samples(cluster, EXAMPLES, progress=_say)
        print(f"\n{render(await observe(cluster))}\n")
        kubectl, programs = str(cluster.control_plane.binaries.kubectl), programs_folder()
        print(next_steps(str(state), str(cluster.kubeconfig), kubectl, cluster.nats_url, programs, samples=samples))

    _run(work())


@app.command()
def down(
    *,
    state: State = DEFAULT_STATE,
    keep: Annotated[bool, typer.Option("--keep", help="Keep data and logs; `up` goes on with them.")] = False,
) -> None:
    """End everything of the cluster and remove what it made."""

    async def work() -> None:
        await LocalCluster.attach(state).stop(keep=keep, progress=_say)
        _say("nothing of the cluster runs any more")

    if not (state / "hami-sim.json").exists():
        _say(f"{state} holds no cluster")
        return
    _run(work())


@app.command()
def status(*, state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """Show services, nodes, cards and pods. Exit status 1: something does not run."""

    async def work() -> bool:
        found = await observe(LocalCluster.attach(state))
        if as_json:
            _write(msgspec.json.format(msgspec.json.encode(found)))
        else:
            print(render(found))
        return found.running

    if not _run(work()):
        raise typer.Exit(FAILED)


@app.command()
def apply(
    *,
    file: Annotated[Path, typer.Option("-f", "--file", help="File or folder with Kubernetes objects; - reads stdin.")],
    state: State = DEFAULT_STATE,
    namespace: Namespace = "default",
) -> None:
    """Apply Kubernetes objects, as kubectl does."""
    _kubectl(state, namespace, "apply", "-f", str(file))


@app.command()
def delete(
    *,
    names: Annotated[list[str] | None, typer.Argument(help="Objects such as pod/NAME.")] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="File or folder with the objects.")] = None,
    state: State = DEFAULT_STATE,
    namespace: Namespace = "default",
) -> None:
    """Delete Kubernetes objects and wait until they are gone."""
    if (file is None) == (not names):
        _wrong_use("name objects, or give -f FILE")
    _kubectl(state, namespace, "delete", *(["-f", str(file)] if file is not None else names or []))


@app.command()
def logs(
    target: Annotated[str, typer.Argument(metavar="SERVICE|pod/NAME")],
    *,
    following: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines.")] = False,
    container: Annotated[str | None, typer.Option("--container", "-c", help="Container of the pod.")] = None,
    state: State = DEFAULT_STATE,
    namespace: Namespace = "default",
) -> None:
    """Show the log of a service, or the output of a pod."""
    if target.startswith("pod/"):
        arguments = ["-f"] * following + (["-c", container] if container else [])
        _kubectl(state, namespace, "logs", target, *arguments)

    async def work() -> None:
        path = service_log(LocalCluster.attach(state), target)
        async for line in log_lines(path, following=following):
            _write(line)

    _run(work())


@app.command()
def events(
    *,
    subject: Annotated[str | None, typer.Option(help="As NATS has them. Default: usage samples only in JSON.")] = None,
    state: State = DEFAULT_STATE,
    in_json: AsJson = False,
) -> None:
    """Follow the events of the cluster from now on."""

    async def work() -> None:
        cluster = LocalCluster.attach(state)
        if subject is None and not in_json:
            _say(f"usage samples are left out; --subject '{EVERYTHING}' shows them, too")
        async for line in lines(cluster.nats_url, subject, card_places(cluster.plans), in_json=in_json):
            _write(line)

    _run(work())


@app.command()
def snapshot(
    *,
    anonymise: Annotated[bool, typer.Option("--anonymise", help="Numbers in place of names and UIDs.")] = False,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Else standard output.")] = None,
    state: State = DEFAULT_STATE,
) -> None:
    """Write the scheduler's state to a file that `hami-engine replay` reads."""
    options = [*(["--anonymise"] if anonymise else []), *([f"--output={output}"] if output is not None else [])]
    _instead(
        lambda: [program("hami-scheduler"), "snapshot", f"--server={LocalCluster.attach(state).nats_url}", *options]
    )


@app.command()
def explain(
    pod: Annotated[str, typer.Argument(metavar="POD", help="Its name, or NAMESPACE/NAME.")],
    *,
    state: State = DEFAULT_STATE,
    namespace: Namespace = "default",
    in_json: AsJson = False,
) -> None:
    """Say where a pod is, or why it waits, card by card, and what would help. Exit status 1: no such pod."""
    named = pod if "/" in pod else f"{namespace}/{pod}"
    words = ["explain", *(["--json"] if in_json else []), named]
    _instead(
        lambda: [program("hami-scheduler"), *words, f"--server={LocalCluster.attach(state).nats_url}"],
        None if in_json else lambda text: with_places(text, card_places(LocalCluster.attach(state).plans)),
    )


@app.command(context_settings={"ignore_unknown_options": True})
def run(
    command: Annotated[list[str], typer.Argument(metavar="-- CMD...", help="Command of the container.")],
    *,
    cards: Annotated[int, typer.Option(help="Cards.", min=0)] = 1,
    mem_mib: Annotated[int | None, typer.Option(help="MiB of each card; without it the whole card.", min=1)] = None,
    mem_percent: Annotated[int | None, typer.Option(help="Percent of each card's memory.", min=1, max=100)] = None,
    cores: Annotated[int | None, typer.Option(help="Percent of each card's compute.", min=0, max=100)] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Variable of the container.")] = None,
    annotation: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Annotation of the pod.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the pod.")] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="Fail when it takes longer.", min=0)] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the pod there when it is over.")] = False,
    state: State = DEFAULT_STATE,
    namespace: Namespace = "default",
) -> None:
    """Run one command in a pod with a slice; its output is shown, its exit code returned."""
    asked = Slice(cards=cards, memory_mib=mem_mib, memory_percent=mem_percent, cores_percent=cores)
    variables = dict(_pair("--env", "NAME", text) for text in env or ())
    annotations = dict(_pair("--annotation", "KEY", text) for text in annotation or ())
    pod = workload_pod(name or f"run-{uuid.uuid4().hex[:8]}", command, asked, variables, annotations)

    async def work() -> int:
        cluster = LocalCluster.attach(state)
        return await run_pod(cluster, pod, namespace, say=_say, keep=keep, timeout_seconds=timeout)

    raise typer.Exit(_run(work()))


@app.command("replay-trace")
def replay_trace(
    *,
    trace: Annotated[
        Path, typer.Option("--trace", metavar="DIR", help="Directory of the openb trace, .csv or .csv.xz.")
    ] = Path(),
    lists: Annotated[
        list[str] | None,
        typer.Option(
            "--list", metavar="LIST", help="Name or file of a pod list, or all; repeatable [default: default]."
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy", help="binpack, spread, fgd, two of them as NODE/CARD, or all; repeatable [default: all]."
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Orders of arrival: a number, a range, or several with commas.")] = "42-51",
    nodes: Annotated[
        str, typer.Option(metavar="LIST", help="Name or file of the node list; all_node has those without cards too.")
    ] = "gpu_node",
    load: Annotated[
        int, typer.Option(help="Pods arrive until their requests are so many percent.", min=1, max=1000)
    ] = 130,
    json_output: AsJson = False,
) -> None:
    """Replay a trace against the placement engine alone, and compare policies by what they allocate.

    Pods arrive in a seeded order and never leave; one that does not fit is dropped. Where the trace has published
    figures for the list, they are shown below.
    """
    try:
        policies, chosen = chosen_policies(policy or ["all"]), chosen_seeds(seeds)
        reports = []
        for name in chosen_lists(trace, lists or ["default"]):
            report = replay_list(
                trace, name, nodes=nodes, policies=policies, seeds=chosen, most_load_percent=load, progress=_say
            )
            reports.append(report)
            if not json_output:
                print(table(report), flush=True)
        if json_output:
            _write(trace_as_json(str(trace), reports))
    except WrongChoiceError as error:
        _wrong_use(str(error))
    except EXPECTED_ERRORS as error:
        _fail(error)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _profile(nodes: int | None, cards: int | None, file: Path | None, *, controllers: bool) -> ClusterProfile:
    if file is None:
        return uniform_profile(2 if nodes is None else nodes, 4 if cards is None else cards, controllers=controllers)
    if nodes is not None or cards is not None:
        _wrong_use("--profile names nodes and cards; leave --nodes and --cards out")
    profile = load_profile(file)
    return profile if controllers else msgspec.structs.replace(profile, controllers=False)


def _kubectl(state: Path, namespace: str, *arguments: str) -> NoReturn:
    """Runs kubectl as the cluster's administrator and ends with its exit status."""

    def command() -> list[str]:
        cluster = LocalCluster.attach(state)
        kubectl = str(cluster.control_plane.binaries.kubectl)
        return [kubectl, f"--kubeconfig={cluster.kubeconfig}", f"--namespace={namespace}", *arguments]

    _instead(command)


def _instead(find_command: Callable[[], list[str]], shown: Callable[[str], str] | None = None) -> NoReturn:
    """Runs a command and ends with its exit status. `shown` makes of its output what is printed."""
    try:
        command = find_command()
    except EXPECTED_ERRORS as error:
        _fail(error)
    try:
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE if shown else None, text=True)
        if shown is not None:
            print(shown(done.stdout), end="")
        raise typer.Exit(done.returncode)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _pair(option: str, word: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        _wrong_use(f"{option} {text}: write {word}=VALUE")
    return name, value


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    """Runs a command's work; an error that can happen to users becomes one message and status 1."""
    try:
        return asyncio.run(_ended_in_order(work))
    except EXPECTED_ERRORS as error:
        _fail(error)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except asyncio.CancelledError:
        raise typer.Exit(TERMINATED) from None


async def _ended_in_order(work: Coroutine[Any, Any, Result]) -> Result:
    """SIGTERM cancels the work as SIGINT does, so that what it made is taken away."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work


def _say(line: str) -> None:
    """Progress goes to standard error, so that output can be piped."""
    print(f"hami-sim: {line}", file=sys.stderr, flush=True)


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def _fail(error: Exception) -> NoReturn:
    _say(str(error) or type(error).__name__)
    raise typer.Exit(FAILED) from error


def _wrong_use(problem: str) -> NoReturn:
    _say(problem)
    raise typer.Exit(WRONG_USE)


if __name__ == "__main__":
    app()
