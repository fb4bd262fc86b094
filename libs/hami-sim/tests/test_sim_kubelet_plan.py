"""What a pod does next and what its status says, as values."""

import msgspec
import pytest
from hami_sim.kubelet.objects import Pod, decode_pod
from hami_sim.kubelet.pod_plan import ContainerState, Exit, Plan, final_phase, plan_deletion, plan_pod
from hami_sim.kubelet.pod_status import finished_status, live_status
from hypothesis import given
from hypothesis import strategies as st

NOW = 1_800_000_000.0


def pod(*apps: str, init: str = "", policy: str = "Always", deadline: int | None = None) -> Pod:
    """Init containers by letter; a capital one is a sidecar."""
    return msgspec.convert(
        {
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {
                "containers": [{"name": name} for name in apps],
                "initContainers": [
                    {"name": name, **({"restartPolicy": "Always"} if name.isupper() else {})} for name in init
                ],
                "restartPolicy": policy,
                "activeDeadlineSeconds": deadline,
            },
        },
        Pod,
    )


def states(**given: str) -> dict[str, ContainerState]:
    """`new`, `up`, or an exit code."""
    found = {}
    for name, word in given.items():
        state = ContainerState(name=name)
        if word != "new":
            state.started(NOW - 10)
        if word not in ("new", "up"):
            state.ended(Exit(int(word), NOW - 10, NOW - 5, "Error"), 1.0)
            state.waiting_reason = ""
        found[name] = state
    return found


@pytest.mark.parametrize(
    ("given_pod", "given_states", "plan"),
    [
        pytest.param(pod("a", "b"), {"a": "new", "b": "new"}, Plan(start=("a", "b")), id="all start"),
        pytest.param(pod("a"), {"a": "up"}, Plan(), id="nothing to do"),
        pytest.param(pod("a"), {"a": "0"}, Plan(start=("a",)), id="always starts again, at once the first time"),
        pytest.param(pod("a", policy="OnFailure"), {"a": "0"}, Plan(finished="Succeeded"), id="done"),
        pytest.param(pod("a", policy="OnFailure"), {"a": "3"}, Plan(start=("a",)), id="once more"),
        pytest.param(pod("a", "b", policy="Never"), {"a": "0", "b": "up"}, Plan(), id="the other still runs"),
        pytest.param(pod("a", "b", policy="Never"), {"a": "0", "b": "1"}, Plan(finished="Failed"), id="one failed"),
        pytest.param(pod("a", init="ij"), {"i": "new", "j": "new", "a": "new"}, Plan(start=("i",)), id="first init"),
        pytest.param(pod("a", init="ij"), {"i": "up", "j": "new", "a": "new"}, Plan(), id="init runs"),
        pytest.param(pod("a", init="ij"), {"i": "0", "j": "new", "a": "new"}, Plan(start=("j",)), id="second init"),
        pytest.param(pod("a", init="ij"), {"i": "0", "j": "0", "a": "new"}, Plan(start=("a",)), id="init done"),
        pytest.param(pod("a", init="i"), {"i": "2", "a": "new"}, Plan(start=("i",)), id="init again"),
        pytest.param(
            pod("a", init="i", policy="Never"), {"i": "2", "a": "new"}, Plan(finished="Failed"), id="init failed"
        ),
        pytest.param(pod("a", init="Sj"), {"S": "new", "j": "new", "a": "new"}, Plan(start=("S",)), id="sidecar first"),
        pytest.param(pod("a", init="Sj"), {"S": "up", "j": "new", "a": "new"}, Plan(start=("j",)), id="then the next"),
        pytest.param(
            pod("a", init="Sj"), {"S": "1", "j": "up", "a": "new"}, Plan(start=("S",)), id="sidecar back in init"
        ),
        pytest.param(pod("a", init="S"), {"S": "1", "a": "up"}, Plan(start=("S",)), id="sidecar back"),
        pytest.param(
            pod("a", init="ST", policy="Never"),
            {"S": "up", "T": "up", "a": "0"},
            Plan(stop=("T",)),
            id="last sidecar ends first",
        ),
        pytest.param(
            pod("a", init="S", policy="Never"),
            {"S": "7", "a": "0"},
            Plan(finished="Succeeded"),
            id="a sidecar's code does not count",
        ),
        pytest.param(pod("a", init="i"), {"i": "new", "a": "up"}, Plan(), id="init is history once the others ran"),
    ],
)
def test_what_comes_next(given_pod, given_states, plan):
    assert plan_pod(given_pod, states(**given_states), NOW - 100, NOW) == plan


def test_a_deadline_ends_everything():
    limited = pod("a", deadline=60)

    assert plan_pod(limited, states(a="up"), NOW - 59, NOW).wake_at == NOW + 1
    over = plan_pod(limited, states(a="up"), NOW - 60, NOW)
    assert (over.stop, over.reason) == (("a",), "DeadlineExceeded")
    ended = plan_pod(limited, states(a="0"), NOW - 60, NOW)
    assert (ended.finished, ended.reason) == ("Failed", "DeadlineExceeded")


def test_back_off_grows_and_is_forgotten():
    state = ContainerState(name="a")
    rests = []
    at = NOW
    for _ in range(8):
        state.started(at)
        state.ended(Exit(1, at, at + 1, "Error"), 1.0)
        rests.append(state.startable_at() - (at + 1))
        at = state.startable_at()
    assert rests == [0, 10, 20, 40, 80, 160, 300, 300]

    state.started(at)
    state.ended(Exit(1, at, at + 601, "Error"), 1.0)
    assert state.startable_at() == at + 601


def test_a_start_that_failed_waits():
    given_states = states(a="new")
    given_states["a"].not_started("CreateContainerConfigError", "no", NOW, 1.0)

    assert plan_pod(pod("a"), given_states, NOW, NOW) == Plan(wake_at=NOW + 10)
    assert plan_pod(pod("a"), given_states, NOW, NOW + 10) == Plan(start=("a",))


def test_deletion_ends_sidecars_last_and_backwards():
    given_pod = pod("a", "b", init="iST")

    assert plan_deletion(given_pod, states(i="0", S="up", T="up", a="up", b="0")) == ("a",)
    assert plan_deletion(given_pod, states(i="0", S="up", T="up", a="0", b="0")) == ("T",)
    assert plan_deletion(given_pod, states(i="0", S="up", T="0", a="0", b="0")) == ("S",)
    assert plan_deletion(given_pod, states(i="0", S="0", T="0", a="0", b="0")) == ()
    assert plan_deletion(given_pod, states(i="up", S="up", T="new", a="new", b="new")) == ("i",)


WORDS = st.sampled_from(["new", "up", "0", "1"])


@given(WORDS, WORDS, WORDS, WORDS, st.sampled_from(["Always", "OnFailure", "Never"]))
def test_no_plan_starts_what_runs_or_ends_while_something_runs(i, s, a, b, policy):
    given_states = states(i=i, S=s, a=a, b=b)
    plan = plan_pod(pod("a", "b", init="iS", policy=policy), given_states, NOW - 100, NOW)

    assert not any(given_states[name].running for name in plan.start)
    assert all(given_states[name].running for name in plan.stop)
    if plan.finished:
        assert not any(state.running for state in given_states.values())
        assert plan.finished == final_phase(pod("a", "b", init="iS"), given_states)
    if not (plan.start or plan.stop or plan.finished):
        assert any(state.running for state in given_states.values())


@pytest.mark.parametrize(
    ("given_states", "phase", "initialized"),
    [
        ({"i": "new", "S": "new", "a": "new", "b": "new"}, "Pending", "False"),
        ({"i": "0", "S": "new", "a": "new", "b": "new"}, "Pending", "False"),
        ({"i": "0", "S": "up", "a": "new", "b": "new"}, "Pending", "True"),
        ({"i": "0", "S": "up", "a": "up", "b": "new"}, "Pending", "True"),
        ({"i": "0", "S": "up", "a": "up", "b": "up"}, "Running", "True"),
        ({"i": "0", "S": "up", "a": "up", "b": "1"}, "Running", "True"),
    ],
)
def test_phases_of_a_living_pod(given_states, phase, initialized):
    status = live_status(pod("a", "b", init="iS"), states(**given_states), NOW, "10.0.0.1", NOW)

    assert status["phase"] == phase
    conditions = {c["type"]: c["status"] for c in status["conditions"]}
    assert conditions["Initialized"] == initialized
    ready = given_states["S"] == "up" and (given_states["a"], given_states["b"]) == ("up", "up")
    assert conditions["Ready"] == conditions["ContainersReady"] == str(ready)


def test_a_finished_pod_shows_how_its_containers_ended():
    given_states = states(a="0", b="3")
    status = finished_status(
        pod("a", "b"),
        given_states,
        phase="Failed",
        started_at=NOW,
        node_address="10.0.0.1",
        now=NOW,
        reason="DeadlineExceeded",
        message="late",
    )

    codes = [one["state"]["terminated"]["exitCode"] for one in status["containerStatuses"]]
    assert (codes, status["phase"], status["reason"]) == ([0, 3], "Failed", "DeadlineExceeded")


def test_conditions_keep_their_time_while_they_do_not_change():
    living = pod("a")
    living.status.conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]

    conditions = live_status(living, states(a="up"), NOW, "10.0.0.1", NOW)["conditions"]

    times = {c["type"]: c["lastTransitionTime"] for c in conditions}
    assert times["Ready"] == "2026-01-01T00:00:00Z"
    assert times["Initialized"] == "2027-01-15T08:00:00Z"


@given(st.binary(max_size=100))
def test_any_bytes_are_a_pod_or_a_decode_error(raw):
    try:
        decode_pod(raw)
    except msgspec.DecodeError:
        return
