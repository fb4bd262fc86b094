"""What the node agent does where we decide otherwise than HAMi, and instead of what the vectors call suspect."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

CARDS = tuple(f"GPU-00000000-0000-0000-0000-{number:012d}" for number in range(3))
PHASE = "hami.io/bind-phase"
LOCK = "hami.io/mutex.lock"
LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"

Json = dict[str, Any]


@pytest.fixture
def allocate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return importlib.import_module("answer_node_allocate")


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return importlib.import_module("answer_node_register")


def card(number: int, **more: Any) -> Json:
    return {
        "uuid": CARDS[number], "index": number, "minor": number, "name": "NVIDIA L40S", "mem_bytes": 48305799168,
        "bus_id": f"00000000:{number + 1:02X}:00.0", **more,
    }  # fmt: skip


def pod(name: str = "p1", slots: str | None = f"{CARDS[0]},NVIDIA,500,5:;", **more: Any) -> Json:
    annotations = {"hami.io/bind-time": "1772600767", PHASE: "allocating", "hami.io/vgpu-node": "node-a"}
    if slots is not None:
        annotations["hami.io/vgpu-devices-to-allocate"] = slots
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": annotations},
        "spec": {"nodeName": "node-a", "containers": more.get("containers", [{"name": "c0"}, {"name": "c1"}])},
        "status": {"phase": more.get("phase", "Pending")},
    }


def row(
    *pods: Json, ids: tuple[str, ...] = (f"{CARDS[0]}-1",), lock: str | None = "p1", op: str = "allocate", **more: Any
) -> Json:
    return {
        "id": "x",
        "op": op,
        "config": {
            "device_config": {"nvidia": {"resourceCountName": "nvidia.com/gpu", **more.get("settings", {})}},
            "node_config_json": more.get("node_file"),
            "env": {"NODE_NAME": "node-a", "HOOK_PATH": "/usr/local"},
            "flags": [],
        },
        "node": {"name": "node-a", "annotations": {} if lock is None else {LOCK: _lock(lock)}},
        "devices": more.get("devices", [card(number) for number in range(3)]),
        "files_present": [],
        "char_devices_present": [],
        "rm_extra_devices": [],
        "faults": [{"verb": verb, "resource": kind, "nth": nth} for verb, kind, nth in more.get("faults", ())],
        "pods": list(pods),
        "passes": 1,
        "request": {"container_requests": [{"devicesIDs": list(ids)}]},
    }


def _lock(owner: str) -> str:
    return owner if "," in owner else f"2026-03-04T05:06:07Z,default,{owner}"


def environment(answer: Json) -> dict[str, str]:
    assert answer["error"] is None
    found: dict[str, str] = answer["response"]["container_responses"][0]["envs"]
    return found


def test_limit_order_unequal_limits_go_by_card_index(allocate: ModuleType) -> None:
    slots = f"{CARDS[1]},NVIDIA,700,70:{CARDS[0]},NVIDIA,500,0:;"

    found = environment(allocate.answer(row(pod(slots=slots), ids=("a", "b"))))

    assert (found[f"{LIMIT}0"], found[f"{LIMIT}1"]) == ("500m", "700m")
    assert found[VISIBLE] == f"{CARDS[0]},{CARDS[1]}"
    assert (found["CUDA_DEVICE_SM_LIMIT_0"], found["CUDA_DEVICE_SM_LIMIT_1"]) == ("100", "70")


@pytest.mark.case("PLC-11")
def test_honour_kubelet_the_annotated_cards_win(allocate: ModuleType) -> None:
    file = '{"nodeconfig": [{"name": "node-a", "enablegetpreferredallocation": true}]}'

    found = environment(allocate.answer(row(pod(), ids=(f"{CARDS[2]}-17",), node_file=file)))

    assert found[VISIBLE] == CARDS[0]


@pytest.mark.parametrize(
    "slots",
    [
        pytest.param(f"{CARDS[0]},Ascend,500,5:;", id="foreign-word"),
        pytest.param(f"{CARDS[0]},NVIDIA,-1,5:;", id="negative memory"),
        pytest.param(f"{CARDS[0]},NVIDIA,1,-5:;", id="negative cores"),
        pytest.param("GPU-elsewhere,NVIDIA,500,5:;", id="a card of another node"),
        pytest.param(",NVIDIA,500,5:;", id="no card"),
    ],
)
@pytest.mark.case("LCK-06")
def test_an_annotation_that_cannot_be_right_is_refused(allocate: ModuleType, slots: str) -> None:
    answer = allocate.answer(row(pod(slots=slots)))

    assert answer["response"] is None
    assert answer["error"]
    assert answer["pod_annotations_after"]["default/p1"][PHASE] == "failed"
    assert answer["lock_after"] is None


def test_one_card_twice_in_a_container_is_refused(allocate: ModuleType) -> None:
    slots = f"{CARDS[0]},NVIDIA,1,1:{CARDS[0]},NVIDIA,2,2:;"

    assert "twice" in allocate.answer(row(pod(slots=slots), ids=("a", "b")))["error"]


def test_one_patch_says_at_once_what_is_left_and_that_it_is_done(allocate: ModuleType) -> None:
    answer = allocate.answer(row(pod(), faults=[("patch", "pods", 2), ("get", "pods", 2), ("get", "nodes", 2)]))

    assert answer["pod_annotations_after"]["default/p1"][PHASE] == "success"
    assert answer["lock_after"] is None


def test_a_pod_that_cannot_be_written_is_served_and_the_lock_freed(allocate: ModuleType) -> None:
    answer = allocate.answer(row(pod(), faults=[("patch", "pods", 0)]))

    assert environment(answer)[VISIBLE] == CARDS[0]
    assert answer["lock_after"] is None


@pytest.mark.parametrize(
    ("owner", "owner_pod"),
    [
        pytest.param("gone", None, id="the owner is gone"),
        pytest.param("other", pod("other", phase="Running"), id="the owner runs"),
        pytest.param("other", {**pod("other"), "spec": {"nodeName": "b", "containers": []}}, id="it is elsewhere"),
        pytest.param("2026-03-04T05:06:07Z,,p1", None, id="an empty field names nobody"),
    ],
)
def test_a_lock_whose_owner_does_not_wait_here_is_looked_through(
    allocate: ModuleType, owner: str, owner_pod: Json | None
) -> None:
    others = [] if owner_pod is None else [owner_pod]

    answer = allocate.answer(row(pod(), *others, lock=owner))

    assert environment(answer)[VISIBLE] == CARDS[0]
    assert answer["pod_annotations_after"]["default/p1"][PHASE] == "success"


def test_without_an_owner_the_pod_bound_first_is_meant(allocate: ModuleType) -> None:
    first = pod("b")
    first["metadata"]["annotations"]["hami.io/bind-time"] = "1772600700"

    answer = allocate.answer(row(pod("a"), first, lock=None))

    phases = {name: annotations[PHASE] for name, annotations in answer["pod_annotations_after"].items()}
    assert phases == {"default/a": "allocating", "default/b": "success"}


def test_without_an_owner_what_is_asked_tells_two_pods_apart(allocate: ModuleType) -> None:
    second = pod("b", slots=f"{CARDS[0]},NVIDIA,1,1:{CARDS[1]},NVIDIA,1,1:;")

    answer = allocate.answer(row(pod("a"), second, lock=None, ids=("x", "y")))

    assert answer["pod_annotations_after"]["default/b"][PHASE] == "success"


@pytest.mark.parametrize(
    ("variables", "with_preload"),
    [
        pytest.param(["true", "false"], True, id="the last entry counts: on"),
        pytest.param(["false", "true"], False, id="the last entry counts: off"),
    ],
)
def test_of_repeated_variables_the_last_one_counts(
    allocate: ModuleType, variables: list[str], *, with_preload: bool
) -> None:
    env = [{"name": "CUDA_DISABLE_CONTROL", "value": value} for value in variables]

    answer = allocate.answer(row(pod(containers=[{"name": "c0", "env": env}])))

    targets = [mount["container_path"] for mount in answer["response"]["container_responses"][0]["mounts"]]
    assert ("/etc/ld.so.preload" in targets) is with_preload


def test_an_empty_list_of_ids_is_refused(allocate: ModuleType) -> None:
    assert "kubelet gave it 0" in allocate.answer(row(pod(), ids=()))["error"]


def test_a_scalar_that_is_missing_has_its_default(register: ModuleType) -> None:
    cards = register.answer(row(op="register"))["kubelet_devices"]

    assert [found["replicas"] for found in cards] == [10, 10, 10]


def test_negative_setting_stops_the_start(register: ModuleType) -> None:
    found = register.answer(row(op="register", settings={"deviceMemoryScaling": -1}))

    assert "must not be negative" in found["start_error"]


@pytest.mark.case("REG-12")
def test_no_memory_size_such_a_card_is_not_offered_at_all(register: ModuleType) -> None:
    devices = [card(0), card(1, mem_bytes=None, mem_query="NOT_SUPPORTED")]

    found = register.answer(row(op="register", devices=devices))

    assert [device["uuid"] for device in found["kubelet_devices"]] == [CARDS[0]]


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param({"mem_bytes": None, "mem_query": "GPU_IS_LOST"}, id="its memory cannot be read"),
        pytest.param({"mem_bytes": 2**60, "mem_query": None}, id="its memory fits no 32 bits"),
    ],
)
@pytest.mark.case("REG-06")
def test_one_bad_card_costs_only_itself(register: ModuleType, broken: Json) -> None:
    found = register.answer(row(op="register", devices=[card(0), card(1, **broken), card(2)]))

    assert [device["uuid"] for device in found["kubelet_devices"]] == [CARDS[0], CARDS[2]]


def test_an_odd_numa_text_is_taken_as_unknown(register: ModuleType) -> None:
    found = register.answer(
        row(op="register", devices=[card(0, numa_node="abc")], settings={"enableNumaTopology": True})
    )

    assert found["kubelet_devices"][0]["numa"] is None


def test_health_word_whatever_is_not_healthy_is_unhealthy(register: ModuleType) -> None:
    found = register.answer(row(op="register", devices=[card(0, health="")]))

    assert found["kubelet_devices"][0]["health"] == "Unhealthy"


def test_no_node_file_means_hami_core(register: ModuleType) -> None:
    assert '"mode":"hami-core"' in register.answer(row(op="register"))["register_annotation"]


@pytest.mark.parametrize("query", ["state_query", "pci_query", "type_query"])
def test_unreadable_links_cost_only_their_pairs(register: ModuleType, query: str) -> None:
    link = {"link": 0, "enabled": True, "remote_type": "GPU", "remote_bus_id": "00000000:02:00.0", query: "UNKNOWN"}
    ways = [{"1": "NODE", "2": "NODE"}, {"0": "NODE", "2": "NODE"}, {"0": "NODE", "1": "NODE"}]
    devices = [card(number, topology=ways[number], nvlinks=[link] if number == 0 else []) for number in range(3)]
    asked = row(op="register", devices=devices)
    asked["config"]["env"]["ENABLE_TOPOLOGY_SCORE"] = "true"

    found = register.answer(asked)

    assert found["passes"] == [{"changed": True, "error": None}]
    assert json.loads(found["score_annotation"]) == [
        {"uuid": CARDS[0], "score": {}},
        {"uuid": CARDS[1], "score": {CARDS[2]: 20}},
        {"uuid": CARDS[2], "score": {CARDS[1]: 20}},
    ]


def test_a_node_can_turn_a_flag_off(register: ModuleType) -> None:
    file = '{"nodeconfig": [{"name": "node-a", "enablenumatopology": false}]}'
    settings = {"enableNumaTopology": True}

    found = register.answer(row(op="register", devices=[card(0, numa_node="1")], settings=settings, node_file=file))

    assert found["kubelet_devices"][0]["numa"] is None


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param('"libcudaloglevel": 3', id="a number for a text"),
        pytest.param('"filterdevices": {"index": [-1]}', id="a negative index"),
        pytest.param('"devicecorescaling": "x"', id="a text for a number"),
    ],
)
def test_one_odd_value_costs_only_itself(register: ModuleType, odd: str) -> None:
    file = f'{{"nodeconfig": [{{"name": "node-a", "devicesplitcount": 3, {odd}}}]}}'

    found = register.answer(row(op="register", node_file=file))

    assert [device["replicas"] for device in found["kubelet_devices"]] == [3, 3, 3]


def mig_row(*names: str, **settings: Any) -> Json:
    profile = {"profile_id": 0, "slice_count": 1, "instance_count": 7, "sm_count": 14, "memory_mb": 9728,
               "placements": [{"start": 0, "size": 1}]}  # fmt: skip
    allowlist = [{"models": ["A100"], "profiles": list(names)}]
    return row(
        op="register",
        devices=[card(0, name="NVIDIA A100-SXM4-80GB", gi_profiles=[profile]), card(1)],
        settings={"migProfileAllowlist": allowlist, **settings},
        node_file='{"nodeconfig": [{"name": "node-a", "operatingmode": "mig"}]}',
    )


def test_mig_card_left_out_kubelet_has_it_neither(register: ModuleType) -> None:
    found = register.answer(mig_row("1g.10gb"))

    assert [device["uuid"] for device in found["kubelet_devices"]] == [CARDS[0]]


def test_mig_few_ids_there_is_one_for_each_instance(register: ModuleType) -> None:
    assert register.answer(mig_row("1g.10gb", deviceSplitCount=4))["kubelet_devices"][0]["replicas"] == 7


def test_mig_other_memory_is_another_profile(register: ModuleType) -> None:
    text = register.answer(mig_row("1g.10gb", "1g.20gb", "1g.10gb+me"))["register_annotation"]

    assert [profile["name"] for found in json.loads(text) for profile in found["migProfiles"]] == ["1g.10gb"]


def mig_pod(name: str, reserved: str, **more: Any) -> Json:
    made = pod(name, slots=f"{CARDS[0]},NVIDIA,9728,14:;", containers=[{"name": "c0"}], **more)
    made["metadata"]["annotations"]["hami.io/vgpu-mig-allocations"] = reserved
    return made


def reservation(profile: str = "1g.10gb") -> str:
    return json.dumps([{"containerIndex": 0, "deviceIndex": 0, "gpuUUID": CARDS[0], "profile": profile,
                        "placement": {"start": 0, "size": 1}}])  # fmt: skip


def test_mig_neighbour_s_unreadable_annotation_costs_nothing(allocate: ModuleType) -> None:
    asked = {**mig_row("1g.10gb"), "op": "allocate"}
    asked["pods"] = [mig_pod("p1", reservation()), mig_pod("zz", "[{", phase="Running")]

    assert environment(allocate.answer(asked)) == {VISIBLE: "MIG-00000001-0000-4000-8000-000000000001"}


def test_mig_other_memory_is_not_made_either(allocate: ModuleType) -> None:
    asked = {**mig_row("1g.10gb"), "op": "allocate", "pods": [mig_pod("p1", reservation("1g.10gb+me"))]}

    found = allocate.answer(asked)

    assert "has no MIG profile" in found["error"]
    assert found["pod_annotations_after"]["default/p1"][PHASE] == "failed"
    assert found["lock_after"] is None
