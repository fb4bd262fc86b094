"""What would have placed a rejected pod: looked for off the path of decisions, and bounded."""

from __future__ import annotations

import asyncio

import hami_engine as engine
from hami_chassis.clock import SystemClock
from hami_model import device_config, requests
from hami_scheduler.adapters.advisor import WAITING_MAX, Advisor
from hami_scheduler.core.advice import Case, Looked
from hami_scheduler.core.ledger import Ledger
from scheduler_builders import node, pod
from test_scheduler_core import NOW, as_node, as_pod


def book() -> tuple[Ledger, Case]:
    ledger = Ledger(device_config.default_config())
    ledger.upsert_node(as_node(node("n1")), NOW)
    request = requests.pod_request(as_pod(pod("p", memory=20_000)), ledger.config, ledger.policies)
    return ledger, Case(request, ("n1",))


async def test_advice_follows_in_the_order_of_the_questions() -> None:
    ledger, case = book()
    advisor = Advisor(ledger.cluster, clock=SystemClock())
    told: list[str] = []
    done = asyncio.Event()

    def tell(looked: Looked) -> None:
        told.append(looked.sentence(ledger))
        if len(told) == 2:
            done.set()

    assert advisor.take(case, tell)
    assert advisor.take(case, tell)
    running = asyncio.create_task(advisor.run())
    await done.wait()
    running.cancel()
    sentence = (
        "fits on none of 1 nodes: container main asks for 20,000 MiB of each NVIDIA card; no card that it may use has "
        "more than 10,000 MiB; 20,000 MiB asked; 10,000 free on card n1-0 of n1; would fit on n1 (card n1-0) if "
        "container main asked NVIDIA for at most 10,000 MiB of each card (asks 20,000)"
    )
    assert told == [sentence, sentence]


def test_what_waits_is_bounded() -> None:
    ledger, case = book()
    advisor = Advisor(ledger.cluster, clock=SystemClock())
    taken = [advisor.take(case, lambda _looked: None) for _ in range(WAITING_MAX + 3)]
    assert taken.count(True) == WAITING_MAX


def test_a_pod_that_fits_by_now_needs_no_advice() -> None:
    ledger, case = book()
    ledger.upsert_node(as_node(node("n2", [])), NOW)
    empty = engine.Cluster(families=[])
    assert case.look(empty).sentence(ledger) == "fits on none of 1 nodes: none has registered cards"
    request = requests.pod_request(as_pod(pod("q", memory=100)), ledger.config, ledger.policies)
    assert Case(request, ("n1",)).look(ledger.cluster).sentence(ledger) == ""
