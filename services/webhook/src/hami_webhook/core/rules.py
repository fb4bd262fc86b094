"""What one family of accelerators changes in one container. Families differ by their settings only.

Order matters and is HAMi's: percentage bounds, priority, core policy, count, exclusive cores, runtime class, sizes that
hardware cuts (`cuts`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

import msgspec
from hami_model import kube, quantity, requests
from hami_model.device_config import VendorSettings
from hami_model.errors import InvalidRequestError
from hami_model.requests import INT32_MAX, WHOLE_CARD_PERCENT, card_request

from hami_webhook.core import cuts
from hami_webhook.core.refusal import Refusal, RefusalKind, denied


class ContainerChange(msgspec.Struct, frozen=True, kw_only=True):
    """What is added to one container for one family."""

    claims: bool
    """The container names this family, be it with a count of 0, so the pod is ours."""
    gets_card: bool = False
    limits: dict[str, str] = {}
    requests: dict[str, str] = {}
    env: tuple[tuple[str, str], ...] = ()
    runtime_class: str = ""
    """Of the pod, when it names none; empty: none is wanted."""


def container_change(
    container: kube.Container, settings: VendorSettings, annotations: Mapping[str, str]
) -> ContainerChange | Refusal:
    """The change, or why the container cannot be admitted. `annotations`: of its pod.

    Quantities must have been read by `quantity.parse` before (raises MalformedQuantity otherwise).
    """
    names = settings.resources
    limits = dict(_limits(container))
    percent = _rounded(container, names.memory_percentage)
    if percent is not None and not 0 <= percent <= WHOLE_CARD_PERCENT:
        return _percentage_refused(container, names.memory_percentage, percent)

    env: list[tuple[str, str]] = []
    if names.priority and names.priority in limits and settings.vendor.priority_env:
        priority = _away_from_zero(quantity.parse(limits[names.priority]))
        env.append((settings.vendor.priority_env, str(priority)))
    if settings.core_policy != "default" and settings.vendor.core_policy_env:
        env.append((settings.vendor.core_policy_env, settings.core_policy))

    added: dict[str, str] = {}
    claims = names.count in limits
    if not claims and any(name in limits for name in (names.cores, names.memory, names.memory_percentage) if name):
        asked = container.quantity(names.count)
        if asked is None and settings.default_count == 0:
            return _count_missing(container, settings)
        # A request must equal its limit, so a count that stands among the requests is taken over.
        added[names.count] = asked if asked is not None else str(settings.default_count)
        claims = True
    if _wants_exclusive_cores(container, settings, counted=claims, percent=percent):
        added[names.cores] = str(WHOLE_CARD_PERCENT)
        claims = True
    # A count of 0 routes the pod, as in HAMi, and gets no card.
    gets_card = claims and _is_positive(added.get(names.count) or container.quantity(names.count))
    change = ContainerChange(
        claims=claims,
        gets_card=gets_card,
        limits=added,
        env=tuple((name, value) for name, value in env if effective_env(container, name) != value),
        runtime_class=settings.runtime_class if gets_card else "",
    )
    invalid = _invalid_request(changed_container(container, change), settings)
    if invalid is not None or not claims or settings.cut_sizes is None:
        return invalid or change
    cut = cuts.fitted(changed_container(container, change), settings, requests.soft_split_mode(annotations, settings))
    if isinstance(cut, Refusal):
        return cut
    return msgspec.structs.replace(change, limits={**change.limits, **cut.limits}, requests=cut.requests)


def changed_container(container: kube.Container, change: ContainerChange) -> kube.Container:
    """The container with the change in it."""
    resources = container.resources or kube.Resources()
    return msgspec.structs.replace(
        container,
        resources=(
            msgspec.structs.replace(
                resources,
                limits={**(resources.limits or {}), **change.limits},
                requests={**(resources.requests or {}), **change.requests} if change.requests else resources.requests,
            )
            if change.limits or change.requests
            else container.resources
        ),
        env=(
            [*(container.env or []), *(kube.EnvVar(name=name, value=value) for name, value in change.env)]
            if change.env
            else container.env
        ),
    )


def _wants_exclusive_cores(
    container: kube.Container, settings: VendorSettings, *, counted: bool, percent: int | None
) -> bool:
    """A container that gets a whole card's memory gets all of its cores too, unless it names cores."""
    names = settings.resources
    if not settings.vendor.request.whole_card_brings_all_cores:
        return False
    if not names.cores or container.quantity(names.cores) is not None:
        return False
    if not counted and container.quantity(names.count) is None:
        return False
    if percent is not None:
        return percent == WHOLE_CARD_PERCENT
    return not names.memory or container.quantity(names.memory) is None


def _invalid_request(container: kube.Container, settings: VendorSettings) -> Refusal | None:
    """Quantities that Kubernetes would let through and that we could not place.

    Negative amounts, and fractions of percentages, are refused by the API server itself right after this review.
    """
    names = settings.resources
    try:
        card_request(container, settings)
    except InvalidRequestError as error:
        count = quantity.parse(container.quantity(names.count) or "0")
        countable = count.denominator == 1 and count <= INT32_MAX
        if error.resource == names.memory or not countable:
            return denied(RefusalKind.INVALID_REQUEST, str(error))
    return None


def _percentage_refused(container: kube.Container, resource: str, percent: int) -> Refusal:
    return Refusal(
        kind=RefusalKind.INVALID_REQUEST,
        code=500,
        message=f"invalid {resource} value {percent} in container {container.name}: "
        "must be an integer between 0 and 100",
    )


def _count_missing(container: kube.Container, settings: VendorSettings) -> Refusal:
    count = settings.resources.count
    return denied(
        RefusalKind.INVALID_REQUEST,
        f"container {container.name}: a share of a card is asked for, but no number of cards: "
        f"add the limit {count}, for example {count}: 1",
    )


def _limits(container: kube.Container) -> dict[str, str]:
    resources = container.resources
    return {name: str(value) for name, value in ((resources.limits if resources else None) or {}).items()}


def _rounded(container: kube.Container, resource: str) -> int | None:
    text = container.quantity(resource) if resource else None
    return None if text is None else _away_from_zero(quantity.parse(text))


def _is_positive(count: str | None) -> bool:
    return count is not None and quantity.parse(count) > 0


def _away_from_zero(value: Fraction) -> int:
    """How Kubernetes makes a whole number of a quantity."""
    return math.ceil(value) if value >= 0 else math.floor(value)


def effective_env(container: kube.Container, name: str) -> str | None:
    """The value a variable has in the container now: the last entry of a name wins."""
    return next((entry.value for entry in reversed(container.env or []) if entry.name == name), None)
