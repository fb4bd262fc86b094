"""CDI specifications: ours, written for one container, and NVIDIA's, from which a card's edits are taken.

Format: Container Device Interface. A name `<vendor>/<class>=<device>` stands for edits of a container.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from hami_model import env
from hami_model.additions import CDI_KIND
from hami_model.errors import HamiError

from hami_node_agent.core import cdi_document
from hami_node_agent.core.device_lists import DeviceRules, VisibleDevice, capability_node, runtime_list
from hami_node_agent.core.grant import Grant, Mount

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_UID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}", re.ASCII)
_VERSION: Final = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})", re.ASCII)
_NVIDIA_KINDS: Final = ("nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gpu")
_FILE_PREFIX: Final = "hami.io-slice_"

Edits = dict[str, Any]
"""`containerEdits` as written: members we do not know are passed on."""


class NotInSpecificationError(HamiError):
    """NVIDIA's specifications do not name a card."""


class ForeignSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A specification that somebody else wrote, as far as we use it."""

    kind: str
    devices: dict[str, Edits]
    general: Edits
    file: str = ""
    rank: int = 0
    """Of its folder: what a later folder says of a device counts."""
    problems: tuple[str, ...] = ()
    """What of it is left out, and why."""


class OwnSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The specification that one container of a pod is started with."""

    pod_uid: str
    name: str
    """Short name of its one device."""
    content: bytes


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """How a container comes to see its cards: NVIDIA's runtime is told, or edits do it; never both."""

    environment: dict[str, str]
    mounts: tuple[Mount, ...] = ()
    edits: tuple[Edits, ...] = ()


def device_name(name: str) -> str:
    """The fully qualified name of one of our devices."""
    return f"{CDI_KIND}={name}"


def own_name(qualified: str) -> str | None:
    """The short name of one of our devices; None for anyone else's, and for one that we would not have made."""
    prefix = f"{CDI_KIND}="
    name = qualified.removeprefix(prefix)
    return name if qualified.startswith(prefix) and _NAME.fullmatch(name) else None


def file_name(pod_uid: str, name: str) -> str | None:
    """Name of the file with a device of a pod; None for texts that must not become part of a path."""
    return f"{_FILE_PREFIX}{pod_uid}_{name}.json" if _UID.fullmatch(pod_uid) and _NAME.fullmatch(name) else None


def is_pod_uid(text: str) -> bool:
    """Whether it may become part of a path. A static pod's UID is a hash."""
    return _UID.fullmatch(text) is not None


def owner_of_file(file: str) -> str | None:
    """UID of the pod whose specification a file is; None for a file that is not ours."""
    if not file.startswith(_FILE_PREFIX) or not file.endswith(".json"):
        return None
    return file.removeprefix(_FILE_PREFIX).partition("_")[0] or None


def own_spec(name: str, grant: Grant, shown: Shown) -> bytes:
    """The specification of one container's device. Raises InvalidSpecificationError."""
    variables = {**grant.environment, **shown.environment, env.HANDOFF: env.HANDOFF_DONE}
    mounts = [
        {
            "hostPath": mount.host_path,
            "containerPath": mount.container_path,
            "options": ["ro" if mount.read_only else "rw", "nosuid", "nodev", "rbind"],
        }
        for mount in (*shown.mounts, *grant.mounts)
    ]
    own: Edits = {"env": [f"{key}={value}" for key, value in variables.items()], "mounts": mounts}
    return cdi_document.encoded(CDI_KIND, {name: merged([*shown.edits, own])})


def shown_by_runtime(devices: Sequence[VisibleDevice], rules: DeviceRules) -> Shown:
    """NVIDIA's runtime handler reads a variable, or mounts."""
    found = runtime_list(devices, rules)
    nodes = [{"path": node.container_path, "hostPath": node.host_path} for node in found.nodes]
    return Shown(environment=found.environment, mounts=found.mounts, edits=({"deviceNodes": nodes},) if nodes else ())


def shown_by_edits(
    devices: Sequence[VisibleDevice], specs: Iterable[ForeignSpec], beside: Iterable[Edits] = ()
) -> Shown:
    """NVIDIA's own edits for the cards, in order, and others `beside` them. Raises NotInSpecificationError."""
    candidates = list(specs)
    reasons: list[str] = []
    for kind in _NVIDIA_KINDS:
        try:
            found = [_naming([spec for spec in candidates if spec.kind == kind], device) for device in devices]
        except NotInSpecificationError as error:
            reasons.append(str(error))
            continue
        general = {id(spec): spec.general for spec, _ in found}
        edits = (*general.values(), *(edits for _, edits in found), *beside)
        return Shown(environment={env.VISIBLE_CARDS: env.VISIBLE_CARDS_VOID}, edits=edits)
    raise NotInSpecificationError("; ".join(dict.fromkeys(reasons)))


def _naming(specs: Sequence[ForeignSpec], device: VisibleDevice) -> tuple[ForeignSpec, Edits]:
    """What says how a device is shown: of the last folder that names it, and there by one specification only."""
    found = [
        (spec, spec.devices[name]) for spec in specs for name in (device.uuid, device.index) if name in spec.devices
    ]
    last = [(spec, edits) for spec, edits in found if spec.rank == max(spec.rank for spec, _ in found)]
    if not last:
        raise NotInSpecificationError(
            f"no CDI specification of NVIDIA's names {device.uuid}; write it anew with: nvidia-ctk cdi generate"
        )
    if len({id(spec) for spec, _ in last}) > 1 and any(edits != last[0][1] for _, edits in last):
        files = ", ".join(dict.fromkeys(spec.file for spec, _ in last))
        raise NotInSpecificationError(
            f"CDI specifications contradict each other about {device.uuid}: {files}; remove all but one of them"
        )
    return last[0]


def conflicts(specs: Iterable[ForeignSpec]) -> list[str]:
    """Devices that two specifications of one folder name: runtimes take neither."""
    files: dict[tuple[int, str], list[str]] = {}
    for spec in specs:
        for name in spec.devices:
            files.setdefault((spec.rank, f"{spec.kind}={name}"), []).append(spec.file)
    return [
        f"CDI device {name} is named by {' and '.join(named)}: remove all but one of them"
        for (_, name), named in files.items()
        if len(named) > 1
    ]


def shown_as_instances(
    devices: Sequence[VisibleDevice],
    capabilities: Iterable[int],
    specs: Iterable[ForeignSpec],
    beside: Iterable[Edits] = (),
) -> Shown:
    """Edits of the instances' cards, with the device nodes that open the instances. Raises NotInSpecificationError."""
    nodes: Edits = {"deviceNodes": [{"path": capability_node(minor)} for minor in capabilities]}
    return shown_by_edits(devices, specs, [nodes, *beside])


def merged(parts: Iterable[Edits]) -> Edits:
    """Edits one after the other: lists are joined, of equal environment names the last wins at the runtime."""
    result: Edits = {}
    for part in parts:
        for key, value in part.items():
            if isinstance(value, list) and isinstance(result.get(key, []), list):
                result[key] = [*result.get(key, []), *(item for item in value if item not in result.get(key, []))]
            else:
                result[key] = value
    if isinstance(result.get("env"), list):
        result["env"] = _last_of_each(result["env"])
    return result


def _last_of_each(variables: list[Any]) -> list[str]:
    by_name = {text.partition("=")[0]: text for text in variables if isinstance(text, str) and "=" in text}
    return list(by_name.values())


def is_nvidia(spec: ForeignSpec) -> bool:
    return spec.kind in _NVIDIA_KINDS


def foreign_spec(document: object, *, file: str = "", rank: int = 0) -> ForeignSpec | None:
    """A decoded specification; None when it has not the expected shape.

    Members that we do not know are left out, and devices whose edits make no sense: `problems` names them.
    """
    try:
        raw = msgspec.convert(document, _RawSpec)
    except msgspec.ValidationError:
        return None
    if _VERSION.fullmatch(raw.cdi_version) is None:
        return None
    problems: list[str] = []
    devices: dict[str, Edits] = {}
    for device in raw.devices or []:
        edits = _taken(device.container_edits, f"device {device.name}", problems)
        if edits is not None:
            devices[device.name] = edits
    general = _taken(raw.container_edits or {}, "its own edits", problems)
    return ForeignSpec(
        kind=raw.kind,
        # Without what every container needs no device of it can be used.
        devices=devices if general is not None else {},
        general=general or {},
        file=file,
        rank=rank,
        problems=tuple(problems),
    )


def _taken(raw: Edits, what: str, problems: list[str]) -> Edits | None:
    try:
        edits, unknown = cdi_document.known_edits(raw)
    except cdi_document.InvalidSpecificationError as error:
        problems.append(f"{what}: {error}")
        return None
    if unknown:
        problems.append(f"{what}: {', '.join(unknown)} is not known here and left out")
    return edits


class _RawDevice(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    container_edits: Edits = {}


class _RawSpec(msgspec.Struct, frozen=True, rename="camel"):
    cdi_version: str
    kind: str
    devices: list[_RawDevice] | None = None
    container_edits: Edits | None = None
