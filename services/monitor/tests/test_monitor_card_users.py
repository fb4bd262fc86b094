"""Who uses a card by right, and who is told of as out of band."""

from __future__ import annotations

import pytest
from hami_model import events
from hami_monitor.core.announcements import out_of_band_events, usage_events
from hami_monitor.core.card_users import KINDS
from hami_monitor.core.container_folder import FolderOwner
from hami_monitor.core.host import HostProcess
from hami_monitor.core.pods import MonitoredPod
from hami_monitor.core.process_trace import ProcessKey, ProcessTrace
from hami_monitor.core.sample import Sample
from hami_monitor.core.series import own_series
from monitor_builders import CARD_A, CARD_B, NODE, host_card, pod, sample, trace_of

PID = 5
KEY = ProcessKey(PID, 100)
MAIN = FolderOwner(pod_uid="uid-p", container="main")
ON_B = f"{CARD_B},NVIDIA,3000,30:;"
INSTANCE = f"{CARD_A},NVIDIA,4864,14:;"


def told(trace: ProcessTrace | None, found: MonitoredPod, *, suspected: tuple[ProcessKey, ...] = ()) -> Sample:
    return sample(
        [found],
        cards=[host_card(CARD_A, 0, HostProcess(pid=PID, memory_used_bytes=700))],
        traces={PID: trace} if trace is not None else {0: trace_of(None, 0)},
        suspected_out_of_band=suspected,
    )


@pytest.mark.parametrize(
    ("trace", "found", "kind", "name"),
    [
        pytest.param(trace_of(MAIN, PID), pod(), "slice", "p", id="its pod's slice"),
        pytest.param(trace_of(None, PID, cgroup_pod_uid="uid-p"), pod(), "slice", "p", id="by its control group"),
        pytest.param(trace_of(MAIN, PID), pod(allocated=INSTANCE), "slice", "p", id="an instance of the card"),
        pytest.param(trace_of(MAIN, PID), pod(allocated=ON_B), "other-pod", "p", id="a slice of another card"),
        pytest.param(trace_of(MAIN, PID), pod(allocated=""), "other-pod", "p", id="a pod without slices"),
        pytest.param(trace_of(MAIN, PID), pod(phase="Succeeded"), "other-pod", "p", id="a pod that is over"),
        pytest.param(trace_of(None, PID, cgroup_pod_uid="gone"), pod(), "other-pod", None, id="a pod nobody knows"),
        pytest.param(trace_of(None, PID), pod(), "host", None, id="no pod's"),
        pytest.param(None, pod(), "unknown", None, id="not seen"),
    ],
)
def test_whose_a_process_is(trace: ProcessTrace | None, found: MonitoredPod, kind: str, name: str | None) -> None:
    taken = told(trace, found)
    user = taken.cards[0].users[PID]
    assert (user.kind, user.pod.name if user.pod is not None else None) == (kind, name)
    series = {(spec.name, labels[3:]): value for spec, labels, value in own_series(taken)}
    for each in KINDS:
        assert series["hami_card_processes", (each,)] == (1 if each == kind else 0)
        assert series["hami_card_process_memory_bytes", (each,)] == (700 if each == kind else 0)
    assert taken.out_of_band.suspects == (frozenset({KEY}) if kind in ("other-pod", "host") else frozenset())


def test_it_is_told_when_two_samples_say_so_and_once() -> None:
    assert told(trace_of(None, PID), pod()).out_of_band.processes == ()
    taken = told(trace_of(None, PID), pod(), suspected=(KEY,))
    (event,) = out_of_band_events(taken, told=(), source="/m")
    assert (event.user, event.pid, event.process, event.pod) == ("host", PID, "app", None)
    assert event.cards == (events.CardMemory(card_id=CARD_A, memory_used_bytes=700),)
    assert event.subject() == f"hami.v1.usage-node.{NODE}.out-of-band"
    assert list(out_of_band_events(taken, told=(KEY,), source="/m")) == []


def test_one_process_on_two_cards_is_one_event() -> None:
    process = HostProcess(pid=PID, memory_used_bytes=7)
    taken = sample(
        cards=[host_card(CARD_A, 0, process), host_card(CARD_B, 1, process)],
        traces={PID: trace_of(None, PID)},
        suspected_out_of_band=(KEY,),
    )
    (event,) = out_of_band_events(taken, told=(), source="/m")
    assert [card.card_id for card in event.cards] == [CARD_A, CARD_B]


def test_the_sample_of_the_cards_says_it_of_each_process() -> None:
    (usage,) = (
        event
        for event in usage_events(told(trace_of(MAIN, PID), pod(allocated=ON_B)), source="/m")
        if isinstance(event, events.UsageNodeSampled)
    )
    (process,) = usage.cards[0].processes
    assert (process.user, process.used_by.name if process.used_by else None) == ("other-pod", "p")


def test_memory_that_the_driver_does_not_tell_by_process_has_no_series() -> None:
    taken = sample(cards=[host_card(CARD_A, 0, HostProcess(pid=PID))], traces={PID: trace_of(None, PID)})
    found = {(spec.name, labels[3:]) for spec, labels, _ in own_series(taken)}
    assert ("hami_card_processes", ("host",)) in found
    assert ("hami_card_process_memory_bytes", ("host",)) not in found
    assert ("hami_card_process_memory_bytes", ("slice",)) in found
