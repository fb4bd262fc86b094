"""The ways between NVIDIA's cards, through NVML. To be called in the thread that NVML belongs to."""

from __future__ import annotations

from itertools import combinations
from typing import Final

import pynvml

from hami_node_agent.core.topology import CardLinks, CommonAncestor, Topology

_NO_SUCH_LINK: Final = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT)
"""What a driver says of a link, or of one of its properties, that this card does not have."""
_NO_SUCH_QUERY: Final = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def read_topology(uuids: tuple[str, ...]) -> Topology:
    """What the driver says of the ways between these cards. A fault costs only the pairs that it is about."""
    handles: dict[str, object] = {}
    links: dict[str, CardLinks] = {}
    ancestors: dict[tuple[str, str], CommonAncestor | None] = {}
    faults: list[str] = []
    for uuid in uuids:
        try:
            handles[uuid] = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            links[uuid] = _links(handles[uuid])
        except pynvml.NVMLError as error:
            faults.append(f"NVLinks of card {uuid} cannot be read, so its pairs have no score: {error}")
    for one, other in combinations(handles, 2):
        try:
            ancestors[one, other] = _ancestor(handles[one], handles[other])
        except (pynvml.NVMLError, ValueError) as error:
            faults.append(f"cards {one} and {other} have no pair score: their PCIe topology cannot be read: {error}")
    return Topology(links=links, ancestors=ancestors, faults=tuple(faults))


def _ancestor(one: object, other: object) -> CommonAncestor | None:
    try:
        return CommonAncestor(pynvml.nvmlDeviceGetTopologyCommonAncestor(one, other))
    except pynvml.NVMLError as error:
        if error.value in _NO_SUCH_QUERY:
            return None
        raise


def _links(handle: object) -> CardLinks:
    remote_bus_ids: list[str] = []
    to_switches = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        if not _is_enabled(handle, link):
            continue
        bus_id = _remote_bus_id(handle, link)
        if bus_id is not None:
            remote_bus_ids.append(bus_id)
        to_switches += _ends_at_switch(handle, link)
    return CardLinks(
        pci_bus_id=_text(pynvml.nvmlDeviceGetPciInfo(handle).busId),
        remote_bus_ids=tuple(remote_bus_ids),
        to_switches=to_switches,
    )


def _is_enabled(handle: object, link: int) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetNvLinkState(handle, link) == pynvml.NVML_FEATURE_ENABLED)
    except pynvml.NVMLError as error:
        if error.value in (*_NO_SUCH_LINK, *_NO_SUCH_QUERY):
            return False
        raise


def _remote_bus_id(handle: object, link: int) -> str | None:
    try:
        return _text(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)
    except pynvml.NVMLError as error:
        if error.value in (*_NO_SUCH_LINK, *_NO_SUCH_QUERY):
            return None
        raise


def _ends_at_switch(handle: object, link: int) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH)
    except pynvml.NVMLError as error:
        if error.value in (*_NO_SUCH_LINK, *_NO_SUCH_QUERY):
            return False
        raise


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
