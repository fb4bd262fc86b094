"""CDI specifications: ours, written for one container, and NVIDIA's, from which a card's edits are taken.

Format: Container Device Interface. A name `<vendor>/<class>=<device>` stands for edits of a container.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from hami_model import env
from hami_model.additions import CDI_KIND
from hami_model.errors import HamiError

from hami_node_agent.core.grant import Grant

MIN_VERSION: Final = (0, 5, 0)
"""First version whose device names may begin with a digit and whose device nodes may have another path on the host."""
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

    version: tuple[int, int, int]
    kind: str
    devices: dict[str, Edits]
    general: Edits


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """How a container comes to see its cards: by the variable, or by edits; never by both."""

    visible_cards: str
    """Value of NVIDIA_VISIBLE_DEVICES."""
    edits: tuple[Edits, ...] = ()
    version: tuple[int, int, int] = MIN_VERSION


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


def owner_of_file(file: str) -> str | None:
    """UID of the pod whose specification a file is; None for a file that is not ours."""
    if not file.startswith(_FILE_PREFIX) or not file.endswith(".json"):
        return None
    return file.removeprefix(_FILE_PREFIX).partition("_")[0] or None


def own_spec(name: str, grant: Grant, shown: Shown) -> bytes:
    """The specification of one container's device."""
    variables = {**grant.environment, env.VISIBLE_CARDS: shown.visible_cards, env.HANDOFF: env.HANDOFF_DONE}
    mounts = [
        {
            "hostPath": mount.host_path,
            "containerPath": mount.container_path,
            "options": ["ro" if mount.read_only else "rw", "nosuid", "nodev", "rbind"],
        }
        for mount in grant.mounts
    ]
    own: Edits = {"env": [f"{key}={value}" for key, value in variables.items()], "mounts": mounts}
    document = {
        "cdiVersion": ".".join(map(str, max(MIN_VERSION, shown.version))),
        "kind": CDI_KIND,
        "devices": [{"name": name, "containerEdits": merged([*shown.edits, own])}],
    }
    return msgspec.json.encode(document)


def shown_by_runtime(card_ids: Sequence[str]) -> Shown:
    """NVIDIA's runtime handler reads the variable."""
    return Shown(visible_cards=",".join(card_ids))


def shown_by_edits(cards: Mapping[str, int], specs: Iterable[ForeignSpec]) -> Shown:
    """NVIDIA's own edits for the cards (ids to indexes, in order). Raises NotInSpecificationError."""
    candidates = [spec for kind in _NVIDIA_KINDS for spec in specs if spec.kind == kind]
    for spec in candidates:
        found = [
            next((spec.devices[key] for key in (card_id, str(index)) if key in spec.devices), None)
            for card_id, index in cards.items()
        ]
        if all(edits is not None for edits in found):
            edits = (spec.general, *(edits for edits in found if edits is not None))
            return Shown(visible_cards=env.VISIBLE_CARDS_VOID, edits=edits, version=spec.version)
    raise NotInSpecificationError(
        f"no CDI specification of NVIDIA's names {', '.join(cards)}; write it anew with: nvidia-ctk cdi generate"
    )


def shown_as_instances(cards: Mapping[str, int], capabilities: Iterable[int], specs: Iterable[ForeignSpec]) -> Shown:
    """Edits of the instances' cards, with the device nodes that open the instances. Raises NotInSpecificationError."""
    shown = shown_by_edits(cards, specs)
    nodes: Edits = {"deviceNodes": [{"path": f"/dev/nvidia-caps/nvidia-cap{minor}"} for minor in capabilities]}
    return msgspec.structs.replace(shown, edits=(*shown.edits, nodes))


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


def foreign_spec(document: object) -> ForeignSpec | None:
    """A decoded specification; None when it has not the expected shape."""
    try:
        raw = msgspec.convert(document, _RawSpec)
    except msgspec.ValidationError:
        return None
    version = _VERSION.fullmatch(raw.cdi_version)
    if version is None:
        return None
    return ForeignSpec(
        version=(int(version[1]), int(version[2]), int(version[3])),
        kind=raw.kind,
        devices={device.name: device.container_edits for device in raw.devices or []},
        general=raw.container_edits or {},
    )


class _RawDevice(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    container_edits: Edits = {}


class _RawSpec(msgspec.Struct, frozen=True, rename="camel"):
    cdi_version: str
    kind: str
    devices: list[_RawDevice] | None = None
    container_edits: Edits | None = None
