"""Serves the last sample as Prometheus metrics. A scrape touches no file and no driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hami_model.metric_spec import MetricSpec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from hami_monitor.core.hami_series import hami_series
from hami_monitor.core.sample import Sample
from hami_monitor.core.series import Series, own_series

Family = CounterMetricFamily | GaugeMetricFamily


class SampleCollector(Collector):
    """`sample` gives the last one; None, before the first, has no series."""

    def __init__(
        self, sample: Callable[[], Sample | None], *, hami_names: bool, hami_legacy_names: bool, version: str
    ) -> None:
        self._sample = sample
        self._hami_names = hami_names
        self._hami_legacy_names = hami_legacy_names
        self._version = version

    def describe(self) -> Iterable[Family]:
        """Names are not looked up at registration, where there is no sample yet."""
        return ()

    def collect(self) -> Iterable[Family]:
        sample = self._sample()
        if sample is None:
            return ()
        series: list[Series] = list(own_series(sample))
        if self._hami_names:
            series += hami_series(sample, version=self._version, legacy=self._hami_legacy_names)
        return families(series)


class SeriesCollector(Collector):
    """Other values of ours that are served as they are now."""

    def __init__(self, series: Callable[[], Iterable[Series]]) -> None:
        self._series = series

    def describe(self) -> Iterable[Family]:
        return ()

    def collect(self) -> Iterable[Family]:
        return families(self._series())


def families(series: Iterable[Series]) -> list[Family]:
    """One family a metric, in the order of their first series."""
    found: dict[str, Family] = {}
    for spec, labels, value in series:
        family = found.get(spec.name)
        if family is None:
            family = found[spec.name] = _family(spec)
        family.add_metric(labels, value)
    return list(found.values())


def _family(spec: MetricSpec) -> Family:
    kind = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
    return kind(spec.name, spec.help, labels=spec.labels)
