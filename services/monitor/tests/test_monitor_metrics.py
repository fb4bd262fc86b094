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
from hami_monitor.core.host import HostInstance, HostProcess
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
        "power_limit_milliwatts": 400_000,
        "sm_clock_megahertz": 1410,
        "memory_clock_megahertz": 1593,
        "ecc_corrected": 3,
        "ecc_uncorrected": 0,
        "clock_limits": frozenset({"thermal"}),
        "xids": {48: 2},
        "instances": (
            HostInstance(
                id="MIG-1",
                profile="1g.5gb",
                gpu_instance=1,
                compute_instance=0,
                memory_total_bytes=4864 * MIB,
                memory_used_bytes=9,
                xids={48: 1},
            ),
        ),
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
        live = dict.fromkeys([owner] if found.slices else [], pod("p"))
        registry.register(SeriesCollector(lambda: feedback_series(NODE, live, Feedback(verdicts=(verdict,)))))
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
UNITS = ("_bytes", "_ratio", "_seconds", "_celsius", "_watts", "_hertz", "_total", "_info")
COUNTS = ("_processes", "_pods", "_folders", "_up", "_limited")
STATES = ("_blocked", "_held")


@pytest.mark.parametrize("spec", OURS, ids=lambda spec: spec.name)
def test_our_names_follow_prometheus_rules(spec: MetricSpec) -> None:
    assert re.fullmatch(r"hami_(slice|card|mig|monitor)_[a-z]+(_[a-z]+)*", spec.name)
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
    card = (NODE, CARD_A, "0")
    assert series["hami_card_processes", (*card, "slice")] == 1
    assert series["hami_card_processes", (*card, "unknown")] == 1
    assert series["hami_card_power_limit_watts", card] == 400
    assert series["hami_card_clock_hertz", (*card, "sm")] == 1.41e9
    assert series["hami_card_clock_limited", (*card, "thermal")] == 1
    assert series["hami_card_clock_limited", (*card, "power-limit")] == 0
    assert series["hami_card_ecc_errors_total", (*card, "corrected")] == 3
    assert series["hami_card_xids_total", (*card, "48")] == 2
    assert series["hami_mig_instance_memory_bytes", (*card, "MIG-1")] == 4864 * MIB
    assert series["hami_mig_instance_xids_total", (*card, "MIG-1", "48")] == 1
    assert series["hami_mig_instance_info", (*card, "MIG-1", "1g.5gb", "1", "0")] == 1
    assert series["hami_card_memory_promised_bytes", (NODE, CARD_A, "0")] == 4000 * MIB
    assert series["hami_monitor_folders", ("unknown-pod",)] == 1


@pytest.mark.case("MON-06")
def test_processes_that_are_each_busy_are_one_share_of_a_card() -> None:
    """Three of 100 % each; a share below nothing is none."""
    slots = [Slot(pid=pid, used={0: 1}, busy={0: 100}) for pid in (1, 2, 3)]
    found = sample([pod()], [folder(found=region(slots=slots))], [host_card()])
    (value,) = [value for spec, _, value in own_series(found) if spec.name == "hami_slice_cores_used_ratio"]
    assert value == 1
    below = sample([pod()], [folder(found=region(slots=[Slot(used={0: 1}, busy={0: (1 << 64) - 5})]))], [host_card()])
    assert "hami_slice_cores_used_ratio" not in {spec.name for spec, _, _ in own_series(below)}


@pytest.mark.case("MON-14")
def test_series_of_a_pod_end_with_it() -> None:
    def names(found: Sample) -> set[str]:
        text = scraped(found)
        return {line.partition("{")[0] for line in text.splitlines() if 'pod="p"' in line or 'podname="p"' in line}

    region_left = folder(found=region(slots=[Slot(used={0: 7})]))
    assert {"hami_slice_memory_used_bytes", "hami_vgpu_memory_used_bytes"} <= names(
        sample([pod()], [region_left], [host_card()])
    )
    assert names(sample([], [region_left], [host_card()])) == set()
    assert names(sample([pod(phase="Succeeded")], [region_left], [host_card()])) == set()


@pytest.mark.parametrize("written", ["no card", "GPU-1 2", "GPU-1{", 'GPU-"', "GPU-é", "gpu-1", ""])
def test_text_that_a_container_wrote_is_no_label(written: str) -> None:
    found = sample([pod()], [folder(found=region(cards=(written,), slots=[Slot(used={0: 7})]))], [host_card()])
    assert "hami_vgpu_memory_used_bytes" not in scraped(found)
    assert written == "" or f'"{written}"' not in scraped(found)


def test_init_containers_and_sidecars_have_series_of_their_own_names() -> None:
    three = f"{CARD_A},NVIDIA,1000,10:;{CARD_A},NVIDIA,3000,30:;"
    found = sample(
        [pod(allocated=three, init=("warm-up",))],
        [
            folder("p", "warm-up", region(slots=[Slot(used={0: 3})])),
            folder("p", "main", region(slots=[Slot(used={0: 5})])),
        ],
        [host_card()],
    )
    values = {
        labels[3]: value for spec, labels, value in own_series(found) if spec.name == "hami_slice_memory_used_bytes"
    }
    assert values == {"warm-up": 3, "main": 5}


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
