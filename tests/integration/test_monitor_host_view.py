"""The monitor's view of the cards through the simulated driver's NVML: what is told, and what one failure costs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hami_monitor.core.host import HostCard, HostReading

BUILD = Path(__file__).resolve().parents[2] / "libvgpu/build"
CARDS = ("GPU-host-view-0001", "GPU-host-view-0002", "GPU-host-view-0003")
MIB = 1 << 20
VERSION_MISMATCH = "18"
MAKE_INSTANCE = """
import ctypes, pynvml
pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(2)
profile = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(card, pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE, version=1)
place = pynvml.c_nvmlGpuInstancePlacement_t(start=0, size=1)
instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(card, profile.id, ctypes.byref(place))
pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
"""
READER = """
import sys, msgspec
from hami_monitor.adapters.nvml import NvmlHost
host = NvmlHost(sys.argv[1])
for _ in sys.stdin:
    print(msgspec.json.encode(host.read()).decode(), flush=True)
"""


class Machine:
    """A simulated machine, and a process that reads its cards when told to."""

    def __init__(self, root: Path, library_folder: Path = BUILD / "sim") -> None:
        described = {
            "driver_version": "570.124.06",
            "cuda_version": "12.8",
            "cards": [
                {"uuid": CARDS[0], "name": "NVIDIA H100", "memory_mib": 81559, "ecc_corrected": 7, "idle_watts": 60},
                {"uuid": CARDS[1], "name": "NVIDIA RTX", "memory_mib": 24576, "no_ecc": True},
                {
                    "uuid": CARDS[2],
                    "name": "NVIDIA A100-SXM4-40GB",
                    "memory_mib": 40960,
                    "mig_capable": True,
                    "mig_enabled": True,
                },
            ],
        }
        (root / "driver.json").write_text(json.dumps(described))
        self.environment = {
            **{name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH")},
            "HAMI_SIM_DRIVER": str(root / "driver.json"),
            "HAMI_SIM_STATE": str(root / "state"),
            "LD_LIBRARY_PATH": str(library_folder),
        }
        self._reader = subprocess.Popen(
            [sys.executable, "-c", READER, str(library_folder)],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> HostReading:
        assert self._reader.stdin is not None
        assert self._reader.stdout is not None
        self._reader.stdin.write("\n")
        self._reader.stdin.flush()
        return msgspec.json.decode(self._reader.stdout.readline(), type=HostReading)

    def card(self, index: int) -> HostCard:
        return self.read().cards[index]

    def libraries(self) -> set[str]:
        """Files of the driver's library that the reader has loaded."""
        maps = Path(f"/proc/{self._reader.pid}/maps").read_text(encoding="utf-8")
        return {line.rpartition("/")[2] for line in maps.splitlines() if "/libnvidia-ml.so" in line}

    def driver(self, *command: str) -> None:
        subprocess.run([BUILD / "bin/sim-driver", *command], env=self.environment, check=True)

    def python(self, program: str) -> None:
        subprocess.run([sys.executable, "-c", program], env=self.environment, check=True)

    def end(self) -> None:
        assert self._reader.stdin is not None
        self._reader.stdin.close()
        self._reader.wait()
        assert self._reader.stdout is not None
        self._reader.stdout.close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path)
    yield found
    found.end()


def test_every_sensor_of_an_idle_card(machine: Machine) -> None:
    reading = machine.read()
    assert (reading.problem, reading.failures) == ("", {})
    assert reading.cards[0] == HostCard(
        id=CARDS[0],
        index=0,
        model="NVIDIA H100",
        memory_total_bytes=81559 * MIB,
        memory_used_bytes=0,
        utilisation_percent=0,
        memory_controller_percent=0,
        temperature_celsius=34,
        power_milliwatts=60_000,
        power_limit_milliwatts=400_000,
        sm_clock_megahertz=1410,
        memory_clock_megahertz=1593,
        ecc_corrected=7,
        ecc_uncorrected=0,
        clock_limits=frozenset(),
        processes=(),
    )


def test_what_a_card_does_not_have_is_no_failure(machine: Machine) -> None:
    reading = machine.read()
    assert reading.cards[1].ecc_corrected is None
    assert reading.cards[2].utilisation_percent is None, "of a card in MIG mode the driver does not tell it"
    assert reading.failures == {}


def test_errors_are_counted_by_kind(machine: Machine) -> None:
    machine.read()
    machine.driver("ecc", "0", "corrected", "5")
    machine.driver("ecc", "0", "uncorrected", "2")
    card = machine.card(0)
    assert (card.ecc_corrected, card.ecc_uncorrected) == (12, 2)


def test_xids_are_counted_by_number_and_card_and_only_once(machine: Machine) -> None:
    assert machine.card(0).xids == {}
    for card, xid in (("0", "31"), ("0", "48"), ("0", "31"), ("1", "13")):
        machine.driver("xid", card, xid)
    reading = machine.read()
    assert [card.xids for card in reading.cards] == [{31: 2, 48: 1}, {13: 1}, {}]
    assert reading.cards[0].ecc_uncorrected == 1, "XID 48 is an uncorrectable error"
    assert [card.xids for card in machine.read().cards] == [{31: 2, 48: 1}, {13: 1}, {}]


def test_xids_of_an_instance_are_its_own_and_the_card_s(machine: Machine) -> None:
    machine.python(MAKE_INSTANCE)
    (instance,) = machine.card(2).instances
    assert instance.gpu_instance == 1
    for words in (("2", "43", "1"), ("2", "43", "1"), ("2", "31", "5"), ("2", "79")):
        machine.driver("xid", *words)

    card = machine.card(2)

    assert card.xids == {43: 2, 31: 1, 79: 1}
    assert card.instances[0].xids == {43: 2}, "31 was that of an instance which is not there"
    assert machine.card(2) == card


def test_a_card_that_fell_off_the_bus_says_so_last(machine: Machine) -> None:
    machine.read()
    machine.driver("lose", "0")
    reading = machine.read()
    lost, other, _ = reading.cards
    assert (lost.id, lost.memory_total_bytes, lost.memory_used_bytes) == (CARDS[0], 81559 * MIB, None)
    assert lost.xids == {79: 1}
    assert other.temperature_celsius == 34


def test_heat_holds_the_clocks_down(machine: Machine) -> None:
    machine.driver("temperature", "0", "95")
    reading = machine.read()
    assert reading.cards[0].clock_limits == {"hardware-slowdown", "hardware-thermal"}
    assert reading.cards[1].clock_limits == frozenset()


def test_a_mig_instance_is_told_with_its_memory(machine: Machine) -> None:
    assert machine.card(2).instances == ()
    machine.python(MAKE_INSTANCE)
    (instance,) = machine.card(2).instances
    assert instance.id.startswith("MIG-")
    assert (instance.profile, instance.gpu_instance, instance.compute_instance) == ("1g.5gb", 1, 0)
    assert (instance.memory_total_bytes, instance.memory_used_bytes) == (4864 * MIB, 0)


QUERIES = {
    "nvmlDeviceGetMemoryInfo": {"memory_used_bytes"},
    "nvmlDeviceGetUtilizationRates": {"utilisation_percent", "memory_controller_percent", "clock_limits"},
    "nvmlDeviceGetTemperature": {"temperature_celsius", "clock_limits"},
    "nvmlDeviceGetPowerUsage": {"power_milliwatts"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit_milliwatts"},
    "nvmlDeviceGetClockInfo": {"sm_clock_megahertz", "memory_clock_megahertz"},
    "nvmlDeviceGetTotalEccErrors": {"ecc_corrected", "ecc_uncorrected"},
    "nvmlDeviceGetCurrentClocksThrottleReasons": {"clock_limits"},
    "nvmlDeviceGetComputeRunningProcesses_v3": {"processes"},
    "nvmlDeviceGetMigMode": {"instances"},
    "nvmlDeviceGetName": {"model"},
    "nvmlEventSetWait_v2": set(),
    "nvmlDeviceRegisterEvents": set(),
}
"""By query: the fields that may be missing when it fails."""


@pytest.mark.case("MON-13")
@pytest.mark.parametrize("query", QUERIES)
def test_one_failing_query_costs_its_own_values_only(machine: Machine, query: str) -> None:
    well = machine.read()
    machine.driver("fail", query, "--code", "999")
    ill = machine.read()
    assert ill.problem == ""
    for before, after in zip(well.cards, ill.cards, strict=True):
        lost = {name for name in before.__struct_fields__ if getattr(before, name) != getattr(after, name)}
        assert lost <= QUERIES[query]
    assert bool(ill.failures) == (query != "nvmlDeviceRegisterEvents"), "cards are registered once"
    machine.driver("heal")
    assert machine.read() == well


def test_a_driver_of_another_version_is_loaded_without_a_restart_of_the_monitor(tmp_path: Path) -> None:
    """The library that is loaded says ever after that the kernel has another version."""
    folder = tmp_path / "driver"
    folder.mkdir()
    for version in ("570", "580"):
        shutil.copyfile(BUILD / "sim/libnvidia-ml.so.1", folder / f"libnvidia-ml.so.{version}")
    library = folder / "libnvidia-ml.so.1"
    library.symlink_to("libnvidia-ml.so.570")
    machine = Machine(tmp_path, folder)
    try:
        well = machine.read()
        assert (well.problem, machine.libraries()) == ("", {"libnvidia-ml.so.570"})

        library.unlink()
        machine.driver("fail", "nvmlDeviceGetCount_v2", "--code", VERSION_MISMATCH, "--times", "1")
        assert "version mismatch" in machine.read().problem
        assert "libnvidia-ml.so.1" in machine.read().problem  # there is none

        library.symlink_to("libnvidia-ml.so.580")
        assert machine.read() == well
        assert machine.libraries() == {"libnvidia-ml.so.580"}
    finally:
        machine.end()
