"""Slices that are MIG instances: what they use is what the driver tells of the instance."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hami_monitor.core.host import HostInstance
from hami_monitor.core.pods import MonitoredPod
from hami_monitor.core.series import own_series
from monitor_builders import CARD_A, CARD_B, MIB, NODE, host_card, pod, sample

INSTANCE = "MIG-00000000-0000-5000-8000-000000000001"


def allocation(**fields: Any) -> dict[str, Any]:
    return {
        "containerIndex": 0,
        "deviceIndex": 0,
        "gpuUUID": CARD_A,
        "profile": "1g.5gb",
        "placement": {"start": 0, "size": 1},
        "migUUID": INSTANCE,
        "gpuInstanceID": 1,
        "computeInstanceID": 0,
        **fields,
    }


def mig_pod(*allocations: dict[str, Any]) -> MonitoredPod:
    return pod(
        allocated=f"{CARD_A},NVIDIA,4864,14:;", annotations={"hami.io/vgpu-mig-allocations": json.dumps(allocations)}
    )


def instance(used_bytes: int | None, name: str = INSTANCE) -> HostInstance:
    return HostInstance(id=name, profile="1g.5gb", memory_total_bytes=4864 * MIB, memory_used_bytes=used_bytes)


@pytest.mark.parametrize(
    ("found", "instances", "used"),
    [
        pytest.param(mig_pod(allocation()), [instance(700)], 700, id="its instance"),
        pytest.param(mig_pod(allocation()), [instance(700), instance(9, "MIG-other")], 700, id="not its neighbour's"),
        pytest.param(
            mig_pod(allocation(), allocation(deviceIndex=1, migUUID="MIG-2", placement={"start": 1, "size": 1})),
            [instance(700), instance(9, "MIG-2")],
            709,
            id="two of one card",
        ),
        pytest.param(mig_pod(allocation()), [instance(None)], None, id="the driver does not say"),
        pytest.param(mig_pod(allocation()), [instance(7, "MIG-other")], None, id="it is not there"),
        pytest.param(mig_pod(allocation(gpuUUID=CARD_B)), [instance(700)], None, id="of another card"),
        pytest.param(
            pod(annotations={"hami.io/vgpu-mig-allocations": "[{"}), [instance(700)], None, id="cannot be read"
        ),
    ],
)
def test_memory_of_an_instance(found: MonitoredPod, instances: list[HostInstance], used: int | None) -> None:
    taken = sample([found], cards=[host_card(CARD_A, 0, instances=tuple(instances))])
    (use,) = taken.slices
    assert use.memory_used_bytes == used
    series = {(spec.name, labels): value for spec, labels, value in own_series(taken)}
    assert series.get(("hami_slice_memory_used_bytes", (NODE, "team", "p", "main", CARD_A))) == used
