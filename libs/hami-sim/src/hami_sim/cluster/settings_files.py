"""Settings files of services: made from the profile, and edited by the operator, whose edits stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from hami_sim.cluster.errors import ClusterError
from hami_sim.cluster.service_spec import merged
from hami_sim.controlplane.layout import write_private

Settings = dict[str, Any]


def put_settings(file: Path, wanted: Settings) -> tuple[str, ...]:
    """Writes the settings that are wanted, with what was edited in the file since the last time.

    Names of the settings that the edits set, such as `placement.node_policy`. What was taken out of the file comes
    back. Raises ClusterError for a file that cannot be understood.
    """
    made = file.with_name(f".{file.name}.made")
    edits = _edits(_read(made), _read(file)) if made.exists() and file.exists() else {}
    for written in (file, _put(file)):
        write_private(written, _text(merged(wanted, edits)))
    write_private(made, _text(wanted))
    return tuple(_names(edits))


def edited_since(file: Path) -> tuple[str, ...]:
    """Names of the settings in the file that are otherwise than they were last put there, or are gone.

    Raises ClusterError for a file that cannot be understood.
    """
    put = _put(file)
    if not put.exists() or not file.exists():
        return ()
    before, now = _read(put), _read(file)
    return tuple(dict.fromkeys((*_names(_edits(before, now)), *_names(_edits(now, before)))))


def _put(file: Path) -> Path:
    """A copy of what was put there last: the service that was started then runs with it."""
    return file.with_name(f".{file.name}.put")


def _edits(before: Settings, now: Settings) -> Settings:
    """What `now` says otherwise than `before`."""
    found: Settings = {}
    for name, value in now.items():
        known = before.get(name)
        if isinstance(value, dict) and isinstance(known, dict):
            if inner := _edits(known, value):
                found[name] = inner
        elif name not in before or value != known:
            found[name] = value
    return found


def _names(settings: Settings, prefix: str = "") -> list[str]:
    return [
        found
        for name, value in settings.items()
        for found in (_names(value, f"{prefix}{name}.") if isinstance(value, dict) and value else [f"{prefix}{name}"])
    ]


def _read(file: Path) -> Settings:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ClusterError(
            f"{file}: {error}; correct it, or remove it to start with the settings of the profile"
        ) from error


def _text(settings: Settings) -> bytes:
    return msgspec.json.format(msgspec.json.encode(settings))
