"""What a state directory remembers of its cluster, and who may start one there."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from hami_sim.binaries import Binaries
from hami_sim.controlplane.layout import StateLayout, write_private
from hami_sim.controlplane.settings import ControlPlaneSettings, Ports
from hami_sim.loopback_ports import are_free, choose_free_ports


class ControlPlaneError(Exception):
    """The control plane of a state directory is not as expected; the message says what to do."""


class ClusterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is needed to find a cluster again and to restart its programs."""

    ports: Ports
    settings: ControlPlaneSettings
    binaries: Binaries


def choose_ports(layout: StateLayout) -> Ports:
    """The ports of an earlier cluster in this directory while they are free, else new ones."""
    record = load_record(layout)
    if record is not None and are_free(list(msgspec.structs.astuple(record.ports))):
        return record.ports
    names = Ports.__struct_fields__
    return Ports(**dict(zip(names, choose_free_ports(len(names)), strict=True)))


def load_record(layout: StateLayout) -> ClusterRecord | None:
    """What the directory remembers, None when it never held a cluster. Raises `ControlPlaneError`."""
    try:
        raw = layout.record_file.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(raw, type=ClusterRecord, dec_hook=_path_from_text)
    except msgspec.DecodeError as error:
        raise ControlPlaneError(
            f"{layout.record_file} is not readable ({error}); remove {layout.root} and start again"
        ) from error


def store_record(layout: StateLayout, record: ClusterRecord) -> None:
    """Replaces what the directory remembers."""
    write_private(layout.record_file, msgspec.json.format(msgspec.json.encode(record, enc_hook=str)))


@contextmanager
def exclusive_start(layout: StateLayout) -> Iterator[None]:
    """Keeps a second start out of the directory while one is under way. Raises `ControlPlaneError`."""
    with (layout.root / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ControlPlaneError(f"another process is starting a cluster in {layout.root}") from error
        yield


def _path_from_text(kind: type, text: object) -> object:
    if kind is not Path or not isinstance(text, str):
        raise TypeError(f"{kind} is not stored here")
    return Path(text)
