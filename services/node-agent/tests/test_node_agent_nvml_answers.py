"""What NVML's answers say of a card, and what they do not."""

from __future__ import annotations

import threading
from typing import Any

import pynvml
import pytest
from hami_node_agent.adapters import nvml_library
from hami_node_agent.adapters.nvml import Nvml
from hami_node_agent.adapters.nvml_events import EventSet
from hami_node_agent.adapters.nvml_library import DriverError


class Driver:
    """In the place of the bindings' functions: one card, `A`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.card_says = pynvml.NVML_SUCCESS
        self.loads = 0
        self.sets = 0
        self.freed: list[object] = []
        self.registered: list[object] = []
        self.wait_hangs: threading.Event | None = None
        self.on_register: Any = None
        monkeypatch.setattr(nvml_library, "load", self._load)
        monkeypatch.setattr(nvml_library, "unload", lambda: None)
        for name, function in {
            "nvmlDeviceGetHandleByUUID": self._handle,
            "nvmlDeviceGetPciInfo": lambda _: None,
            "nvmlDeviceGetMemoryInfo": lambda _: None,
            "nvmlDeviceGetSupportedEventTypes": lambda _: 0xFF,
            "nvmlDeviceRegisterEvents": self._register,
            "nvmlEventSetCreate": self._new_set,
            "nvmlEventSetFree": self.freed.append,
            "nvmlEventSetWait_v2": self._wait,
            "nvmlShutdown": lambda: None,
        }.items():
            monkeypatch.setattr(pynvml, name, function)

    def _load(self, _library: str) -> None:
        self.loads += 1

    def _handle(self, _uuid: str) -> int:
        if self.card_says != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(self.card_says)
        return 7

    def _new_set(self) -> int:
        self.sets += 1
        return self.sets

    def _register(self, _handle: object, _kinds: int, into: object) -> None:
        if self.on_register is not None:
            self.on_register()
        if into in self.freed:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        self.registered.append(into)

    def _wait(self, _set: object, _timeout_ms: int) -> None:
        if self.wait_hangs is not None:
            self.wait_hangs.wait()
        raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


@pytest.mark.parametrize("code", nvml_library.DRIVER_GONE)
async def test_a_driver_that_is_gone_is_loaded_anew_before_its_cards_are_judged(driver: Driver, code: int) -> None:
    nvml = Nvml(lambda: "driver")
    await nvml.start()
    assert await nvml.probe("A") == ""
    driver.card_says = code
    assert [await nvml.probe("A"), await nvml.probe("A")] == [None, None]
    assert nvml.is_gone

    await nvml.reload()
    fault = await nvml.probe("A")
    assert fault  # loading it did not help
    assert not nvml.is_gone  # and would not help again

    driver.card_says = pynvml.NVML_SUCCESS
    assert await nvml.probe("A") == ""
    driver.card_says = code
    assert await nvml.probe("A") is None
    assert nvml.is_gone
    await nvml.close()


async def test_a_card_s_own_fault_is_its_own(driver: Driver) -> None:
    nvml = Nvml(lambda: "driver")
    driver.card_says = pynvml.NVML_ERROR_GPU_IS_LOST
    assert await nvml.probe("A") == "the card is lost"
    assert not nvml.is_gone
    await nvml.close()


async def test_what_somebody_still_waits_for_is_not_dropped(driver: Driver) -> None:
    nvml = Nvml(lambda: "driver", answer_seconds=0.01)
    await nvml.create_events()
    driver.wait_hangs = threading.Event()
    with pytest.raises(DriverError, match="has not answered"):
        await nvml.next_event(0)
    await nvml.drop_events()
    assert driver.freed == []

    driver.wait_hangs.set()
    while nvml._waiting.is_overdue:  # nobody else tells
        await nvml.watch_events("A")
    await nvml.drop_events()
    assert driver.freed == [1]
    await nvml.close()


def test_a_card_is_not_taken_for_watched_by_events_that_were_dropped_meanwhile(driver: Driver) -> None:
    """Else its faults would never be reported again, or it would count as broken."""
    events = EventSet()
    events.watch("A")  # dropped before it began
    assert not events.watches("A")

    for free_first in (False, True):
        events.create()
        driver.on_register = events.drop if free_first else events.forget
        events.watch("A")
        assert not events.watches("A")

    driver.on_register = None
    events.create()
    events.watch("A")
    assert events.watches("A")
    assert driver.registered[-1] == driver.sets
