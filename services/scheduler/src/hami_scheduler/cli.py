"""Commands that ask a running scheduler over NATS: `hami-scheduler explain`, `state`, `what-if`, `snapshot`."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import nats
import typer
import yaml
from hami_chassis.bus import BusSettings
from hami_chassis.bus.settings import tls_context
from hami_model import kube
from hami_model.events import subjects
from nats.errors import Error as NatsError

from hami_scheduler.core import explanations, plans, queries, snapshots

REFUSED = 1
WRONG_USE = 2
DEFAULT_NAMESPACE = "default"
_SECONDS = 10

Server = Annotated[
    str, typer.Option("--server", envvar="HAMI_BUS_SERVERS", metavar="URL", help="Address of NATS; several by commas.")
]
Prefix = Annotated[str, typer.Option("--prefix", envvar="HAMI_EVENTS_PREFIX", help="First part of every subject.")]
User = Annotated[str, typer.Option("--user", envvar="HAMI_BUS_USER", help="NATS user.")]
Password = Annotated[str, typer.Option("--password", envvar="HAMI_BUS_PASSWORD", help="Its password.")]
CaFile = Annotated[str, typer.Option("--ca-file", envvar="HAMI_BUS_TLS_CA_FILE", help="Authorities of the server.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]

_DEFAULT_SERVER = "nats://127.0.0.1:4222"


def explain(
    pod: Annotated[str, typer.Argument(metavar="NAMESPACE/POD")],
    *,
    limit: Annotated[int, typer.Option(help="Nodes told card by card; those that miss least come first.")] = 20,
    searched: Annotated[int, typer.Option(help="Nodes on which the smallest change is looked for.")] = 16,
    server: Server = _DEFAULT_SERVER,
    prefix: Prefix = subjects.DEFAULT_PREFIX,
    user: User = "",
    password: Password = "",
    ca_file: CaFile = "",
    as_json: AsJson = False,
) -> None:
    """Say where a pod is, or why it waits: node by node, card by card, and what would help.

    Exit status 1: no such pod, or no scheduler answers.
    """
    namespace, slash, name = pod.partition("/")
    if not (slash and namespace and name):
        _end(WRONG_USE, f"{pod}: write NAMESPACE/POD")
    question = explanations.ExplainQuestion(namespace=namespace, name=name, limit=limit, searched=searched)
    payload = _ask(_connection(server, user, password, ca_file), prefix, "explain", question)
    if as_json:
        print(_indented(payload))
        return
    answer = msgspec.json.decode(payload, type=explanations.ExplainAnswer)
    print(f"{namespace}/{name}: {answer.sentence}")
    _print_slices(answer.slices)
    for node in answer.nodes:
        print(f"\n{node.node}: {f'fits, score {node.score or 0:.2f}' if node.fits else node.reason}")
        for change in node.changes:
            print(f"  {change.sentence}")
        for line in _card_table(node.cards):
            print(f"  {line}")
    if len(answer.nodes) < answer.nodes_total:
        print(f"\n… {answer.nodes_total - len(answer.nodes)} more nodes")


def _card_table(cards: list[explanations.CardExplanation]) -> list[str]:
    """Of each card what the pod needs, what is used and what is free of it."""
    if not cards:
        return []
    told = [
        (
            card.card_id,
            f"{card.needed_memory_mib} MiB, {card.needed_cores_percent} %",
            f"{card.used_memory_mib} MiB, {card.used_cores_percent} %, {card.used_slots} slots",
            f"{card.free_memory_mib} MiB, {card.free_cores_percent} %, {card.free_slots} slots",
            ", ".join(card.codes) or "fits",
        )
        for card in cards
    ]
    rows = [("CARD", "NEEDS", "PROMISED", "FREE", "REASON"), *told]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def state(
    node: Annotated[str, typer.Argument(metavar="[NODE]", help="Only this node, with its pods.")] = "",
    *,
    server: Server = _DEFAULT_SERVER,
    prefix: Prefix = subjects.DEFAULT_PREFIX,
    user: User = "",
    password: Password = "",
    ca_file: CaFile = "",
    as_json: AsJson = False,
) -> None:
    """Show what the scheduler's book holds: cards, what of them is promised, and to whom.

    Exit status 1: it knows no such node, or no scheduler answers.
    """
    connection = _connection(server, user, password, ca_file)
    after, pages = "", []
    while True:
        question = queries.StateQuestion(node=node, after=after, limit=queries.NODES_MAX)
        page = msgspec.json.decode(_ask(connection, prefix, "state", question), type=queries.StateAnswer)
        pages.append(page)
        if not page.more:
            break
        after = page.nodes[-1].node
    whole = msgspec.structs.replace(pages[0], nodes=[each for page in pages for each in page.nodes], more=False)
    if node and not whole.nodes:
        _end(REFUSED, f"no node {node} has told of cards")
    if as_json:
        print(_indented(msgspec.json.encode(whole)))
        return
    print(
        f"{whole.nodes_total} nodes, {whole.bound_pods} bound pods, {whole.reservations} reservations, "
        f"{whole.rejected_pods} rejected pods"
    )
    for each in whole.nodes:
        print(f"{each.node}: {each.pods_total} pods")
        for card in each.cards:
            flags = [word for word in ("cordoned", "blocked") if getattr(card, word)]
            flags += [] if card.healthy else ["unhealthy"]
            print(
                f"  {card.card_id}: memory {card.used_memory_mib}/{card.memory_mib} MiB, "
                f"cores {card.used_cores_percent}/{card.cores_percent} %, slots {card.used_slots}/{card.slots}"
                + (f" [{', '.join(flags)}]" if flags else "")
            )
        for pod in each.pods:
            print(f"  {pod.namespace}/{pod.name}: {pod.state}")


def what_if(
    file: Annotated[Path, typer.Argument(help="Pods, YAML or JSON, one document each.")],
    *,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="UID", help="A pod that ends before; may be repeated.")
    ] = None,
    server: Server = _DEFAULT_SERVER,
    prefix: Prefix = subjects.DEFAULT_PREFIX,
    user: User = "",
    password: Password = "",
    ca_file: CaFile = "",
    as_json: AsJson = False,
) -> None:
    """Say where these pods would go now, one after another. Nothing is changed. Exit status 1: one fits nowhere.

    A pod that names no namespace is tried in `default`.
    """
    question = plans.WhatIfQuestion(pods=_pods(file), remove=tuple(remove or ()))
    payload = _ask(_connection(server, user, password, ca_file), prefix, "what-if", question)
    answer = msgspec.json.decode(payload, type=plans.WhatIfAnswer)
    for uid in question.remove:
        if uid not in answer.removed:
            typer.echo(f"hami-scheduler: --remove {uid}: no pod of this UID holds cards", err=True)
    if as_json:
        print(_indented(payload))
    for pod in answer.pods if not as_json else ():
        counted = ", ".join(f"{count} {reason}" for reason, count in sorted(pod.reasons.items()))
        print(f"{pod.namespace}/{pod.name}: {pod.node or pod.problem or pod.sentence or f'fits nowhere: {counted}'}")
        _print_slices(pod.slices)
    if not all(pod.node for pod in answer.pods):
        raise typer.Exit(REFUSED)


def snapshot(
    *,
    anonymise: Annotated[
        bool, typer.Option("--anonymise", help="Numbers in place of names and UIDs; decisions stay the same.")
    ] = False,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="The last steps and the state before them (placement.record_steps).")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Else standard output.")] = None,
    server: Server = _DEFAULT_SERVER,
    prefix: Prefix = subjects.DEFAULT_PREFIX,
    user: User = "",
    password: Password = "",
    ca_file: CaFile = "",
) -> None:
    """Write the engine's state to a file that `hami-engine replay` reads, with the pods that wait and why."""
    connection = _connection(server, user, password, ca_file)
    question = snapshots.SnapshotQuestion(anonymise=anonymise, recorded=recorded)
    first = msgspec.json.decode(_ask(connection, prefix, "snapshot", question), type=snapshots.SnapshotAnswer)
    parts = [first.data]
    for number in range(1, first.parts):
        question = snapshots.SnapshotQuestion(ticket=first.ticket, part=number)
        payload = _ask(connection, prefix, "snapshot", question)
        parts.append(msgspec.json.decode(payload, type=snapshots.SnapshotAnswer).data)
    written = gzip.decompress(b"".join(parts))
    if output is None:
        sys.stdout.buffer.write(written)
        return
    try:
        output.write_bytes(written)
    except OSError as error:
        _end(REFUSED, f"{output}: {error.strerror}")


def _print_slices(slices: list[queries.HeldSlice]) -> None:
    for held in slices:
        where = f", {held.profile} at {held.placement.start}" if held.placement is not None else ""
        print(f"  {held.container}: {held.card_id}, {held.memory_mib} MiB, {held.cores_percent} % of its cores{where}")


def _pods(file: Path) -> list[kube.Pod]:
    try:
        documents = [each for each in yaml.safe_load_all(file.read_text(encoding="utf-8")) if each is not None]
        pods = [_in_a_namespace(pod) for pod in msgspec.convert(documents, list[kube.Pod])]
    except OSError as error:
        _end(WRONG_USE, f"{file}: {error.strerror}")
    except (UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        _end(WRONG_USE, f"{file}: {error}")
    for document in documents:
        if document.get("kind", "Pod") != "Pod":
            _end(WRONG_USE, f"{file}: kind {document['kind']} is no Pod; write its template as pods")
    return pods


def _in_a_namespace(pod: kube.Pod) -> kube.Pod:
    """Quota is a namespace's: a pod that names none is tried where kubectl would put it."""
    metadata = msgspec.structs.replace(pod.metadata, namespace=pod.metadata.namespace or DEFAULT_NAMESPACE)
    return msgspec.structs.replace(pod, metadata=metadata)


def _connection(server: str, user: str, password: str, ca_file: str) -> BusSettings:
    return BusSettings(servers=tuple(server.split(",")), user=user, password=password, tls_ca_file=ca_file)


def _ask(connection: BusSettings, prefix: str, name: str, question: msgspec.Struct) -> bytes:
    try:
        return asyncio.run(_request(connection, subjects.query(name, prefix=prefix), msgspec.json.encode(question)))
    except nats.errors.NoRespondersError:
        _end(REFUSED, "no scheduler answers: none leads, or it does not reach NATS")
    except (NatsError, OSError, TimeoutError) as error:
        _end(REFUSED, f"NATS at {','.join(connection.servers)}: {error or 'no answer in time'}")


async def _request(connection: BusSettings, subject: str, payload: bytes) -> bytes:
    tls = tls_context(connection)
    client = await nats.connect(
        list(connection.servers),
        name="hami-scheduler-cli",
        allow_reconnect=False,
        # Without these an address where nobody listens is tried for two minutes.
        max_reconnect_attempts=1,
        reconnect_time_wait=0.1,
        connect_timeout=_SECONDS,
        error_cb=_ignore,
        user=connection.user or None,
        password=connection.password or None,
        **({"tls": tls} if tls is not None else {}),
    )
    try:
        reply = await client.request(subject, payload, timeout=_SECONDS)
    finally:
        await client.close()
    headers = reply.headers or {}
    if headers.get("Nats-Service-Error-Code"):
        _end(REFUSED, headers.get("Nats-Service-Error", "refused"))
    return reply.data


async def _ignore(_error: Exception) -> None:
    """What goes wrong while connecting is raised by connect itself."""


def _indented(payload: bytes) -> str:
    return json.dumps(json.loads(payload), indent=2)


def _end(status: int, problem: str) -> NoReturn:
    typer.echo(f"hami-scheduler: {problem}", err=True)
    raise typer.Exit(status)
