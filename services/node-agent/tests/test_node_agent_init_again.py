"""Init containers that run again when what they held went to others: they wait, and never block each other."""

from __future__ import annotations

import msgspec
import pytest
from hami_model import kube
from hami_model.cards import Card
from hami_model.ids import CardId
from hami_model.usage import CardUsage
from hami_node_agent.core.entitlement import Claim
from hami_node_agent.core.init_again import RunningAgain, is_init_s_turn, no_room
from hypothesis import given
from hypothesis import strategies as st

A = CardId("GPU-a")
CARDS = {A: Card(id=A, slots=10, memory_mib=100, cores_percent=100, model="any", healthy=True)}


def used(memory: int) -> dict[CardId, CardUsage]:
    return {A: CardUsage(memory_mib=memory, slots=1)}


def claim(uid: str, app: int, init: int | None = None, *, handed_out: bool = True) -> Claim:
    """`init`: while its init containers run again."""
    with_init = None if init is None else used(init)
    return Claim(uid=uid, usage=used(app), with_init=with_init, handed_out=handed_out, bound_at=1)


@pytest.mark.parametrize(
    ("others", "again", "waits"),
    [
        pytest.param([], (), False, id="alone"),
        pytest.param([claim("b", 40)], (), False, id="beside one that leaves room"),
        pytest.param([claim("b", 41)], (), True, id="what it held went to another"),
        pytest.param([claim("b", 41, handed_out=False)], (), False, id="the other has nothing yet"),
        pytest.param([claim("b", 10, 90)], (), False, id="the other's init containers wait, too"),
        pytest.param([claim("b", 10, 90)], ("b",), True, id="the other's init containers run"),
        pytest.param([claim("me", 90)], (), False, id="it is no other to itself"),
    ],
)
def test_an_init_container_that_runs_again_waits_until_there_is_room(
    others: list[Claim], again: tuple[str, ...], waits: bool
) -> None:
    assert bool(no_room("me", used(60), others, again, CARDS)) is waits


@given(st.lists(st.tuples(st.integers(0, 25), st.integers(25, 100)), min_size=1, max_size=4), st.randoms())
def test_after_a_reboot_all_get_through_one_after_the_other_and_never_too_many(
    sizes: list[tuple[int, int]], rng: object
) -> None:
    """Apps fit together, and each fitted beside the others' apps; all init containers begin at once."""
    apps = sum(app for app, _ in sizes)
    claims = {str(n): claim(str(n), app, min(init, 100 - apps + app)) for n, (app, init) in enumerate(sizes)}
    waiting, running = list(claims), set()
    while waiting:
        rng.shuffle(waiting)  # type: ignore[attr-defined]
        let_through = [
            uid for uid in waiting if not no_room(uid, claims[uid].with_init or {}, claims.values(), running, CARDS)
        ]
        assert let_through or running, "they wait for each other"
        running |= set(let_through[:1])
        waiting = [uid for uid in waiting if uid not in running]
        needed = sum(
            ((found.with_init or {}) if uid in running else found.usage)[A].memory_mib for uid, found in claims.items()
        )
        assert needed <= 100
        if not let_through:
            running.clear()


def pod(*, done: bool, run: int = 1, version: int = 1, app: str = "waiting") -> kube.Pod:
    state = {"terminated": {"exitCode": 0}} if done else {"waiting": {}}
    return kube_pod(
        {
            "metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": str(version)},
            "spec": {
                "initContainers": [{"name": "i0"}, {"name": "side", "restartPolicy": "Always"}],
                "containers": [{"name": "c0"}],
            },
            "status": {
                "initContainerStatuses": [{"name": "i0", "state": state, "containerID": f"x://{run}"}],
                "containerStatuses": [{"name": "c0", "state": {app: {}}}],
            },
        }
    )


def kube_pod(document: object) -> kube.Pod:
    return msgspec.convert(document, kube.Pod)


@pytest.mark.parametrize(
    ("done", "app", "containers", "init"),
    [
        pytest.param(False, "waiting", ["i0"], True, id="the init container alone holds the ids"),
        pytest.param(True, "running", ["i0"], True, id="also when the status is still of the earlier sandbox"),
        pytest.param(False, "waiting", ["i0", "c0"], True, id="both hold them and the init container has not ended"),
        pytest.param(True, "terminated", ["i0", "c0"], False, id="both hold them and the app container has ended"),
        pytest.param(
            True, "running", ["i0", "c0"], True, id="both hold them and the status is older than the question"
        ),
        pytest.param(True, "running", ["side"], False, id="a sidecar stays"),
    ],
)
def test_whose_turn_it_is(done: bool, app: str, containers: list[str], init: bool) -> None:
    assert is_init_s_turn(pod(done=done, app=app), containers) is init


def test_a_pod_needs_its_larger_part_until_its_init_container_ended_once_more() -> None:
    again = RunningAgain()
    again.let_through(pod(done=True, app="running"))
    assert again.among([pod(done=True, app="running")]) == {"u"}, "the status is still of the earlier sandbox"
    assert again.among([pod(done=False, run=2, version=2)]) == {"u"}
    assert again.among([pod(done=True, run=2, version=3)]) == frozenset()
    assert again.among([pod(done=False, run=3, version=4)]) == frozenset(), "it waits, and holds only its app's part"


def test_an_app_container_that_was_taken_for_its_init_container_is_seen_to_run() -> None:
    """Its status came late: the init container had ended before the app container was asked for a second time."""
    again = RunningAgain()
    again.let_through(pod(done=False))
    assert again.among([pod(done=True, version=2)]) == {"u"}
    assert again.among([pod(done=True, version=3, app="running")]) == frozenset()


def test_after_a_restart_of_the_agent_the_status_tells_who_is_at_work() -> None:
    running = pod(done=False)
    status = {"name": "i0", "state": {"running": {}}}
    at_work = kube_pod(
        {
            "metadata": {"uid": "u"},
            "spec": {"initContainers": [{"name": "i0"}]},
            "status": {"initContainerStatuses": [status]},
        }
    )
    assert RunningAgain().among([running]) == frozenset()
    assert RunningAgain().among([at_work]) == {"u"}
