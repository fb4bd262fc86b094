"""Where an admitted request is read otherwise than it is written, as HAMi reads it: the user is told."""

from __future__ import annotations

from collections.abc import Iterable

from hami_model import kube, quantity
from hami_model.device_config import DeviceConfig, VendorSettings
from hami_model.errors import InvalidRequestError
from hami_model.requests import WHOLE_CARD_PERCENT, CardRequest, card_request


def warnings(pod: kube.Pod, config: DeviceConfig) -> tuple[str, ...]:
    """One sentence for each quantity that counts as another. Quantities must have been read by `quantity.parse`."""
    return tuple(
        f"container {container.name}: {sentence}"
        for container in pod.all_containers
        for settings in config.vendors
        for sentence in _of_container(container, settings)
    )


def _of_container(container: kube.Container, settings: VendorSettings) -> Iterable[str]:
    request = _request(container, settings)
    if request is None:
        return
    names = settings.resources
    cores = container.quantity(names.cores) if names.cores else None
    if cores is not None and quantity.parse(cores) > WHOLE_CARD_PERCENT:
        yield f"{names.cores} {cores} is more than one card has and counts as {WHOLE_CARD_PERCENT}"
    percent = container.quantity(names.memory_percentage) if names.memory_percentage else None
    if percent is None:
        return
    if request.memory_mib and names.memory and container.quantity(names.memory) is not None:
        yield f"{names.memory_percentage} {percent} does not count beside {names.memory}"
    elif quantity.parse(percent) <= 0:
        yield f"{names.memory_percentage} {percent} counts as not given"


def _request(container: kube.Container, settings: VendorSettings) -> CardRequest | None:
    """None also where the API server refuses the quantities right after this review."""
    try:
        return card_request(container, settings)
    except InvalidRequestError:
        return None
