"""A pod's volumes as host paths: emptyDir, hostPath, configMap, secret; the service account's token is left out."""

import base64
from pathlib import Path

from hami_sim.kubelet.environment import ReferenceFault, Sources
from hami_sim.kubelet.launch import Bind
from hami_sim.kubelet.objects import Container, KeyToPath, Pod, Volume


def prepare_volumes(pod: Pod, pod_dir: Path, sources: Sources) -> dict[str, Path]:
    """Make each volume once and return where it lies. Raises ReferenceFault for kinds the stand-in does not know."""
    return {
        volume.name: path
        for volume in pod.spec.volumes
        if (path := _prepare(volume, pod_dir / "volumes" / volume.name, sources)) is not None
    }


def volume_binds(container: Container, volumes: dict[str, Path]) -> list[Bind]:
    """Where the container sees them."""
    binds = []
    for mount in container.volume_mounts:
        if mount.name not in volumes:
            continue
        if mount.sub_path_expr:
            raise ReferenceFault(f"volume {mount.name}: the kubelet stand-in does not know subPathExpr")
        source = volumes[mount.name]
        if mount.sub_path:
            source = _inside(source, mount.sub_path)
            if not source.exists():
                source.mkdir(parents=True)
        binds.append(Bind(str(source), mount.mount_path, mount.read_only))
    return binds


def _prepare(volume: Volume, own: Path, sources: Sources) -> Path | None:
    if volume.projected is not None:
        return None  # The API server adds one to every pod; simulated workloads do not call the API.
    if volume.empty_dir is not None:
        own.mkdir(parents=True, exist_ok=True)
        own.chmod(0o777)
        return own
    if volume.host_path is not None:
        return _host_path(Path(volume.host_path.path), volume.host_path.type)
    if volume.config_map is not None:
        config_map = sources.config_maps.get(volume.config_map.name)
        if config_map is None and not volume.config_map.optional:
            raise ReferenceFault(f'configmap "{volume.config_map.name}" not found')
        data = {key: text.encode() for key, text in config_map.data.items()} if config_map else {}
        if config_map:
            data |= {key: base64.b64decode(text) for key, text in config_map.binary_data.items()}
        return _write(own, data, volume.config_map.items)
    if volume.secret is not None:
        secret = sources.secrets.get(volume.secret.secret_name)
        if secret is None and not volume.secret.optional:
            raise ReferenceFault(f'secret "{volume.secret.secret_name}" not found')
        data = {key: base64.b64decode(text) for key, text in secret.data.items()} if secret else {}
        return _write(own, data, volume.secret.items)
    raise ReferenceFault(
        f"volume {volume.name}: the kubelet stand-in knows emptyDir, hostPath, configMap and secret only"
    )


def _host_path(path: Path, kind: str) -> Path:
    if kind == "DirectoryOrCreate" or (kind == "" and not path.exists()):
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch()
    if not path.exists():
        raise ReferenceFault(f"hostPath {path} of type {kind} does not exist")
    return path


def _write(folder: Path, data: dict[str, bytes], items: list[KeyToPath]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    chosen = {item.key: item.path for item in items} if items else {key: key for key in data}
    for key, path in chosen.items():
        if key not in data:
            raise ReferenceFault(f"volume {folder.name}: no key {key}")
        target = _inside(folder, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data[key])
    return folder


def _inside(folder: Path, relative: str) -> Path:
    target = folder / relative
    if ".." in Path(relative).parts or Path(relative).is_absolute():
        raise ReferenceFault(f"path {relative} leaves its volume")
    return target
