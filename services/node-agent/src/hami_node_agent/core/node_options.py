"""What holds for this node: the cluster's device configuration, and over it HAMi's per-node file.

The per-node file is `{"nodeconfig": [{"name": ..., ...}]}`; entries of this node's exact name apply in order. Read
tolerantly: an unknown key or a value of the wrong type is a warning and costs only itself. A number that is 0 and a
text that is empty say nothing; `false` says false.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from hami_model import go_json
from hami_model.device_config import MigAllowance, VendorSettings
from hami_model.errors import MalformedError

HAMI_CORE: Final = "hami-core"
MIG: Final = "mig"

SPLIT_COUNT_MAX: Final = 1000
"""Of one card: with sixteen of them a quarter of what kubelet takes."""
_INT32_MAX: Final = 2**31 - 1


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How cards of this node are offered and handed over."""

    operating_mode: str = HAMI_CORE
    """Published with every card."""
    split_count: int = 10
    """Slots of one card."""
    memory_scaling: float = 1.0
    core_scaling: float = 1.0
    preconfigured_memory_mib: int = 0
    """Memory of a card whose driver cannot tell it; 0: such a card is not offered."""
    library_log_level: str = ""
    numa_topology: bool = False
    """Tell kubelet the NUMA node of each card; only where kubelet's choice of a device means anything."""
    disable_core_limit: bool = False
    hidden_uuids: frozenset[str] = frozenset()
    hidden_indexes: frozenset[int] = frozenset()
    honour_kubelet_choice: bool = False
    """Asked for in HAMi's file; the annotated cards are used all the same, and kubelet is told to choose them."""
    mig_allowances: tuple[MigAllowance, ...] = ()
    """Profiles of MIG instances by the cards' models; for operating mode `mig`."""
    warnings: tuple[str, ...] = ()


def taken_over(started: NodeOptions, found: NodeOptions) -> tuple[NodeOptions, tuple[str, ...]]:
    """What holds once the per-node file says `found`, and which of its keys need a restart to hold."""
    waiting = {
        key: field
        for key, field in (("operatingmode", "operating_mode"), ("libcudaloglevel", "library_log_level"))
        if getattr(started, field) != getattr(found, field)
    }
    kept = {field: getattr(started, field) for field in waiting.values()}
    if (started.memory_scaling > 1) != (found.memory_scaling > 1):
        # Containers are told by their environment whether memory is promised beyond the cards'.
        waiting["devicememoryscaling"] = "memory_scaling"
        kept["memory_scaling"] = started.memory_scaling
    return msgspec.structs.replace(found, **kept), tuple(waiting)


class NodeOptionsError(MalformedError):
    """The per-node file cannot be used; lists every fault with its path."""


def node_options(settings: VendorSettings, per_node_text: str | None, node_name: str) -> NodeOptions:
    """The options of a node. `per_node_text` is None where there is no such file. Raises NodeOptionsError."""
    options = NodeOptions(
        split_count=settings.split_count,
        memory_scaling=settings.memory_scaling,
        core_scaling=settings.core_scaling,
        preconfigured_memory_mib=settings.preconfigured_memory_mib,
        library_log_level=settings.library_log_level,
        numa_topology=settings.numa_topology,
        disable_core_limit=settings.disable_core_limit,
        mig_allowances=settings.mig_allowances,
    )
    warnings: list[str] = []
    for place, entry in _entries_of(per_node_text, node_name) if per_node_text is not None else ():
        options = _overridden(options, entry, place, warnings)
    if options.split_count > SPLIT_COUNT_MAX:
        raise NodeOptionsError(
            f"deviceSplitCount {options.split_count}: kubelet has a list with an entry for each slot of each card, and "
            f"takes it only up to 4 MiB; set {SPLIT_COUNT_MAX} at most"
        )
    return msgspec.structs.replace(options, warnings=tuple(warnings))


def _entries_of(text: str, node_name: str) -> list[tuple[str, dict[str, object]]]:
    try:
        document = _members(go_json.parse(text))
        entries = go_json.elements(document.get("nodeconfig"), "nodeconfig")
    except MalformedError as error:
        raise NodeOptionsError(f"per-node configuration: {error}") from error
    found = [(place, _members(entry)) for place, entry in entries]
    return [(place, entry) for place, entry in found if entry.get("name") == node_name]


def _members(value: object) -> dict[str, object]:
    """Members by lower-case name, the last of duplicates."""
    if not isinstance(value, go_json.Object):
        raise NodeOptionsError('per-node configuration: an object is expected: {"nodeconfig": [{"name": ...}]}')
    return {key.lower(): member for key, member in value.pairs}


def _overridden(options: NodeOptions, entry: dict[str, object], place: str, warnings: list[str]) -> NodeOptions:
    changes: dict[str, object] = {}
    for key, raw in entry.items():
        if key == "name" or raw is None:
            continue
        field = _FIELDS.get(key)
        if field is None:
            warnings.append(f"{place}.{key}: {_WITHOUT_EFFECT.get(key, 'unknown key is ignored')}")
            continue
        name, read = field
        try:
            value = read(raw)
        except _Unreadable as problem:
            warnings.append(f"{place}.{key}: {problem}; the value is ignored")
            continue
        if value is not None:
            changes[name] = value
    if "filterdevices" in entry:
        changes |= _filter(entry["filterdevices"], f"{place}.filterdevices", warnings)
    return msgspec.structs.replace(options, **changes)


class _Unreadable(Exception):  # noqa: N818  # the message is the problem
    pass


def _text(raw: object) -> str | None:
    if isinstance(raw, go_json.Number):
        return raw.text
    if not isinstance(raw, str):
        raise _Unreadable("a string is expected")
    return raw or None


def _flag(raw: object) -> bool:
    if not isinstance(raw, bool):
        raise _Unreadable("true or false is expected")
    return raw


def _whole(raw: object, most: int = _INT32_MAX) -> int | None:
    text = raw.text if isinstance(raw, go_json.Number) else ""
    if not text.isdigit() or len(text) > 10 or int(text) > most:
        raise _Unreadable(f"a whole number from 0 to {most} is expected")
    return int(text) or None


def _split_count(raw: object) -> int | None:
    return _whole(raw, SPLIT_COUNT_MAX)


def _factor(raw: object) -> float | None:
    try:
        value = float(raw.text) if isinstance(raw, go_json.Number) else -1.0
    except ValueError:
        value = -1.0
    if not 0 <= value <= _INT32_MAX:
        raise _Unreadable("a factor of at least 0 is expected")
    return value or None


def _nothing(_raw: object) -> None:
    return None


_FIELDS: Final[dict[str, tuple[str, Callable[[object], object]]]] = {
    "operatingmode": ("operating_mode", _text),
    "devicememoryscaling": ("memory_scaling", _factor),
    "devicecorescaling": ("core_scaling", _factor),
    "devicesplitcount": ("split_count", _split_count),
    "preconfigureddevicememory": ("preconfigured_memory_mib", _whole),
    "libcudaloglevel": ("library_log_level", _text),
    "enablenumatopology": ("numa_topology", _flag),
    "enablegetpreferredallocation": ("honour_kubelet_choice", _flag),
    "filterdevices": ("hidden_uuids", _nothing),
}
_WITHOUT_EFFECT: Final = {"migstrategy": "has no effect, as with HAMi"}


def _filter(raw: object, place: str, warnings: list[str]) -> dict[str, object]:
    if raw is None:
        return {}
    try:
        members = _members(raw)
        uuids = [text for _, text in go_json.elements(members.get("uuid"), f"{place}.uuid")]
        indexes = [number for _, number in go_json.elements(members.get("index"), f"{place}.index")]
    except MalformedError as error:
        warnings.append(f"{place}: {error}; no card is hidden")
        return {}
    hidden: set[int] = set()
    for number in indexes:
        try:
            hidden.add(_whole(number) or 0)
        except _Unreadable as problem:
            warnings.append(f"{place}.index: {problem}; the value is ignored")
    return {
        "hidden_uuids": frozenset(text for text in uuids if isinstance(text, str)),
        "hidden_indexes": frozenset(hidden),
    }
