"""How a service declares its metrics: once, as data. Exposition, `docs/metrics.md`, dashboards' and alerts' tests read
the catalogues."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["counter", "gauge", "histogram"]
Names = Literal["ours", "hami", "hami-legacy"]


class MetricSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One metric. Its labels have few values each, or grow with nodes, cards, pods and namespaces only."""

    name: str
    kind: Kind = "gauge"
    help: str
    labels: tuple[str, ...] = ()
    names: Names = "ours"
    """Whose name it is: other than ours are served only where a setting says so."""
