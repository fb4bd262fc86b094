"""Cards that hardware cuts into a few sizes: a request is fitted to them, for a node can give nothing in between."""

from __future__ import annotations

from typing import Literal

import msgspec
from hami_model import kube, quantity
from hami_model.device_config import VendorSettings
from hami_model.templates import CutSizes, Template

from hami_webhook.core.refusal import Refusal, RefusalKind


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """Resources to set. What the node side reads stands in both tables, which must not differ."""

    limits: dict[str, str]
    requests: dict[str, str]


def fitted(container: kube.Container, settings: VendorSettings, soft_split_mode: str) -> Fitted | Refusal:
    """The request in sizes that the cards have. `soft_split_mode`: software shares the cards, so any size can be had.

    The container asks for cards; its quantities are whole numbers.
    """
    names = settings.resources
    count = _whole(container, names.count, "limits") or 0
    whole_modules = _whole_modules(container, settings, count)
    if isinstance(whole_modules, Refusal):
        return whole_modules
    cores = container.quantity(names.cores) if names.cores else None
    if not soft_split_mode and cores is not None and quantity.parse(cores) > 0:
        return _refused(
            container,
            f"{names.cores}: hardware cuts the card, and a share of cores comes with the memory: leave it out"
            + _soft_split_advice(settings),
        )
    memory = _memory(container, settings, count, soft_split_mode)
    if isinstance(memory, Refusal):
        return memory
    in_requests = _whole(container, names.count, "requests") is not None
    return Fitted(limits={**whole_modules, **memory}, requests={**(whole_modules if in_requests else {}), **memory})


def _whole_modules(container: kube.Container, settings: VendorSettings, count: int) -> dict[str, str] | Refusal:
    """One card becomes a whole module; other parts of modules are refused."""
    step, name = settings.count_multiple, settings.resources.count
    if count % step == 0:
        return {}
    if count == 1:
        return {name: str(step)}
    return _refused(container, f"{name} {count}: cards come in modules of {step}: ask for a multiple of {step}")


def _memory(
    container: kube.Container, settings: VendorSettings, count: int, soft_split_mode: str
) -> dict[str, str] | Refusal:
    name, sizes = settings.resources.memory, settings.cut_sizes or CutSizes()
    if not name:
        return {}
    asked = _whole(container, name, "limits")
    if asked is None:
        return {name: str(_units(sizes.whole_card_mib, settings))} if sizes.whole_card_mib else {}
    if soft_split_mode:
        return {name: str(asked)}
    cut = sizes.cut_for(asked * settings.memory_factor)
    if cut is None:
        return _refused(container, f"{name} {asked}: no card is so large; ask for {_sizes(sizes, settings)}")
    if count > 1 and cut.memory_mib != sizes.whole_card_mib:
        return _refused(
            container,
            f"{name} {asked}: {count} cards are given whole only: leave {name} out, or ask for one card",
        )
    return {name: str(_units(cut.memory_mib, settings))}


def _units(memory_mib: int, settings: VendorSettings) -> int:
    """In units of the resource, rounded up."""
    return -(-memory_mib // settings.memory_factor)


def _sizes(sizes: CutSizes, settings: VendorSettings) -> str:
    whole = Template(name="", memory_mib=sizes.whole_card_mib)
    found = [str(_units(size.memory_mib, settings)) for size in (*sizes.templates, whole) if size.memory_mib]
    return ", ".join(found[:-1]) + (" or " if len(found) > 1 else "") + "".join(found[-1:])


def _soft_split_advice(settings: VendorSettings) -> str:
    split = settings.vendor.soft_split
    return f", or let software share the card by the annotation {split.pod_key}: {split.mode}" if split else ""


def _whole(container: kube.Container, name: str, table: Literal["limits", "requests"]) -> int | None:
    resources = container.resources or kube.Resources()
    text = (getattr(resources, table) or {}).get(name)
    return None if text is None else int(quantity.parse(str(text)))


def _refused(container: kube.Container, problem: str) -> Refusal:
    return Refusal(kind=RefusalKind.INVALID_REQUEST, code=500, message=f"container {container.name}: {problem}")
