"""The exposition: every series is in the catalogue, none appears twice, names follow Prometheus' rules."""

from __future__ import annotations

import re

import pytest
from hami_model.metric_spec import MetricSpec
from hami_monitor.adapters.exposition import SampleCollector, SeriesCollector
from hami_monitor.core.catalogue import CATALOGUE
from hami_monitor.core.container_folder import FolderOwner
from hami_monitor.core.feedback import Feedback, Verdict
from hami_monitor.core.feedback_series import feedback_series
from hami_monitor.core.hami_series import hami_series
from hami_monitor.core.host import HostProcess
from hami_monitor.core.process_trace import ProcessKey
from hami_monitor.core.sample import Sample
from hami_monitor.core.series import own_series
from hami_monitor.metrics import MonitorMetrics
from monitor_builders import CARD_A, CARD_B, MIB, NODE, Slot, folder, host_card, pod, region, sample
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

BY_NAME = {spec.name: spec for spec in CATALOGUE}


@pytest.fixture
def full() -> Sample:
    """A sample in which every metric that does not concern MIG has a series."""
    measured = {
        "temperature_celsius": 40,
        "power_milliwatts": 50_500,
        "memory_controller_percent": 7,
        "utilisation_percent": 25,
    }
    slots = [Slot(used={0: 700, 1: 5}, context={0: 100}, busy={0: 30})]
    return sample(
        [pod(allocated=f"{CARD_A},NVIDIA,3000,30:{CARD_B},NVIDIA,100,0:;"), pod("q", f"{CARD_A},NVIDIA,1000,10:;")],
        [
            folder(found=region(cards=(CARD_A, CARD_B, CARD_A), limits={0: 3000}, slots=slots, last_kernel_time=99)),
            folder("gone", found=region()),
        ],
        [host_card(CARD_A, 0, HostProcess(pid=5), HostProcess(pid=6), **measured), host_card(CARD_B, 1)],
        {5: FolderOwner(pod_uid="uid-p", container="main")},
        suspected=[ProcessKey(5, 100)],
    )  # fmt: skip


def scraped(found: Sample | None, *, hami: bool = True, legacy: bool = True) -> str:
    registry = CollectorRegistry()
    MonitorMetrics(registry)
    owner = FolderOwner(pod_uid="uid-p", container="main")
    verdict = Verdict(
        owner=owner, is_active=True, is_blocked=True, is_contended=True, recent_kernel=-1, utilisation_switch=1
    )
    if found is not None:
        registry.register(
            SeriesCollector(lambda: feedback_series(NODE, {owner: pod("p")}, Feedback(verdicts=(verdict,))))
        )
    registry.register(SampleCollector(lambda: found, hami_names=hami, hami_legacy_names=legacy, version="1.2.3"))
    return generate_latest(registry).decode()


def test_every_series_is_in_the_catalogue_with_its_labels(full: Sample) -> None:
    seen = set()
    for family in text_string_to_metric_families(scraped(full)):
        spec = BY_NAME.get(family.name) or BY_NAME[f"{family.name}_total"]
        seen.add(spec.name)
        assert (family.type, family.documentation) == (spec.kind, spec.help)
        for series in family.samples:
            assert set(series.labels) - {"le"} == set(spec.labels), series.name
    assert {spec.name for spec in CATALOGUE} - seen == {"hami_mig_device_info", "MigInfo"}


@pytest.mark.case("MON-08")
def test_no_series_appears_twice(full: Sample) -> None:
    keys = [
        (series.name, *sorted(series.labels.items()))
        for family in text_string_to_metric_families(scraped(full))
        for series in family.samples
    ]
    assert len(keys) == len(set(keys))


def test_hamis_names_come_only_behind_their_settings(full: Sample) -> None:
    own = {family.name for family in text_string_to_metric_families(scraped(full, hami=False, legacy=False))}
    assert {name for name in own if name in BY_NAME and BY_NAME[name].names != "ours"} == set()
    with_hami = {family.name for family in text_string_to_metric_families(scraped(full, legacy=False))}
    assert {BY_NAME[name].names for name in with_hami if name in BY_NAME} == {"ours", "hami"}


def test_before_the_first_sample_only_our_own_counters_are_there() -> None:
    names = {family.name for family in text_string_to_metric_families(scraped(None))}
    assert all(name.startswith("hami_monitor_") for name in names)


OURS = [spec for spec in CATALOGUE if spec.names == "ours"]
UNITS = ("_bytes", "_ratio", "_seconds", "_celsius", "_watts", "_total", "_info")
COUNTS = ("_processes", "_pods", "_folders", "_up")
STATES = ("_blocked", "_held")


@pytest.mark.parametrize("spec", OURS, ids=lambda spec: spec.name)
def test_our_names_follow_prometheus_rules(spec: MetricSpec) -> None:
    assert re.fullmatch(r"hami_(slice|card|monitor)_[a-z]+(_[a-z]+)*", spec.name)
    assert spec.name.endswith(UNITS + COUNTS + STATES)
    assert (spec.kind == "counter") == spec.name.endswith("_total")
    assert "percent" not in spec.name
    assert spec.help.endswith(".")


def test_our_ratios_are_ratios(full: Sample) -> None:
    ratios = {(spec.name, labels): value for spec, labels, value in own_series(full) if spec.name.endswith("_ratio")}
    assert all(0 <= value <= 1 for value in ratios.values())
    assert ratios["hami_card_utilization_ratio", (NODE, CARD_A, "0")] == 0.25
    assert ratios["hami_slice_cores_used_ratio", (NODE, "team", "p", "main", CARD_A)] == 0.3


def test_values_in_base_units(full: Sample) -> None:
    series = {(spec.name, labels): value for spec, labels, value in own_series(full)}
    slice_labels = (NODE, "team", "p", "main", CARD_A)
    assert series["hami_slice_memory_used_bytes", slice_labels] == 700
    assert series["hami_slice_memory_promised_bytes", slice_labels] == 3000 * MIB
    assert series["hami_slice_memory_part_bytes", (*slice_labels, "context")] == 100
    assert series["hami_card_power_watts", (NODE, CARD_A, "0")] == 50.5
    assert series["hami_card_processes", (NODE, CARD_A, "0", "pod")] == 1
    assert series["hami_card_processes", (NODE, CARD_A, "0", "other")] == 1
    assert series["hami_card_memory_promised_bytes", (NODE, CARD_A, "0")] == 4000 * MIB
    assert series["hami_monitor_folders", ("unknown-pod",)] == 1


@pytest.mark.case("MON-10")
def test_label_names_of_both_families_are_fixed() -> None:
    labels = {spec.name: spec.labels for spec in CATALOGUE}
    assert labels["hami_slice_memory_used_bytes"] == ("node", "namespace", "pod", "container", "card")
    assert labels["hami_vgpu_memory_used_bytes"] == (
        "namespace", "pod", "container", "vdevice_index", "device_uuid", "zone",
    )  # fmt: skip
    assert labels["vGPU_device_memory_usage_in_bytes"] == (
        "podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid", "zone",
    )  # fmt: skip


def test_hamis_series_need_the_label_that_names_the_node() -> None:
    told = sample([pod()], [folder(found=region())], [host_card()])
    assert "hami_vgpu_memory_used_bytes" in {spec.name for spec, _, _ in hami_series(told, version="", legacy=False)}
    elsewhere = Sample(**{name: getattr(told, name) for name in told.__struct_fields__} | {"node": "other"})
    assert "hami_vgpu_memory_used_bytes" not in {
        spec.name for spec, _, _ in hami_series(elsewhere, version="", legacy=False)
    }
