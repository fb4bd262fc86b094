"""Reads a trace's files, plain or xz-compressed."""

from __future__ import annotations

import csv
import lzma
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

POD_LIST = "openb_pod_list_"
NODE_LIST = "openb_node_list_"
PUBLISHED = "fgd_paper_allocated"
LARGEST = 2**31 - 1
MOST_CARDS = 4096  # of one node
SUFFIXES = (".csv", ".csv.xz")


class TraceError(Exception):
    """A trace cannot be read; says what and where."""


class TracePod(msgspec.Struct, frozen=True):
    """What one pod asks for. Equal pods are of one shape."""

    cpu_milli: int
    memory_mib: int
    cards: int
    gpu_milli: int  # of each card
    models: tuple[str, ...] = ()  # allowed ones; none given: any

    @property
    def total_gpu_milli(self) -> int:
        """Of all its cards."""
        return self.cards * self.gpu_milli


class TraceNode(msgspec.Struct, frozen=True):
    """One node with all its cards of one model."""

    name: str
    cpu_milli: int
    memory_mib: int
    cards: int
    model: str


class Trace(msgspec.Struct, frozen=True):
    """A cluster and the pods of one list, in the order of the file."""

    name: str
    nodes: tuple[TraceNode, ...]
    pods: tuple[TracePod, ...]

    @property
    def capacity_gpu_milli(self) -> int:
        """All cards of the cluster."""
        return sum(node.cards for node in self.nodes) * 1000


def list_names(directory: Path) -> list[str]:
    """Names of the pod lists of a directory: what `LIST` is in `openb_pod_list_LIST.csv`."""
    if not directory.is_dir():
        raise TraceError(f"{directory} is no directory; give the one with {POD_LIST}*.csv in it")
    names = {
        path.name.removeprefix(POD_LIST).split(".csv")[0]
        for path in directory.glob(f"{POD_LIST}*")
        if path.name.endswith(SUFFIXES)
    }
    return sorted(names)


def find_list(directory: Path, given: str) -> tuple[str, Path]:
    """Name and file of a pod list, which is given by its name or as a file."""
    path = Path(given)
    if given.endswith(SUFFIXES):
        return path.name.removeprefix(POD_LIST).split(".csv")[0], path
    return given, _existing(directory, f"{POD_LIST}{given}")


def read_trace(directory: Path, given: str, nodes: str) -> Trace:
    """The pod list `given` (a name or a file) on the node list `nodes` (likewise)."""
    name, pods_file = find_list(directory, given)
    nodes_file = Path(nodes) if nodes.endswith(SUFFIXES) else _existing(directory, f"{NODE_LIST}{nodes}")
    trace = Trace(
        name=name,
        nodes=tuple(_node(row) for row in _rows(nodes_file, ("sn", "cpu_milli", "memory_mib", "gpu"))),
        pods=tuple(_pod(row) for row in _rows(pods_file, ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli"))),
    )
    names = Counter(node.name for node in trace.nodes)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise TraceError(f"{nodes_file} lists node {twice[0]!r} more than once")
    if trace.capacity_gpu_milli == 0:
        raise TraceError(f"{nodes_file} lists no cards")
    if not any(pod.total_gpu_milli for pod in trace.pods):
        raise TraceError(f"{pods_file}: no pod asks for a card")
    return trace


def read_published(directory: Path, name: str) -> dict[str, dict[int, list[float]]]:
    """Published curves of a list: policy to seed to the allocated percent at 0, 1, 2 … percent of load."""
    file = _find(directory, PUBLISHED)
    if file is None:
        return {}
    curves: dict[str, dict[int, list[float]]] = {}
    for row in _rows(file, ("workload", "sc_policy", "seed")):
        if row.text("workload").removeprefix(POD_LIST) == name:
            policy = row.text("sc_policy").partition("-")[2] or row.text("sc_policy")
            curves.setdefault(policy, {})[row.number("seed")] = row.curve()
    return curves


class _Row(msgspec.Struct, frozen=True):
    fields: dict[str, str]
    place: str

    def text(self, column: str) -> str:
        return (self.fields.get(column) or "").strip()

    def number(self, column: str) -> int:
        text = self.text(column)
        try:
            number = int(float(text)) if text else 0
        except (ValueError, OverflowError):
            raise TraceError(f"{self.place}: {column} is {text!r}; it must be a number") from None
        if number < 0:
            raise TraceError(f"{self.place}: {column} is {number}; it must not be negative")
        if number > LARGEST:
            raise TraceError(f"{self.place}: {column} is {text}; it must not be above {LARGEST}")
        return number

    def curve(self) -> list[float]:
        """Values of the columns 0, 1, 2 …, as far as they go."""
        values: list[float] = []
        while text := self.text(str(len(values))):
            try:
                values.append(float(text))
            except ValueError:
                raise TraceError(f"{self.place}: column {len(values)} is {text!r}; it must be a number") from None
        return values


def _rows(file: Path, needed: tuple[str, ...]) -> Iterator[_Row]:
    try:
        with lzma.open(file, "rt", encoding="utf-8") if file.suffix == ".xz" else file.open(encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            missing = [column for column in needed if column not in (reader.fieldnames or ())]
            if missing:
                raise TraceError(f"{file} has no column {', '.join(missing)}")
            for fields in reader:
                yield _Row(fields, f"{file}, line {reader.line_num}")
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{file} cannot be read: {error}") from error


def _node(row: _Row) -> TraceNode:
    if row.number("gpu") > MOST_CARDS:
        raise TraceError(f"{row.place}: gpu is {row.text('gpu')}; a node has at most {MOST_CARDS} cards")
    return TraceNode(
        name=row.text("sn"),
        cpu_milli=row.number("cpu_milli"),
        memory_mib=row.number("memory_mib"),
        cards=row.number("gpu"),
        model=row.text("model"),
    )


def _pod(row: _Row) -> TracePod:
    cards = row.number("num_gpu")
    gpu_milli = row.number("gpu_milli") if cards else 0
    if gpu_milli > 1000:
        raise TraceError(f"{row.place}: gpu_milli is {gpu_milli}; a card has 1000")
    models = tuple(sorted(word for word in row.text("gpu_spec").split("|") if word))
    return TracePod(
        cpu_milli=row.number("cpu_milli"),
        memory_mib=row.number("memory_mib"),
        cards=cards if gpu_milli else 0,
        gpu_milli=gpu_milli,
        models=models if cards else (),
    )


def _find(directory: Path, stem: str) -> Path | None:
    return next((path for suffix in SUFFIXES if (path := directory / f"{stem}{suffix}").is_file()), None)


def _existing(directory: Path, stem: str) -> Path:
    file = _find(directory, stem)
    if file is None:
        known = ", ".join(list_names(directory)) or "none"
        raise TraceError(f"{directory} has no {stem}.csv or {stem}.csv.xz; pod lists there: {known}")
    return file
