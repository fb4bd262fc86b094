"""Which processes no library holds to their slice, and which it cannot be said of."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from hami_model.cards import MigPlacement, Slice
from hami_model.ids import CardId
from hami_model.limits_page import CardLimits, Control, LimitsPage
from hami_monitor.core.container_folder import FolderOwner, FolderReading
from hami_monitor.core.enforcement import EnforcedBy, enforced_by, owner_of_process
from hami_monitor.core.host import HostProcess
from hami_monitor.core.pods import MonitoredPod
from hami_monitor.core.process_trace import ProcessKey, ProcessTrace
from hami_monitor.core.region import Region
from hami_monitor.core.sample import Sample
from hami_monitor.core.series import own_series
from monitor_builders import (
    CARD_A,
    CARD_B,
    Slot,
    folder,
    host_card,
    our_region,
    pod,
    region,
    sample,
    trace_of,
)

PID, BEGAN = 4242, 100
MAIN = FolderOwner(pod_uid="uid-p", container="main")
BOTH = f"{CARD_A},NVIDIA,3000,30:;{CARD_B},NVIDIA,1000,0:;"
FIRST_ONLY = f"{CARD_A},NVIDIA,3000,30:;;"
ID = "0123456789abcdef" * 4
NO_CARD = pod(allocated=";")


def seen(
    trace: ProcessTrace | None,
    *folders: FolderReading,
    of: MonitoredPod | None = None,
    suspected: bool = True,
    began: int = BEGAN,
    pages: Mapping[FolderOwner, LimitsPage] | None = None,
) -> Sample:
    """A sample with process 4242 on card A, that was suspected in the one before."""
    return sample(
        [of or pod()],
        folders,
        [host_card(CARD_A, 0, HostProcess(pid=PID, memory_used_bytes=7)), host_card(CARD_B, 1)],
        traces={PID: trace} if trace is not None else {},
        suspected=[ProcessKey(PID, began)] if suspected else [],
        pages=pages,
    )


def reasons(found: Sample) -> list[tuple[str, str]]:
    return [(process.container, process.reason) for process in found.enforcement.unheld]


@pytest.mark.parametrize(
    ("trace", "slot"),
    [
        pytest.param(trace_of(MAIN, PID), Slot(pid=PID, began=BEGAN), id="one pid everywhere"),
        pytest.param(trace_of(MAIN, PID, pids=(PID, 17)), Slot(pid=17, began=BEGAN), id="the container's pid"),
        pytest.param(trace_of(MAIN, PID, pids=(PID, 9, 17)), Slot(pid=17, began=BEGAN), id="namespaces in namespaces"),
        pytest.param(trace_of(MAIN, PID), Slot(pid=17, host_pid=PID, began=BEGAN), id="the host's pid, as told"),
        pytest.param(trace_of(MAIN, PID), Slot(pid=PID), id="the slot does not say when it began"),
    ],
)
def test_who_has_a_slot_is_held(trace: ProcessTrace, slot: Slot) -> None:
    found = seen(trace, folder(found=our_region([Slot(pid=1), slot])))
    assert reasons(found) == []
    assert found.enforcement.suspects == frozenset()


def test_the_regions_of_other_libraries_do_not_say_when_a_process_began() -> None:
    assert reasons(seen(trace_of(MAIN, PID), folder(found=region(slots=[Slot(pid=PID, began=1)])))) == []


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        pytest.param(folder(found=our_region()), "no-slot", id="nobody has a slot"),
        pytest.param(folder(found=our_region([Slot(pid=17, began=BEGAN)])), "no-slot", id="another has one"),
        pytest.param(folder(found=our_region([Slot(pid=PID, began=99)])), "no-slot", id="who had this pid before"),
        pytest.param(folder(found=our_region([Slot(pid=PID, began=BEGAN, status=0)])), "no-slot", id="it was freed"),
        pytest.param(folder(), "no-region", id="the library never ran"),
        pytest.param(folder("other", found=our_region([Slot(pid=PID, began=BEGAN)])), "no-region", id="a foreign one"),
        pytest.param(folder(problem="cut short"), "region-unreadable", id="the region is nonsense"),
    ],
)
def test_who_has_no_slot_is_told_of_with_the_reason(found: FolderReading, reason: str) -> None:
    told = seen(trace_of(MAIN, PID), found)
    assert reasons(told) == [("main", reason)]
    (process,) = told.enforcement.unheld
    assert (process.key, process.name, process.pod.name) == (ProcessKey(PID, BEGAN), "app", "p")
    assert process.memory_bytes == {CARD_A: 7}


def test_a_container_that_was_opted_out_is_told_as_such() -> None:
    of = pod(opted_out=["main"])
    found = seen(trace_of(MAIN, PID), folder(), of=of)
    assert reasons(found) == [("main", "opted-out")]
    assert [process.control_from for process in found.enforcement.unheld] == ["pod"]


@pytest.mark.parametrize(
    ("control", "opted_out", "reason"),
    [
        pytest.param(Control.HELD, ["main"], "no-region", id="the operator did not allow it"),
        pytest.param(Control.DISABLED, [], "opted-out", id="switched off since"),
        pytest.param(Control.HELD, [], "no-region", id="held"),
    ],
)
def test_where_there_is_a_limits_page_it_alone_says_whether_the_library_holds(
    control: Control, opted_out: list[str], reason: str
) -> None:
    page = LimitsPage(region_file="/a.cache", cards=(), control=control)
    found = seen(trace_of(MAIN, PID), folder(), of=pod(opted_out=opted_out), pages={MAIN: page})
    assert reasons(found) == [("main", reason)]
    assert [process.control_from for process in found.enforcement.unheld] == ["page"]


@pytest.mark.parametrize(
    ("trace", "of"),
    [
        pytest.param(None, None, id="it ended, or /proc is not the host's"),
        pytest.param(trace_of(None, PID), None, id="a process outside the pods"),
        pytest.param(trace_of(FolderOwner(pod_uid="uid-x", container="main"), PID), None, id="a pod of nobody"),
        pytest.param(trace_of(MAIN, PID), NO_CARD, id="a container without a slice"),
        pytest.param(trace_of(MAIN, PID), pod(phase="Succeeded"), id="a pod that has finished"),
        pytest.param(
            trace_of(FolderOwner(pod_uid="uid-p", container="side"), PID),
            pod(allocated=FIRST_ONLY, containers=("main", "side")),
            id="another container of the pod, without a slice",
        ),
        pytest.param(trace_of(MAIN, PID), pod(allocated=f"{CARD_A},Ascend910B,3000,30:;"), id="another family's slice"),
    ],
)
def test_of_whom_nothing_is_said(trace: ProcessTrace | None, of: MonitoredPod | None) -> None:
    assert seen(trace, folder(), of=of).enforcement.suspects == frozenset()


def test_an_instance_of_a_card_in_mig_mode_is_held_by_the_hardware() -> None:
    plain = pod()
    (main,) = plain.containers
    held = tuple(msgspec.structs.replace(one, profile="1g.5gb") for one in main.slices)
    of = msgspec.structs.replace(plain, containers=(msgspec.structs.replace(main, slices=held),))
    assert seen(trace_of(MAIN, PID), folder(), of=of).enforcement.suspects == frozenset()


def test_one_sample_is_not_enough() -> None:
    first = seen(trace_of(MAIN, PID), folder(), suspected=False)
    assert reasons(first) == []
    assert first.enforcement.suspects == {ProcessKey(PID, BEGAN)}
    reused = seen(trace_of(MAIN, PID), folder(), began=99)
    assert reasons(reused) == [], "another process had this pid then"


def test_where_only_the_pod_is_known_any_of_its_slots_will_do() -> None:
    of = pod(allocated=BOTH, containers=("a", "b"))
    trace = trace_of(None, PID, cgroup_pod_uid="uid-p")
    slot = our_region([Slot(pid=PID, began=BEGAN)])
    assert reasons(seen(trace, folder(container="b", found=slot), folder(container="a"), of=of)) == []
    assert reasons(seen(trace, folder(container="a"), of=of)) == [("", "no-region")]


def test_where_only_one_container_has_a_slice_it_is_that_one() -> None:
    of = pod(allocated=FIRST_ONLY, containers=("main", "side"))
    assert reasons(seen(trace_of(None, PID, cgroup_pod_uid="uid-p"), folder(), of=of)) == [("main", "no-region")]


@pytest.mark.parametrize(
    ("trace", "owner"),
    [
        pytest.param(trace_of(MAIN, PID), MAIN, id="by what it maps or has mounted"),
        pytest.param(trace_of(MAIN, PID, cgroup_pod_uid="uid-p"), MAIN, id="and the control group agrees"),
        pytest.param(trace_of(MAIN, PID, cgroup_pod_uid="uid-ci"), MAIN, id="a control group of no pod of the node"),
        pytest.param(
            trace_of(FolderOwner(pod_uid="uid-victim", container="main"), PID, cgroup_pod_uid="uid-p"),
            FolderOwner(pod_uid="uid-p", container=""),
            id="a mount that pretends to be another pod's",
        ),
        pytest.param(
            trace_of(None, PID, cgroup_pod_uid="uid-p", cgroup_container_id=ID),
            MAIN,
            id="by the runtime's id",
        ),
        pytest.param(
            trace_of(None, PID, cgroup_pod_uid="uid-p", cgroup_container_id="f" * 64),
            FolderOwner(pod_uid="uid-p", container=""),
            id="an id that the pod's status does not have yet",
        ),
    ],
)
def test_whose_process_it_is(trace: ProcessTrace, owner: FolderOwner) -> None:
    pods = {"uid-p": pod(runtime_ids={"main": ID}), "uid-victim": pod("victim")}
    assert owner_of_process(trace, pods) == owner


def test_processes_are_counted_by_card_and_reason() -> None:
    pids = (1, 2)
    found = sample(
        [pod()],
        [folder()],
        [host_card(CARD_A, 0, *(HostProcess(pid=pid) for pid in pids)), host_card(CARD_B, 1, HostProcess(pid=1))],
        traces={pid: trace_of(MAIN, pid) for pid in pids},
        suspected=[ProcessKey(pid, BEGAN) for pid in pids],
    )
    told = {
        labels[-2:]: value
        for spec, labels, value in own_series(found)
        if spec.name == "hami_slice_not_enforced_processes"
    }
    assert told == {(CARD_A, "no-region"): 2, (CARD_B, "no-region"): 1}


# ---- what holds a slice --------------------------------------------------------------------------------------------


def slice_of(card_id: str = CARD_A, vendor: str = "NVIDIA", profile: str = "") -> Slice:
    placement = MigPlacement(start=0, size=1) if profile else None
    return Slice(
        card_id=CardId(card_id), vendor=vendor, memory_mib=3000, cores_percent=30, profile=profile, placement=placement
    )


def page_of(*cards: CardLimits, control: Control = Control.HELD) -> LimitsPage:
    return LimitsPage(region_file="/usr/local/vgpu/a.cache", cards=cards, control=control)


LIMITED = CardLimits(uuid=CARD_A, memory_limit_bytes=3000 << 20)


@pytest.mark.parametrize(
    ("held", "opted_out", "read", "page", "expected"),
    [
        (slice_of(), False, None, page_of(LIMITED), "preload"),
        (slice_of(), True, None, page_of(LIMITED), "preload"),
        (slice_of(), False, None, page_of(CardLimits(uuid=CARD_A, cores_percent=30)), "preload"),
        (slice_of(), False, None, page_of(CardLimits(uuid=CARD_A, withheld=True)), "preload"),
        (slice_of(), False, our_region(), page_of(LIMITED, control=Control.DISABLED), "none"),
        (slice_of(), False, our_region(), page_of(CardLimits(uuid=CARD_A)), "none"),
        (slice_of(CARD_B), False, our_region(), page_of(LIMITED), "none"),
        (slice_of(), False, region(), None, "preload"),
        (slice_of(), True, region(), None, "none"),
        (slice_of(), False, None, None, ""),
        (slice_of(profile="1g.5gb"), False, None, None, "mig"),
        (slice_of("MIG-1b2c"), True, None, page_of(LIMITED), "mig"),
        (slice_of(vendor="MLU"), False, region(), None, ""),
    ],
)
def test_what_holds_a_slice(
    held: Slice, opted_out: bool, read: Region | None, page: LimitsPage | None, expected: EnforcedBy
) -> None:
    container = msgspec.structs.replace(pod().containers[0], is_opted_out=opted_out)
    assert enforced_by(held, container, region=read, page=page) == expected


def test_each_slice_is_told_with_what_holds_it() -> None:
    both = pod(allocated=f"{CARD_A},NVIDIA,3000,30:{CARD_B},NVIDIA,1000,0:;")
    found = sample([both], [], [host_card(CARD_A, 0), host_card(CARD_B, 1)], {}, pages={MAIN: page_of(LIMITED)})
    assert [(use.card_id, use.enforced_by) for use in found.slices] == [(CARD_A, "preload"), (CARD_B, "none")]
    told = [labels for spec, labels, _ in own_series(found) if spec.name == "hami_slice_info"]
    assert told == [("n1", "team", "p", "main", CARD_A, "preload"), ("n1", "team", "p", "main", CARD_B, "none")]
