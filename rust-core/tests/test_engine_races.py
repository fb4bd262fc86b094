"""Everything that changes a state, from many threads at once: what threads were told must be what is booked."""

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hami_engine import Card, Cluster, ContainerSlices, Placement, PodAsk, Slice

VENDOR = "NVIDIA"
NAMESPACE = "default"
NODES = "abcd"
CARDS_PER_NODE = 3
THREADS = 6
ROUNDS = 200

Cards = Callable[..., list[Card]]
Pod = Callable[..., PodAsk]


@pytest.fixture(autouse=True)
def quick_switches() -> Iterator[None]:
    """Lets threads change places as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def given(answer: Placement) -> Counter[tuple[str, str]]:
    """MiB by node and card."""
    held: Counter[tuple[str, str]] = Counter()
    for container in answer.containers:
        for share in container:
            held[answer.node, share.card_id] += share.memory_mib
    return held


def used(cluster: Cluster) -> Counter[tuple[str, str]]:
    return Counter(
        {
            (node, card.card_id): card.used_memory_mib
            for node in cluster.nodes()
            for card in cluster.node_cards(node)
            if card.used_memory_mib
        }
    )


def run(work: Callable[[int], Counter[tuple[str, str]]]) -> Counter[tuple[str, str]]:
    """What all threads hold in the end, by their own books."""
    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(work, range(THREADS)), Counter[tuple[str, str]]())


def test_books_of_the_threads_add_up_whatever_happens_to_nodes_and_quotas(
    empty_cluster: Callable[[], Cluster], cards: Cards, pod: Pod
) -> None:
    """Each thread works on pods of its own; nodes come and go, change their cards' memory, scores and health."""
    cluster = empty_cluster()

    def inventory(node: str, numbers: random.Random) -> tuple[list[Card], dict[str, dict[str, int]]]:
        found = cards(node, CARDS_PER_NODE, slots=6, memory_mib=numbers.choice([8_000, 10_000]))
        ids = [f"{node}-{number}" for number in range(CARDS_PER_NODE)]
        scores = {card: {peer: numbers.randrange(100) for peer in ids if peer != card} for card in ids}
        return found, scores if numbers.random() < 0.5 else {}

    def work(worker: int) -> Counter[tuple[str, str]]:
        numbers = random.Random(worker)  # noqa: S311
        book: dict[str, Counter[tuple[str, str]]] = {}
        for _ in range(ROUNDS):
            uid, node = f"{worker}-{numbers.randrange(8)}", numbers.choice(NODES)
            match numbers.randrange(12):
                case 0 | 1 | 2 | 3 | 4:
                    ask = (numbers.randint(1, 2), numbers.randint(1, 3000), numbers.choice([0, 10, 30]))
                    policy = numbers.choice(["spread", "binpack", "topology-aware", "binpack,topology-aware"])
                    answer = cluster.reserve(pod(uid, ask, card_policy=policy), list(NODES))
                    book.pop(uid, None)
                    if isinstance(answer, Placement):
                        book[uid] = given(answer)
                case 5:
                    share = Slice(card_id=f"{node}-1", vendor=VENDOR, memory_mib=100, cores_percent=1)
                    slices = [ContainerSlices(kind="app", slices=[share])]
                    cluster.charge(uid=uid, namespace=NAMESPACE, node=node, containers=slices)
                    book[uid] = Counter({(node, f"{node}-1"): 100})
                case 6 | 7:
                    assert cluster.release(uid) == (uid in book)
                    book.pop(uid, None)
                case 8:
                    assert cluster.confirm(uid) == (uid in book)
                case 9:
                    found, scores = inventory(node, numbers)
                    cluster.set_node(node, found, pair_scores=scores)
                case 10:
                    cluster.set_card_health(node, f"{node}-2", numbers.random() < 0.5)
                case _:
                    limit = numbers.choice([None, 20_000, 40_000])
                    cluster.set_quota(NAMESPACE, VENDOR, memory_mib=limit)
                    if numbers.random() < 0.1:
                        cluster.remove_node(node)
            assert cluster.booking(uid) is not None or uid not in book
            assert cluster.check_invariants() == []
        return sum(book.values(), Counter[tuple[str, str]]())

    expected = run(work)
    for node in NODES:
        cluster.set_node(node, cards(node, CARDS_PER_NODE))
    assert used(cluster) == expected
    assert cluster.quota_used(NAMESPACE, VENDOR)[0] == expected.total()
    assert cluster.check_invariants() == []


def test_a_quota_holds_against_all_threads(empty_cluster: Callable[[], Cluster], cards: Cards, pod: Pod) -> None:
    """Room for everything on the cards, but not in the quota."""
    cluster = empty_cluster()
    for node in NODES:
        cluster.set_node(node, cards(node, CARDS_PER_NODE, slots=100, memory_mib=1_000_000))
    limit = 5_000
    cluster.set_quota(NAMESPACE, VENDOR, memory_mib=limit)

    def work(worker: int) -> Counter[tuple[str, str]]:
        numbers = random.Random(worker)  # noqa: S311
        book: dict[str, Counter[tuple[str, str]]] = {}
        for _ in range(ROUNDS):
            uid = f"{worker}-{numbers.randrange(4)}"
            if numbers.random() < 0.7:
                answer = cluster.reserve(pod(uid, (numbers.randint(1, 2), numbers.randint(1, 900), 0)))
                book.pop(uid, None)
                if isinstance(answer, Placement):
                    book[uid] = given(answer)
            else:
                cluster.release(uid)
                book.pop(uid, None)
            assert cluster.quota_used(NAMESPACE, VENDOR)[0] <= limit
        return sum(book.values(), Counter[tuple[str, str]]())

    expected = run(work)
    assert expected.total() <= limit
    assert used(cluster) == expected


def test_a_card_that_a_thread_saw_fall_ill_is_not_given_to_it(
    empty_cluster: Callable[[], Cluster], cards: Cards, pod: Pod
) -> None:
    cluster = empty_cluster()
    for node in NODES:
        cluster.set_node(node, cards(node, THREADS, slots=1000, memory_mib=1_000_000))

    def work(worker: int) -> Counter[tuple[str, str]]:
        """Nobody else changes the health of this thread's cards."""
        for number in range(ROUNDS // 4):
            node = NODES[number % len(NODES)]
            ill = f"{node}-{worker}"
            assert cluster.set_card_health(node, ill, healthy=False)
            answer = cluster.reserve(pod(f"{worker}", (1, 1, 0)), [node])
            assert not isinstance(answer, Placement) or (node, ill) not in given(answer)
            assert cluster.set_card_health(node, ill, healthy=True)
        cluster.release(f"{worker}")
        return Counter()

    assert run(work) == Counter()
    assert used(cluster) == Counter()
    assert cluster.check_invariants() == []
