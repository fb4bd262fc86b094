"""What a query of Prometheus names: metrics, and the labels it tells them apart by."""

from __future__ import annotations

import re
from typing import Final

_METRIC: Final = re.compile(r"\bhami_[a-z0-9_]+")
_SELECTOR: Final = re.compile(r"\b(hami_[a-z0-9_]+)\{([^}]*)\}")
_MATCHER: Final = re.compile(r"([a-z_]+)\s*(?:=~|!~|!=|=)")
_GRAFANA: Final = {"$__rate_interval": "1m", "$__range": "1h"}


def metrics(query: str) -> set[str]:
    """Names of series."""
    return set(_METRIC.findall(query))


def selected_labels(query: str) -> set[tuple[str, str]]:
    """Pairs of a series' name and a label by which it is selected."""
    return {(name, label) for name, matchers in _SELECTOR.findall(query) for label in _MATCHER.findall(matchers)}


def filled(query: str, variables: dict[str, str]) -> str:
    """As Grafana sends it: intervals and variables in their places."""
    for name, value in (_GRAFANA | {f"${name}": value for name, value in variables.items()}).items():
        query = query.replace(name, value)
    return query
