"""What Prometheus' own `promtool check metrics` finds fault with, and a little more, in a text exposition."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_KINDS = ("gauge", "counter", "summary", "histogram")
_WRONG_UNITS = {
    "milliseconds": "seconds", "ms": "seconds", "microseconds": "seconds", "nanoseconds": "seconds",
    "minutes": "seconds", "hours": "seconds", "days": "seconds", "mib": "bytes", "gib": "bytes", "kib": "bytes",
    "megabytes": "bytes", "percent": "ratio", "milliwatts": "watts", "mhz": "hertz", "megahertz": "hertz",
    "millijoules": "joules", "kelvin": "celsius",
}  # fmt: skip


def faults(text: str) -> list[str]:
    """One line each. HAMi's own names break these rules and are not to be among the metrics."""
    families = list(text_string_to_metric_families(text))
    return [*_repeated(families), *(fault for family in families for fault in _of(family))]


def _of(family: Metric) -> Iterator[str]:
    yield from _of_name(family)
    for sample in family.samples:
        yield from _of_sample(family, sample)


def _of_name(family: Metric) -> Iterator[str]:
    words = family.name.split("_")
    found = {
        "no help text": not family.documentation,
        "no type": family.type not in _KINDS,
        "not in lower_snake_case": not _NAME.fullmatch(family.name),
        "the type is in the name": any(kind in words for kind in _KINDS),
        "ends in _total and is no counter": family.type != "counter" and words[-1] == "total",
        f"_{words[-1]} is for histograms and summaries": (
            family.type not in ("histogram", "summary") and words[-1] in ("count", "sum", "bucket")
        ),
        **{f"{word} is no base unit; use {_WRONG_UNITS[word]}": True for word in words if word in _WRONG_UNITS},
    }
    yield from (f"{family.name}: {fault}" for fault, is_so in found.items() if is_so)


def _of_sample(family: Metric, sample: Sample) -> Iterator[str]:
    found = {
        "a counter that does not end in _total": family.type == "counter" and not sample.name.endswith("_total"),
        "le and quantile are for histograms and summaries": (
            family.type in ("gauge", "counter") and bool({"le", "quantile"} & sample.labels.keys())
        ),
        "label names are not in lower_snake_case": any(not _NAME.fullmatch(label) for label in sample.labels),
        f"{sample.value} is no share of one whole": family.name.endswith("_ratio") and not 0 <= sample.value <= 1,
        f"{sample.value} is less than nothing": family.type in ("counter", "histogram") and sample.value < 0,
    }
    yield from (f"{sample.name}{sample.labels}: {fault}" for fault, is_so in found.items() if is_so)


def _repeated(families: list[Metric]) -> Iterator[str]:
    series = Counter((sample.name, *sorted(sample.labels.items())) for family in families for sample in family.samples)
    yield from (f"{key}: {count} times" for key, count in series.items() if count > 1)
    names = Counter(family.name for family in families)
    yield from (f"{name}: declared {count} times" for name, count in names.items() if count > 1)
