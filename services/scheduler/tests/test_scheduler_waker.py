"""A rejected pod is woken at most once in its time, whatever became of it in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from hami_model import device_config, kube, requests
from hami_scheduler.adapters.waker import Waker
from hami_scheduler.core.ledger import Ledger
from hami_scheduler.core.waking import RejectedPod
from hami_scheduler.metrics import SchedulerMetrics
from hami_sim.manual_clock import ManualClock
from prometheus_client import CollectorRegistry
from scheduler_builders import node, pod
from scheduler_service import eventually


class Chores:
    """Takes the wakes down instead of patching pods."""

    def __init__(self) -> None:
        self.woken: list[str] = []

    def wake(self, *, namespace: str, name: str, uid: str, value: str, gone: Callable[[], None]) -> None:  # noqa: ARG002
        self.woken.append(name)


def rejected(ledger: Ledger, name: str, memory: int) -> RejectedPod:
    asked = msgspec.convert(pod(name, memory=memory), kube.Pod)
    request = requests.pod_request(asked, ledger.config, ledger.policies)
    return RejectedPod(request=request, candidates=("n1",))


async def test_a_pod_that_was_tried_meanwhile_is_not_woken_again_in_its_time() -> None:
    clock, chores = ManualClock(), Chores()
    ledger = Ledger(device_config.default_config())
    ledger.upsert_node(msgspec.convert(node("n1"), kube.Node), clock.now())
    fits, never = rejected(ledger, "fits", 1000), rejected(ledger, "never", 90_000)
    waiting = {pod.uid: pod for pod in (fits, never)}
    looks: list[bool] = []

    def in_charge() -> bool:
        looks.append(True)
        return True

    waker = Waker(
        ledger.cluster,
        waiting,
        chores,  # type: ignore[arg-type]
        metrics=SchedulerMetrics(CollectorRegistry()),
        clock=clock,
        wake_seconds=3600.0,
        in_charge=in_charge,
    )

    async def capacity_grows() -> None:
        """Returns when the waker looks; the look before has ended then."""
        before = len(looks)
        waker.capacity_grew("test", watched=False)
        await clock.wait_for_sleepers(1)
        clock.advance(0.02)
        await eventually(lambda: len(looks) > before)

    running = asyncio.create_task(waker.run())
    try:
        await capacity_grows()
        await eventually(lambda: chores.woken == ["fits"])
        del waiting[fits.uid]  # kube-scheduler tries it
        await capacity_grows()
        await capacity_grows()
        waiting[fits.uid] = fits  # and no node fits
        await capacity_grows()
        await eventually(lambda: bool(clock.sleeping) or len(chores.woken) > 1)  # it is put off
        assert chores.woken == ["fits"]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
