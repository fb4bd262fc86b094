"""Container Device Interface: names of devices to edits of a container, from specification folders.

What the runtime does with `cdi_devices`: read every *.json, *.yaml and *.yml in its folders, the later folder winning;
a device named twice within one folder belongs to nobody. A file that makes no sense names no devices and is reported.
"""

from pathlib import Path
from typing import Any

import msgspec
import yaml
from hami_chassis.log import get_logger

_log = get_logger("kubelet")


class DeviceNode(msgspec.Struct, rename="camel", frozen=True):
    path: str
    host_path: str = ""


class CdiMount(msgspec.Struct, rename="camel", frozen=True):
    host_path: str
    container_path: str
    options: list[str] = []


class ContainerEdits(msgspec.Struct, rename="camel", frozen=True):
    env: list[str] = []
    device_nodes: list[DeviceNode] = []
    mounts: list[CdiMount] = []
    hooks: list[dict[str, Any]] = []


class CdiDevice(msgspec.Struct, rename="camel", frozen=True):
    name: str
    container_edits: ContainerEdits = ContainerEdits()


class CdiSpec(msgspec.Struct, rename="camel", frozen=True):
    cdi_version: str
    kind: str
    devices: list[CdiDevice]
    container_edits: ContainerEdits = ContainerEdits()


class Unresolvable(msgspec.Struct, frozen=True):
    """Names that no specification knows."""

    names: tuple[str, ...]


class CdiRegistry:
    """The folders, read anew at every use; unchanged files are decoded once."""

    def __init__(self, folders: tuple[str, ...]) -> None:
        self._folders = tuple(Path(folder) for folder in folders)
        self._decoded: dict[Path, tuple[tuple[int, int, int], CdiSpec | None]] = {}

    def resolve(self, names: list[str]) -> ContainerEdits | Unresolvable:
        """Edits of all named devices, in order; a specification's own edits come once, before its first device."""
        known = self._devices()
        missing = tuple(name for name in names if name not in known)
        if missing:
            return Unresolvable(missing)
        parts: list[ContainerEdits] = []
        general: list[CdiSpec] = []
        for name in names:
            spec, device = known[name]
            if not any(spec is seen for seen in general):
                general.append(spec)
                parts.append(spec.container_edits)
            parts.append(device.container_edits)
        merged = ContainerEdits(
            env=[item for part in parts for item in part.env],
            device_nodes=[item for part in parts for item in part.device_nodes],
            mounts=[item for part in parts for item in part.mounts],
            hooks=[item for part in parts for item in part.hooks],
        )
        if merged.hooks:
            _log.info("cdi-hooks-not-run", devices=names, hooks=[hook.get("path") for hook in merged.hooks])
        return merged

    def _devices(self) -> dict[str, tuple[CdiSpec, CdiDevice]]:
        known: dict[str, tuple[CdiSpec, CdiDevice]] = {}
        for folder in self._folders:
            in_folder: dict[str, tuple[CdiSpec, CdiDevice]] = {}
            conflicts: set[str] = set()
            for spec in self._specs(folder):
                for device in spec.devices:
                    name = f"{spec.kind}={device.name}"
                    if name in in_folder:
                        conflicts.add(name)
                        _log.warning("cdi-device-conflict", device=name, folder=str(folder))
                    in_folder[name] = (spec, device)
            known.update({name: found for name, found in in_folder.items() if name not in conflicts})
            for name in conflicts:
                known.pop(name, None)
        return known

    def _specs(self, folder: Path) -> list[CdiSpec]:
        try:
            paths = sorted(p for p in folder.iterdir() if p.suffix in (".json", ".yaml", ".yml"))
        except (FileNotFoundError, NotADirectoryError):
            return []
        specs = [self._spec(path) for path in paths]
        return [spec for spec in specs if spec is not None]

    def _spec(self, path: Path) -> CdiSpec | None:
        try:
            stat = path.stat()
            version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            cached = self._decoded.get(path)
            if cached and cached[0] == version:
                return cached[1]
            raw = path.read_bytes()
        except FileNotFoundError:
            return None
        spec: CdiSpec | None = None
        try:
            spec = decode_spec(raw, path.suffix)
        except ValueError as error:
            _log.warning("cdi-spec-unreadable", path=str(path), reason=str(error))
        self._decoded[path] = (version, spec)
        return spec


def decode_spec(raw: bytes, suffix: str) -> CdiSpec:
    """Raises ValueError with the place of the fault."""
    try:
        value = msgspec.json.decode(raw) if suffix == ".json" else yaml.safe_load(raw)
        spec = msgspec.convert(value, CdiSpec)
    except (msgspec.DecodeError, yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    vendor, slash, class_ = spec.kind.partition("/")
    if not (vendor and slash and class_):
        raise ValueError(f"kind {spec.kind!r} is not vendor/class")
    broken = [item for item in _all_env(spec) if "=" not in item]
    if broken:
        raise ValueError(f"environment entry {broken[0]!r} is not NAME=VALUE")
    return spec


def _all_env(spec: CdiSpec) -> list[str]:
    edits = [spec.container_edits, *(device.container_edits for device in spec.devices)]
    return [item for edit in edits for item in edit.env]
