"""HAMi's own flags and environment names, read as our settings. What has no effect, or cannot have one, is told.

A flag outweighs its environment name, as with HAMi; a setting of ours, also in the file, outweighs both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

Values = Mapping[str, str]
"""Texts by the path of our setting."""


class _Refused(Exception):  # noqa: N818  # the message is the problem
    pass


class HamiName(msgspec.Struct, frozen=True, kw_only=True):
    """One of HAMi's inputs."""

    flags: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    setting: str = ""
    """Ours; empty: none, then `note` says why."""
    read: Callable[[str], Values] | None = None
    """For what is not simply the text of one setting. Raises _Refused."""
    is_switch: bool = False
    """As a flag it may stand without a value, which is true."""
    may_be_empty: bool = False
    """An empty variable says something; else it says nothing."""
    note: str = ""
    """Said to whoever gives it."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was given under HAMi's names."""

    values: tuple[tuple[str, str, str], ...] = ()
    """Path of our setting, text, and where it stood; later ones win."""
    notes: tuple[str, ...] = ()
    faults: tuple[tuple[str, str], ...] = ()
    """Where it stood, and what is wrong."""


def found_in(arguments: Sequence[str], environment: Mapping[str, str]) -> Found:
    """`arguments` are those that we do not know ourselves."""
    values: list[tuple[str, str, str]] = []
    notes: list[str] = []
    faults: list[tuple[str, str]] = []
    given = [*_given_variables(environment), *_given_flags(arguments, faults)]
    for name, text, source in given:
        if name.note:
            notes.append(f"{source}: {name.note}")
        try:
            read = name.read(text) if name.read is not None else {}
            if name.setting:
                read = {**read, name.setting: _switch(text) if name.is_switch else text}
        except _Refused as problem:
            faults.append((source, str(problem)))
            continue
        values += [(path, value, source) for path, value in read.items()]
    return Found(values=tuple(values), notes=tuple(notes), faults=tuple(faults))


def _given_variables(environment: Mapping[str, str]) -> Iterator[tuple[HamiName, str, str]]:
    for name in HAMI_NAMES:
        # Of several names of one thing the first in HAMi's order counts, so it comes last.
        for variable in reversed(name.variables):
            if environment.get(variable) or (name.may_be_empty and variable in environment):
                yield name, environment[variable], variable


def _given_flags(arguments: Sequence[str], faults: list[tuple[str, str]]) -> Iterator[tuple[HamiName, str, str]]:
    by_flag = {flag: name for name in HAMI_NAMES for flag in name.flags}
    lists: dict[str, tuple[HamiName, list[str], str]] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        flag, equals, text = argument.partition("=")
        name = by_flag.get(flag.lstrip("-")) if flag.startswith("-") else None
        if name is None:
            faults.append((argument, "is neither an option of ours nor a flag of HAMi's device plugin"))
            continue
        if not equals and name.is_switch:
            text = "true"
        elif not equals:
            if not rest:
                faults.append((argument, "needs a value"))
                continue
            text = rest.pop(0)
        if name.setting in _LISTS:  # a repeated flag adds
            lists.setdefault(name.setting, (name, [], flag))[1].append(text)
        else:
            yield name, text, flag
    for name, texts, flag in lists.values():
        yield name, ",".join(texts), flag


_LISTS: Final = ("devices.list_strategies", "devices.imex_channels")
_TRUE: Final = ("1", "t", "T", "TRUE", "true", "True")
_FALSE: Final = ("0", "f", "F", "FALSE", "false", "False")


def _switch(text: str) -> str:
    if text in _TRUE:
        return "true"
    if text in _FALSE:
        return "false"
    raise _Refused(f"true or false is expected, not {text!r}")


def _socket(text: str) -> Values:
    folder, slash, file = text.rpartition("/")
    if not slash or file != "kubelet.sock":
        raise _Refused(f"must be the path of kubelet.sock, not {text!r}: without kubelet there is nothing to serve")
    return {"kubelet.plugins_dir": folder or "/"}


def _discovery(text: str) -> Values:
    if text not in ("auto", "nvml"):
        raise _Refused(f"{text!r} is not there: cards are found through NVML (auto or nvml)")
    return {}


def _verbosity(text: str) -> Values:
    if not text.lstrip("-").isdecimal():
        raise _Refused(f"a number is expected, not {text!r}")
    return {"log.level": "debug" if int(text) >= _DEBUG_VERBOSITY else "info"}


def _xids(all_setting: str, numbers_setting: str, all_value: str) -> Callable[[str], Values]:
    def read(text: str) -> Values:
        words = [word.strip() for word in text.lower().split(",") if word.strip()]
        numbers = [word for word in words if word.isdecimal()]
        odd = [word for word in words if not word.isdecimal() and word not in ("all", "xids")]
        if odd:
            raise _Refused(f"numbers, `all` or `xids` are expected, not {', '.join(odd)}")
        found = {numbers_setting: ",".join(numbers)} if numbers else {}
        return {**found, all_setting: all_value} if len(numbers) < len(words) else found

    return read


_DEBUG_VERBOSITY: Final = 5
"""HAMi's chart gives 4, which is no more than we log anyway."""
_IGNORED: Final = "has no effect, as with HAMi: it comes from the device configuration and the per-node file"

HAMI_NAMES: Final[tuple[HamiName, ...]] = (
    HamiName(variables=("NODE_NAME",), setting="node.name"),
    HamiName(variables=("HOOK_PATH",), setting="files.hook_path", may_be_empty=True),
    HamiName(variables=("ENABLE_TOPOLOGY_SCORE",), setting="node.topology_scores", is_switch=True),
    HamiName(flags=("config-file",), variables=("CONFIG_FILE",), setting="node.device_config_file"),
    HamiName(flags=("kubelet-socket",), variables=("KUBELET_SOCKET",), read=_socket),
    HamiName(flags=("mig-strategy",), variables=("MIG_STRATEGY",), setting="devices.mig_strategy"),
    HamiName(flags=("fail-on-init-error",), variables=("FAIL_ON_INIT_ERROR",), setting="nvml.required", is_switch=True),
    HamiName(flags=("nvidia-driver-root",), variables=("NVIDIA_DRIVER_ROOT",), setting="nvml.host_driver_root"),
    HamiName(flags=("dev-root", "nvidia-dev-root"), variables=("NVIDIA_DEV_ROOT",), setting="nvml.host_dev_root"),
    HamiName(
        flags=("driver-root-ctr-path", "container-driver-root"),
        variables=("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
        setting="nvml.driver_root",
    ),
    HamiName(
        flags=("pass-device-specs",), variables=("PASS_DEVICE_SPECS",), setting="devices.pass_nodes", is_switch=True
    ),
    HamiName(flags=("device-list-strategy",), variables=("DEVICE_LIST_STRATEGY",), setting="devices.list_strategies"),
    HamiName(flags=("device-id-strategy",), variables=("DEVICE_ID_STRATEGY",), setting="devices.id_strategy"),
    HamiName(flags=("gdrcopy-enabled",), variables=("GDRCOPY_ENABLED",), setting="devices.gdrcopy", is_switch=True),
    HamiName(flags=("gds-enabled",), variables=("GDS_ENABLED",), setting="devices.gds", is_switch=True),
    HamiName(flags=("mofed-enabled",), variables=("MOFED_ENABLED",), setting="devices.mofed", is_switch=True),
    HamiName(
        flags=("cdi-annotation-prefix",),
        variables=("CDI_ANNOTATION_PREFIX",),
        setting="devices.cdi_annotation_prefix",
    ),
    HamiName(
        flags=("nvidia-cdi-hook-path", "nvidia-ctk-path"),
        variables=("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
        setting="devices.cdi_hook_file",
    ),
    HamiName(flags=("imex-channel-ids",), variables=("IMEX_CHANNEL_IDS",), setting="devices.imex_channels"),
    HamiName(flags=("imex-required",), variables=("IMEX_REQUIRED",), setting="devices.imex_required", is_switch=True),
    HamiName(flags=("device-discovery-strategy",), variables=("DEVICE_DISCOVERY_STRATEGY",), read=_discovery),
    HamiName(variables=("DP_DISABLE_HEALTHCHECKS",), read=_xids("health.watch_xids", "health.ignored_xids", "false")),
    HamiName(variables=("DP_ENABLE_HEALTHCHECKS",), read=_xids("health.ignore_no_xid", "health.watched_xids", "true")),
    HamiName(flags=("v",), read=_verbosity),
    HamiName(flags=("node-name",), variables=("NodeName",), note="has no effect, as with HAMi: NODE_NAME counts"),
    HamiName(flags=("device-split-count",), variables=("DEVICE_SPLIT_COUNT",), note=_IGNORED),
    HamiName(flags=("device-memory-scaling",), variables=("DEVICE_MEMORY_SCALING",), note=_IGNORED),
    HamiName(flags=("device-cores-scaling",), variables=("DEVICE_CORES_SCALING",), note=_IGNORED),
    HamiName(flags=("disable-core-limit",), variables=("DISABLE_CORE_LIMIT",), is_switch=True, note=_IGNORED),
    HamiName(flags=("resource-name",), note=_IGNORED),
)
"""Every input of HAMi's device plugin; its order does not matter."""
