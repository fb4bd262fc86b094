"""Which cards a container sees, as NVIDIA's runtime decides it. Pure."""

import re
from collections.abc import Iterable, Mapping

_CARD_NODE = re.compile(r"/dev/nvidia([0-9]+)")
_VARIABLE = "NVIDIA_VISIBLE_DEVICES"
_BY_MOUNTS = "/var/run/nvidia-container-devices"


def visible_cards(
    environment: Mapping[str, str],
    device_nodes: Iterable[str],
    mount_targets: Iterable[str],
    *,
    nvidia_runtime: bool,
) -> str | None:
    """UUIDs or indexes by comma, `all`, or "" (driver without cards); None: a container without the driver.

    The runtime handler reads the variable; `void` and the empty value mean that it has nothing to do. Device nodes are
    how CDI shows cards, with or without the handler.
    """
    value = environment.get(_VARIABLE, "") if nvidia_runtime else ""
    if value == _BY_MOUNTS:
        ids = [t.removeprefix(_BY_MOUNTS + "/") for t in mount_targets if t.startswith(_BY_MOUNTS + "/")]
        return ",".join(id_ for id_ in ids if "/" not in id_)
    if value not in ("", "void", "none"):
        return value
    minors = [match[1] for node in device_nodes if (match := _CARD_NODE.fullmatch(node))]
    if minors:
        return ",".join(dict.fromkeys(minors))
    return "" if value == "none" else None


def is_simulated_node(path: str) -> bool:
    """Device files that the simulated driver stands for, so that they need not exist on the machine."""
    return path.startswith("/dev/nvidia")
