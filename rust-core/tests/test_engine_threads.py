"""Many threads over one state: nothing is given twice, nobody waits for the interpreter with the state in hand."""

import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hami_engine import Placement

THREADS = 8
ROUNDS = 150
LONG_CALLS = 20


@pytest.fixture
def quick_switches():
    """Lets threads change places as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def no_switches():
    """A thread runs on until it lets go of the interpreter by itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e4)
    yield
    sys.setswitchinterval(before)


def overcommitted(cluster):
    return [
        card.card_id
        for node in cluster.nodes()
        for card in cluster.node_cards(node)
        if card.used_memory_mib > card.memory_mib
        or card.used_cores_percent > card.cores_percent
        or card.used_slots > card.slots
    ]


@pytest.mark.usefixtures("quick_switches")
def test_threads_never_share_out_a_card_twice(cards, pod, empty_cluster):
    cluster = empty_cluster()
    for node in "abcd":
        cluster.set_node(node, cards(node, 3, slots=4))
    faults: list[object] = []

    def work(worker: int) -> int:
        numbers = random.Random(worker)  # noqa: S311
        placed = 0
        for number in range(ROUNDS):
            uid = f"{worker}-{numbers.randrange(6)}"
            step = numbers.randrange(10)
            if step < 5:
                ask = (numbers.randint(1, 2), numbers.randint(1, 6000), numbers.choice([0, 30, 100]))
                answer = cluster.reserve(pod(uid, ask), ["a", "b", "c", "d", "x"])
                if isinstance(answer, Placement):
                    placed += 1
                    # Nobody else touches this thread's pods.
                    held = {one.card_id: one.memory_mib for one in answer.containers[0]}
                    if {card: amount[0] for card, amount in cluster.booked(uid).items()} != held:
                        faults.append((uid, "booked other than placed"))
            elif step < 8:
                cluster.release(uid)
            elif step == 8:
                cluster.what_if(pod(uid, (1, 500, 0)))
                cluster.set_node("a", cards("a", 3, slots=4))
            else:
                cluster.explain(pod(uid, (1, 500, 0)))
            if number % 10 == 0:
                faults.extend(overcommitted(cluster))
                faults.extend(cluster.check_invariants())
        return placed

    with ThreadPoolExecutor(THREADS) as pool:
        placed = list(pool.map(work, range(THREADS)))
    assert faults == []
    assert sum(placed) > 0
    assert cluster.check_invariants() == []


@pytest.mark.usefixtures("quick_switches")
def test_one_slice_goes_to_one_of_many_threads(cards, pod, empty_cluster):
    cluster = empty_cluster()
    cluster.set_node("a", cards("a", 1))
    start = threading.Barrier(THREADS)

    def work(worker: int) -> bool:
        start.wait()
        return isinstance(cluster.reserve(pod(str(worker), (1, 6000, 0))), Placement)

    with ThreadPoolExecutor(THREADS) as pool:
        assert sum(pool.map(work, range(THREADS))) == 1


@pytest.mark.usefixtures("no_switches")
def test_long_calls_let_other_threads_run(cards, pod, empty_cluster):
    cluster = empty_cluster()
    for number in range(2000):
        cluster.set_node(f"node-{number}", cards(f"node-{number}", 8))
    # Outside these calls the worker never lets go of the interpreter, so what runs meanwhile runs within one of them:
    # the first, unless the machine is busy.
    asked = pod("p", (1, 100, 0))
    running = threading.Event()
    ended: list[int] = []

    def work() -> None:
        running.set()
        ended.extend(len(cluster.explain(asked).nodes) for _ in range(LONG_CALLS))

    worker = threading.Thread(target=work)
    worker.start()
    running.wait()
    ended_before = len(ended)
    # The state is held by `explain`: this waits for it without holding the interpreter.
    answer = cluster.reserve(pod("q", (1, 100, 0)))
    worker.join()
    assert ended_before < LONG_CALLS
    assert ended == [2000] * LONG_CALLS
    assert isinstance(answer, Placement)
