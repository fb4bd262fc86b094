"""Settings: one frozen struct per service, from defaults, a file, the environment and the command line.

Later sources win: field defaults, what a caller read under another program's names, the YAML or JSON file,
`HAMI_<GROUP>_<FIELD>`, `--set group.field=value`.
Unknown keys of the file and of `--set` are faults; all faults come at once, each with its path and source.
Environment names that no field has are left alone: Kubernetes puts names of Services into every environment.

A struct may check fields against each other in a method `faults()` that yields `(field, message)`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import yaml
from msgspec import inspect as types

from hami_chassis.errors import Permanent

S = TypeVar("S", bound=msgspec.Struct)

Secret = Annotated[str, msgspec.Meta(extra={"secret": True})]
"""A text that is never printed."""

MASK = "********"


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong: where, from which source, and what to change."""

    path: str
    source: str
    message: str

    def __str__(self) -> str:
        return f"{self.path or '(top)'}: {self.message} (from {self.source})"


class SettingsError(Permanent):
    """Everything that is wrong with the settings, at once."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("settings cannot be used:\n" + "\n".join(f"  {fault}" for fault in faults))
        self.faults = tuple(faults)


def load_settings(
    into: type[S],
    *,
    file: Path | None = None,
    others: Iterable[tuple[str, str, str]] = (),
    environment: Mapping[str, str] = os.environ,
    sets: Iterable[str] = (),
    prefix: str = "HAMI",
) -> S:
    """Reads and checks everything. `others`: path, text and source of each. Raises SettingsError with all faults."""
    faults: list[Fault] = []
    values: dict[str, _Value] = {}
    leaves = {leaf.path: leaf for leaf in settable_fields(into)}
    for path, text, source in others:
        values[path] = _Value(_parse_text(text, leaves[path].type), source, from_text=True)
    if file is not None:
        _read_file(file, into, values, faults)
    for leaf in leaves.values():
        name = "_".join([prefix, *leaf.path.split(".")]).upper()
        if name in environment:
            values[leaf.path] = _Value(_parse_text(environment[name], leaf.type), name, from_text=True)
    for assignment in sets:
        path, equals, text = assignment.partition("=")
        path = path.strip().replace("-", "_")
        source = f"--set {assignment}"
        if not equals:
            faults.append(Fault(path, source, "write group.field=value"))
        elif path not in leaves:
            faults.append(Fault(path, source, _unknown(path, leaves)))
        else:
            values[path] = _Value(_parse_text(text, leaves[path].type), source, from_text=True)
    built = _build(into, "", values, faults)
    if built is None or faults:
        raise SettingsError(faults)
    return built


def masked(settings: msgspec.Struct) -> dict[str, Any]:
    """The settings as nested plain values for the log at start; secrets that are set are masked."""
    shown: dict[str, Any] = {}
    for field in _fields(type(settings)):
        value = getattr(settings, field.name)
        if isinstance(value, msgspec.Struct):
            shown[field.name] = masked(value)
        elif _is_secret(field.type):
            shown[field.name] = MASK if value else value
        else:
            shown[field.name] = msgspec.to_builtins(value)
    return shown


class Leaf(msgspec.Struct, frozen=True):
    """One field that can be set: `group.field` and its type."""

    path: str
    type: types.Type


class _Value(msgspec.Struct, frozen=True):
    value: Any
    source: str
    from_text: bool = False


def settable_fields(into: type[msgspec.Struct], prefix: str = "") -> list[Leaf]:
    """Every path that `--set` knows, in order of declaration."""
    leaves: list[Leaf] = []
    for field in _fields(into):
        path = f"{prefix}{field.name}"
        if isinstance(field.type, types.StructType):
            leaves.extend(settable_fields(field.type.cls, f"{path}."))
        else:
            leaves.append(Leaf(path, field.type))
    return leaves


def _fields(into: type[msgspec.Struct]) -> tuple[types.Field, ...]:
    info = types.type_info(into)
    assert isinstance(info, types.StructType)  # noqa: S101  # callers hand in struct types only
    return info.fields


def _is_secret(found: types.Type) -> bool:
    return isinstance(found, types.Metadata) and bool((found.extra or {}).get("secret"))


_TEXT_TYPES = (types.StrType, types.EnumType, types.LiteralType, types.BytesType, types.DateTimeType)
_SCALAR_TYPES = (types.IntType, types.FloatType, types.BoolType, types.NoneType, *_TEXT_TYPES)


def _parse_text(text: str, wanted: types.Type) -> object:
    """Scalars stay text, which the conversion reads; lists and mappings are YAML, lists also `a,b`."""
    while isinstance(wanted, types.Metadata):
        wanted = wanted.type
    members = wanted.types if isinstance(wanted, types.UnionType) else (wanted,)
    if all(isinstance(member, (*_SCALAR_TYPES, types.Metadata)) for member in members):
        return text
    try:
        parsed = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: a time or number that there is not
        return text  # the conversion refuses it with the type it wanted
    if not isinstance(parsed, list | dict) and isinstance(wanted, types.CollectionType):
        return [part.strip() for part in text.split(",") if part.strip()]
    return parsed


def _read_file(file: Path, into: type[msgspec.Struct], values: dict[str, _Value], faults: list[Fault]) -> None:
    source = str(file)
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        faults.append(Fault("", source, f"cannot be read: {error.strerror}"))
        return
    except RecursionError:
        faults.append(Fault("", source, "is neither YAML nor JSON that can be read: it is nested too deeply"))
        return
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no UTF-8, or a time or number that there is not
        faults.append(Fault("", source, f"is neither YAML nor JSON: {' '.join(str(error).split())}"))
        return
    _flatten({} if document is None else document, into, "", source, values, faults)


def _flatten(  # noqa: PLR0917
    document: object,
    into: type[msgspec.Struct],
    prefix: str,
    source: str,
    values: dict[str, _Value],
    faults: list[Fault],
) -> None:
    if not isinstance(document, dict):
        faults.append(Fault(prefix.rstrip("."), source, f"expected a group of settings, got {document!r}"))
        return
    fields = {field.name: field for field in _fields(into)}
    for key, value in document.items():
        name = str(key).replace("-", "_")
        path = f"{prefix}{name}"
        field = fields.get(name)
        if field is None:
            faults.append(Fault(path, source, _unknown(path, [prefix + known for known in fields])))
        elif isinstance(field.type, types.StructType):
            _flatten({} if value is None else value, field.type.cls, f"{path}.", source, values, faults)
        else:
            values[path] = _Value(value, source)


def _unknown(path: str, known: Iterable[str]) -> str:
    """Tells the settings of the innermost group of the path that there is."""
    group, names = path.rpartition(".")[0], list(known)
    while group and not any(name.startswith(f"{group}.") for name in names):
        group = group.rpartition(".")[0]
    beside = sorted(name for name in names if not group or name.startswith(f"{group}."))
    return f"there is no such setting; {group or 'the top'} has {', '.join(beside)}"


def _build(
    into: type[S],
    prefix: str,
    values: Mapping[str, _Value],
    faults: list[Fault],
    defaults: msgspec.Struct | None = None,
) -> S | None:
    """The struct, or None when something below it is wrong (then it is in `faults`).

    `defaults` is the group's own default, which may differ from the defaults of its type.
    """
    arguments: dict[str, Any] = {}
    before = len(faults)
    hints = get_type_hints(into, include_extras=True)
    for field in _fields(into):
        path = f"{prefix}{field.name}"
        if isinstance(field.type, types.StructType):
            own = field.default if defaults is None else getattr(defaults, field.name)
            group = own if isinstance(own, msgspec.Struct) else None
            arguments[field.name] = _build(field.type.cls, f"{path}.", values, faults, group)
        elif path in values:
            given = values[path]
            arguments[field.name] = _convert(given.value, hints[field.name], path, given, faults)
        elif defaults is not None:
            arguments[field.name] = getattr(defaults, field.name)
        elif field.required:
            faults.append(Fault(path, "defaults", "must be set"))
    if len(faults) > before:
        return None
    try:
        built = into(**arguments)
    except (ValueError, TypeError) as error:
        faults.append(Fault(prefix.rstrip("."), "its values together", str(error)))
        return None
    check: Callable[[], Iterable[tuple[str, str]]] | None = getattr(built, "faults", None)
    if check is not None:
        faults.extend(Fault(f"{prefix}{name}", "its values together", message) for name, message in check())
    return built


def _convert(value: object, hint: Any, path: str, given: _Value, faults: list[Fault]) -> Any:  # noqa: ANN401
    """The value in its type; elements of lists and mappings one by one, so that each fault is told."""
    before = len(faults)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in {list, tuple, set, frozenset} and isinstance(value, list):
        for index, element in enumerate(value):
            _convert(element, arguments[0], f"{path}[{index}]", given, faults)
    elif origin is dict and isinstance(value, dict):
        for key, element in value.items():
            _convert(element, arguments[1], f"{path}.{key}", given, faults)
    if len(faults) > before:
        return None
    try:
        converted = msgspec.convert(value, hint, strict=not given.from_text)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        shown = "" if get_origin(hint) is Annotated else f", got {value!r}"
        faults.append(Fault(path + place.rstrip("`"), given.source, f"{message}{shown}"))
        return None
    if isinstance(converted, float) and not math.isfinite(converted):  # no comparison refuses what is no number
        faults.append(Fault(path, given.source, f"must be a finite number, got {value!r}"))
        return None
    return converted
