"""What dashboards are made of, as data. `dashboards.py` makes Grafana's JSON of it."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["stat", "timeseries"]


class Query(NamedTuple):
    expression: str
    legend: str = ""


class Panel(NamedTuple):
    title: str
    unit: str
    """Grafana's name of it."""
    queries: tuple[Query, ...]
    says: str = ""
    kind: Kind = "timeseries"
    is_quiet: bool = False
    """It has no data while all is well, or while what it shows is not in use."""


class Row(NamedTuple):
    title: str
    panels: tuple[Panel, ...]


class Variable(NamedTuple):
    name: str
    values: str
    """The query for what can be chosen."""
    has_all: bool = True


class Dashboard(NamedTuple):
    uid: str
    title: str
    says: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]


NODE: Final = Variable("node", "label_values(hami_card_info, node)")
ONE_NODE: Final = NODE._replace(has_all=False)
NAMESPACE: Final = Variable("namespace", "label_values(hami_slice_memory_promised_bytes, namespace)")
POD: Final = Variable(
    "pod", 'label_values(hami_slice_memory_promised_bytes{namespace=~"$namespace"}, pod)', has_all=False
)

OF_NODE: Final = 'node=~"$node"'
OF_TENANT: Final = 'node=~"$node", namespace=~"$namespace"'
OF_POD: Final = 'namespace=~"$namespace", pod=~"$pod"'
SLICE_LEGEND: Final = "{{container}} on {{card}}"
CARD_LEGEND: Final = "card {{index}}"
OVER: Final = "[$__rate_interval]"


def quantile(share: str, metric: str, by: str = "le") -> str:
    return f"histogram_quantile({share}, sum by ({by}) (rate({metric}_bucket{OVER})))"


NOT_ENFORCED_SAYS: Final = (
    "Processes on a card that no library holds to the slice, by reason; opted-out is the pod's own wish."
)
OUT_OF_BAND_SAYS: Final = "Processes on cards that are no pod's (host), or of a pod without a slice of the card."


def queries(dashboard: Dashboard) -> tuple[tuple[Panel, Query], ...]:
    """All of them, with their panels."""
    return tuple((panel, query) for row in dashboard.rows for panel in row.panels for query in panel.queries)
