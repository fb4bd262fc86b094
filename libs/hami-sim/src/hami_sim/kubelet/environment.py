"""A container's environment from its spec: kubelet's order, references and $(NAME) expansion. Pure."""

import base64
import binascii
import re
from collections.abc import Mapping

import msgspec

from hami_sim.kubelet.objects import ConfigMap, Container, EnvVar, KeySelector, Pod, Secret, SourceRef

_REFERENCE = re.compile(r"\$(\$|\(([^)]*)\))")


class Sources(msgspec.Struct, frozen=True):
    """ConfigMaps and Secrets of the pod's namespace by name; absent ones are not in the maps."""

    config_maps: dict[str, ConfigMap] = {}
    secrets: dict[str, Secret] = {}


class ReferenceFault(ValueError):  # noqa: N818 (a fault of the pod spec)
    """The environment cannot be built; kubelet calls this CreateContainerConfigError."""


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace $(NAME) by its value; `$$` stands for `$`, an unknown name stays as it is."""

    def replace(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return values.get(match[2], match[0])

    return _REFERENCE.sub(replace, text)


def spec_environment(pod: Pod, container: Container, sources: Sources, node_address: str) -> dict[str, str]:
    """What the pod spec says. Raises ReferenceFault for a reference that cannot be followed."""
    values: dict[str, str] = {}
    for source in container.env_from:
        for name, value in _all_of(source.config_map_ref, source.secret_ref, sources).items():
            values[source.prefix + name] = value
    for variable in container.env:
        found = _value(pod, variable, values, sources, node_address)
        if found is not None:
            values[variable.name] = found
    return values


def _all_of(config_map_ref: SourceRef | None, secret_ref: SourceRef | None, sources: Sources) -> dict[str, str]:
    if config_map_ref:
        config_map = sources.config_maps.get(config_map_ref.name)
        if config_map is None and not config_map_ref.optional:
            raise ReferenceFault(f'configmap "{config_map_ref.name}" not found')
        return config_map.data if config_map else {}
    if secret_ref:
        secret = sources.secrets.get(secret_ref.name)
        if secret is None and not secret_ref.optional:
            raise ReferenceFault(f'secret "{secret_ref.name}" not found')
        return {key: secret_text(value) for key, value in secret.data.items()} if secret else {}
    return {}


def _value(pod: Pod, variable: EnvVar, values: Mapping[str, str], sources: Sources, node_address: str) -> str | None:
    source = variable.value_from
    if source is None:
        return expand(variable.value, values)
    if source.field_ref:
        return field_value(pod, source.field_ref.field_path, node_address)
    if source.config_map_key_ref:
        config_map = sources.config_maps.get(source.config_map_key_ref.name)
        return _key("configmap", source.config_map_key_ref, config_map.data if config_map else None)
    if source.secret_key_ref:
        secret = sources.secrets.get(source.secret_key_ref.name)
        found = _key("secret", source.secret_key_ref, secret.data if secret else None)
        return None if found is None else secret_text(found)
    raise ReferenceFault(
        f"environment variable {variable.name}: "
        "the kubelet stand-in knows fieldRef, configMapKeyRef and secretKeyRef only"
    )


def _key(kind: str, selector: KeySelector, data: Mapping[str, str] | None) -> str | None:
    if data is not None and selector.key in data:
        return data[selector.key]
    if selector.optional:
        return None
    if data is None:
        raise ReferenceFault(f'{kind} "{selector.name}" not found')
    raise ReferenceFault(f"couldn't find key {selector.key} in {kind} {selector.name}")


def secret_text(value: str) -> str:
    """The text of one value of a Secret."""
    try:
        return base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ReferenceFault(f"secret value is no text: {error}") from error


_KEYED = re.compile(r"metadata\.(labels|annotations)\['(.*)'\]")


def field_value(pod: Pod, path: str, node_address: str) -> str:
    """Downward API: a field of the pod. Raises ReferenceFault for fields the stand-in does not know."""
    keyed = _KEYED.fullmatch(path)
    if keyed:
        table = pod.metadata.labels if keyed[1] == "labels" else pod.metadata.annotations
        return table.get(keyed[2], "")
    fields = {
        "metadata.name": pod.metadata.name,
        "metadata.namespace": pod.metadata.namespace,
        "metadata.uid": pod.metadata.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.hostIP": node_address,
        "status.podIP": node_address,
        "status.hostIPs": node_address,
        "status.podIPs": node_address,
    }
    if path not in fields:
        raise ReferenceFault(f"the kubelet stand-in cannot give field {path} to a container")
    return fields[path]


def referenced_names(pod: Pod) -> tuple[frozenset[str], frozenset[str]]:
    """Names of the ConfigMaps and of the Secrets that environments and volumes of the pod mention."""
    containers = pod.in_start_order()
    whole = [source for container in containers for source in container.env_from]
    keyed = [v.value_from for container in containers for v in container.env if v.value_from]
    config_maps = [
        *(source.config_map_ref.name for source in whole if source.config_map_ref),
        *(source.config_map_key_ref.name for source in keyed if source.config_map_key_ref),
        *(volume.config_map.name for volume in pod.spec.volumes if volume.config_map),
    ]
    secrets = [
        *(source.secret_ref.name for source in whole if source.secret_ref),
        *(source.secret_key_ref.name for source in keyed if source.secret_key_ref),
        *(volume.secret.secret_name for volume in pod.spec.volumes if volume.secret),
    ]
    return frozenset(config_maps), frozenset(secrets)
