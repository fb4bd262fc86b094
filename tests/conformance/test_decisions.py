"""What we do where we decide otherwise than HAMi: one test for each kind in docs/compatibility.md."""

import base64
import importlib
import json
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hami_model import device_config, kube
from hami_model.requests import Policies
from hami_scheduler.core import simulation
from hami_scheduler.core.filter import FilterAnswer, filter_pod
from hami_scheduler.core.ledger import Ledger
from hami_webhook.core import quota_book, review

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REGISTER = "hami.io/node-nvidia-register"
SCORE = "hami.io/node-nvidia-score"
ALLOCATED = "hami.io/vgpu-devices-allocated"
CORDON = "hami.io/device-cordon"


def ledger(*cards: dict[str, object], annotations: dict[str, str] | None = None) -> Ledger:
    book = Ledger(device_config.default_config(), Policies())
    book.upsert_node(node(*(cards or (card("A"),)), annotations=annotations), NOW)
    return book


def card(card_id: str, *, memory: int = 10000) -> dict[str, object]:
    return {
        "id": card_id, "count": 10, "devmem": memory, "devcore": 100, "type": "NVIDIA A100", "mode": "hami-core",
        "health": True,
    }  # fmt: skip


def node(*cards: dict[str, object] | None, annotations: dict[str, str] | None = None) -> kube.Node:
    return kube.Node(
        metadata=kube.Metadata(name="n1", annotations={REGISTER: json.dumps(cards), **(annotations or {})}),
        status=kube.NodeStatus(allocatable={"nvidia.com/gpu": "10"}),
    )


def container(
    memory: int | str | None, *, gpus: str = "1", cores: str | None = None, sidecar: bool = False
) -> kube.Container:
    limits = {} if memory is None else {"nvidia.com/gpu": gpus, "nvidia.com/gpumem": str(memory)}
    if cores is not None:
        limits["nvidia.com/gpucores"] = cores
    return kube.Container(
        name="c", resources=kube.Resources(limits=limits), restart_policy="Always" if sidecar else None
    )


def pod(*app: kube.Container, init: tuple[kube.Container, ...] = (), name: str = "new") -> kube.Pod:
    return kube.Pod(
        metadata=kube.Metadata(name=name, namespace="team", uid=name),
        spec=kube.PodSpec(init_containers=list(init), containers=list(app)),
    )


def running(
    text: str,
    *app: kube.Container,
    init: tuple[kube.Container, ...] = (),
    name: str = "old",
    deleted: str | None = None,
) -> kube.Pod:
    return kube.Pod(
        metadata=kube.Metadata(
            name=name, namespace="team", uid=name, annotations={ALLOCATED: text}, deletion_timestamp=deleted
        ),
        spec=kube.PodSpec(
            node_name="n1", init_containers=list(init), containers=list(app or (container(1000),))
        ),
        status=kube.PodStatus(phase="Running"),
    )  # fmt: skip


def place(book: Ledger, wanted: kube.Pod) -> FilterAnswer:
    return filter_pod(book, wanted, ["n1"], allocation_id="a", now=NOW)


def reason(book: Ledger, wanted: kube.Pod) -> str:
    answer = place(book, wanted)
    assert answer.reservation is None
    return {**answer.failed_nodes, **answer.unresolvable_nodes}["n1"]


def quota(name: str, memory: int) -> kube.ResourceQuota:
    return kube.ResourceQuota(
        metadata=kube.Metadata(name=name, namespace="team"),
        spec=kube.QuotaSpec(hard={"limits.nvidia.com/gpumem": str(memory)}),
    )


@pytest.mark.case("REQ-01")
@pytest.mark.parametrize("memory", ["4Gi", "512Mi", "500m", "1500M", "2147483648", "-1"])
def test_unit_and_gpu_bypass_memory_that_is_not_whole_mib_is_refused_everywhere(memory: str) -> None:
    assert memory in reason(ledger(card("A", memory=2**31 - 1)), pod(container(memory)))


@pytest.mark.parametrize("gpus", ["500m", "1500m", "4294967297"])
def test_unit_and_int32_wrap_a_number_of_cards_that_is_a_fraction_or_too_large_is_refused(gpus: str) -> None:
    assert gpus in reason(ledger(), pod(container(100, gpus=gpus)))


def test_int32_wrap_cores_beyond_100_are_100() -> None:
    answer = place(ledger(), pod(container(100, cores="2147483648")))
    assert answer.annotations[ALLOCATED] == "A,NVIDIA,100,100:;"


def test_negative_cores_are_refused() -> None:
    assert "-1" in reason(ledger(), pod(container(100, cores="-1")))


@pytest.mark.case("ANN-01")
def test_slot_misaligned_every_container_has_its_slot() -> None:
    wanted = pod(container(3000), container(None), init=(container(None),))
    assert place(ledger(), wanted).annotations[ALLOCATED] == ";A,NVIDIA,3000,0:;;"


@pytest.mark.case("MUL-02")
def test_sidecar_underbooked_and_overcommit_its_share_adds_to_that_of_the_app() -> None:
    assert "CardInsufficientMemory" in reason(
        ledger(), pod(container(5000), init=(container(7000, sidecar=True),))
    )  # fmt: skip
    book = ledger()
    assert place(book, pod(container(3000), init=(container(7000, sidecar=True),))).reservation is not None
    assert book.cluster.booked("new")["A"] == (10000, 0, 2)


@pytest.mark.case("ANN-11")
@pytest.mark.parametrize("text", ["A,NVIDIA:;", "A,NVIDIA,x,0:;", "A,NVIDIA,-500,10:;", "A,AMD,1000,10:;"])
def test_malformed_pod_uncounted_and_foreign_entry_the_card_it_names_takes_no_new_pod(text: str) -> None:
    book = ledger(card("A"), card("B"))
    book.upsert_pod(running(text), NOW)
    assert place(book, pod(container(100))).annotations[ALLOCATED] == "B,NVIDIA,100,0:;"
    assert reason(book, pod(container(100, gpus="2"), name="two"))
    book.remove_pod("old")
    assert place(book, pod(container(100, gpus="2"), name="two")).reservation is not None


def test_short_slots_are_matched_to_the_containers_that_ask() -> None:
    book = ledger()
    held = running(
        "A,NVIDIA,4000,0:;A,NVIDIA,4000,0:;", container(4000), container(4000), init=(container(None),)
    )  # fmt: skip
    book.upsert_pod(held, NOW)
    assert book.cluster.booked("old")["A"] == (8000, 0, 2)


def test_terminating_uncounted_a_terminating_pod_holds_its_cards_from_the_first_sight_on() -> None:
    book = ledger()
    book.upsert_pod(running("A,NVIDIA,9000,0:;", deleted="2026-01-01T00:00:00Z"), NOW)
    assert "CardInsufficientMemory" in reason(book, pod(container(2000)))


def test_annotation_change_ignored_the_last_annotation_counts() -> None:
    book = ledger()
    book.upsert_pod(running("A,NVIDIA,1000,0:;"), NOW)
    book.upsert_pod(running("A,NVIDIA,9000,0:;"), NOW)
    assert book.cluster.booked("old")["A"][0] == 9000


def test_live_cordon_and_cordon_ignored_after_register_a_cordon_holds_at_once() -> None:
    book = ledger()
    book.upsert_node(node(card("A"), annotations={CORDON: "A"}), NOW)
    assert reason(book, pod(container(100))) == "1/1 CardCordoned"
    book.upsert_node(node(card("A")), NOW)
    assert place(book, pod(container(100))).reservation is not None


@pytest.mark.parametrize("score", ["x", "", "{}", '[{"uuid":"A","score":{"B":1.5}}]'])
def test_score_drops_node_and_malformed_pair_score_the_node_keeps_its_cards(score: str) -> None:
    assert place(ledger(annotations={SCORE: score}), pod(container(100))).reservation is not None


def test_numa_false_reject_and_topology_false_reject_a_numa_group_that_is_large_enough_is_kept() -> None:
    book = ledger(*({**card(name), "numa": numa} for name, numa in (("A", 0), ("B", 1), ("C", 1))))
    bound = {"hami.io/gpu-scheduler-policy": "topology-aware", "nvidia.com/numa-bind": "true"}

    def pair(name: str) -> kube.Pod:
        found = pod(container(100, gpus="2"), name=name)
        return kube.Pod(metadata=kube.Metadata(name=name, uid=name, annotations=bound), spec=found.spec)

    assert place(book, pair("two")).annotations[ALLOCATED] == "C,NVIDIA,100,0:B,NVIDIA,100,0:;"


def test_panic_and_contradictory_register_what_can_be_read_is_used_and_the_rest_refused() -> None:
    book = ledger()
    change = book.upsert_node(node(None, card("A"), card("B"), card("A"), card("C:0")), NOW)
    assert "null" in change.problems["NVIDIA"]
    assert "'A' is listed more than once" in change.problems["NVIDIA"]
    assert "'C:0'" in change.problems["NVIDIA"]
    assert place(book, pod(container(100))).annotations[ALLOCATED] == "B,NVIDIA,100,0:;"
    assert "CardNotHealth" in reason(book, pod(container(100, gpus="2"), name="two"))


def test_one_init_container_its_shares_of_one_card_add_up() -> None:
    book = ledger()
    text = "A,NVIDIA,4000,10:A,NVIDIA,3000,10:;;"
    book.upsert_pod(running(text, container(None), init=(container(4000, gpus="2"),)), NOW)
    assert book.cluster.booked("old") == {"A": (7000, 20, 2)}
    assert reason(book, pod(container(3001))) == "1/1 CardInsufficientMemory"
    assert place(book, pod(container(3000))).reservation is not None


@pytest.mark.case("QUO-01")
def test_several_quotas_the_smallest_limit_holds() -> None:
    for names in (("q1", "q2"), ("q2", "q1")):
        book = ledger()
        for name in names:
            book.upsert_quota(quota(name, 1000 if name == "q1" else 8000))
        assert reason(book, pod(container(2000))) == "1/1 ResourceQuotaNotFit"
        book.remove_quota("team", "q1")
        assert place(book, pod(container(2000))).reservation is not None
        book.remove_quota("team", "q2")
        assert place(book, pod(container(9000), name="big")).reservation is None


def test_quota_with_init_and_quota_overrun_app_containers_add_up_behind_an_init_container() -> None:
    book = ledger()
    book.upsert_quota(quota("q", 1000))
    wanted = pod(container(600), container(600), init=(container(None),))
    assert reason(book, wanted) == "1/1 ResourceQuotaNotFit"


MIG_PROFILES = [
    {"name": name, "memoryMB": memory, "core": cores, "sliceCount": slices, "placements": places}
    for name, memory, cores, slices, places in (
        ("1g.5gb", 4864, 14, 1, [{"start": start, "size": 1} for start in range(7)]),
        ("3g.20gb", 19968, 42, 3, [{"start": 0, "size": 4}, {"start": 4, "size": 4}]),
        ("7g.40gb", 40192, 100, 7, [{"start": 0, "size": 8}]),
    )
]
RESERVED = "hami.io/vgpu-mig-allocations"


def mig_card(card_id: str) -> dict[str, object]:
    return {**card(card_id, memory=40960), "mode": "mig", "count": 7, "migProfiles": MIG_PROFILES}


def reserved(card_id: str, profile: str, start: int, size: int) -> str:
    place = {"start": start, "size": size}
    found = {"containerIndex": 0, "deviceIndex": 0, "gpuUUID": card_id, "profile": profile, "placement": place}
    return json.dumps([found], separators=(",", ":"))


def with_annotation(found: kube.Pod, key: str, text: str) -> kube.Pod:
    annotations = {**found.annotations, key: text}
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, annotations=annotations))


def test_mig_whole_card_all_memory_is_the_instance_that_is_the_whole_card() -> None:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "100"}
    whole = kube.Container(name="c", resources=kube.Resources(limits=limits))
    answer = place(ledger(mig_card("A")), pod(whole))
    assert answer.annotations[ALLOCATED] == "A,NVIDIA,40192,100:;"
    assert answer.annotations[RESERVED] == reserved("A", "7g.40gb", 0, 8)
    halves = {**mig_card("A"), "migProfiles": MIG_PROFILES[:2]}
    assert reason(ledger(halves), pod(whole)) == "1/1 CardMigTopologyInfeasible"


def test_mig_quota_is_checked_by_what_the_instance_takes() -> None:
    book = ledger(mig_card("A"))
    book.upsert_quota(quota("q", 5000))
    two = pod(container(1000, gpus="2"))
    assert reason(book, two) == "1/1 AllocatedCardsInsufficientRequest, 1/1 ResourceQuotaNotFit"
    assert place(book, pod(container(1000))).annotations[ALLOCATED] == "A,NVIDIA,4864,14:;"
    assert book.cluster.quota_used("team", "NVIDIA") == (4864, 14)


def test_mig_unknown_card_a_reservation_of_a_card_that_is_not_there_costs_no_other_card() -> None:
    book = ledger(mig_card("A"), mig_card("B"))
    lost = with_annotation(running("A,NVIDIA,4864,14:;"), RESERVED, reserved("GPU-gone", "1g.5gb", 0, 1))
    book.upsert_pod(lost, NOW)
    # Its own card is unclear, as its place there is not known.
    assert place(book, pod(container(1000), name="p")).annotations[ALLOCATED] == "B,NVIDIA,4864,14:;"
    assert reason(book, pod(container(40000), name="q")) == "1/2 CardInsufficientMemory, 1/2 CardNotHealth"
    book.remove_pod("old")
    assert place(book, pod(container(40000), name="q")).reservation is not None


def test_int32_overflow_memory_near_the_limit_of_the_wire_is_computed_exactly() -> None:
    book = ledger(card("A", memory=2**31 - 1), card("B", memory=2**31 - 1))
    wanted = kube.Pod(
        metadata=kube.Metadata(name="new", namespace="team", uid="new"),
        spec=kube.PodSpec(
            containers=[
                kube.Container(
                    name="c",
                    resources=kube.Resources(
                        limits={"nvidia.com/gpu": "2", "nvidia.com/gpumem-percentage": "50"}
                    ),
                )
            ]
        ),
    )  # fmt: skip
    slots = place(book, wanted).annotations[ALLOCATED]
    assert slots == "B,NVIDIA,1073741823,0:A,NVIDIA,1073741823,0:;"


def admit(
    raw: dict[str, object], *, namespace: str = "team", config: str | None = None, limit: int | None = None
) -> tuple[bool, list[dict[str, object]]]:
    devices = device_config.default_config() if config is None else device_config.parse(config)
    book = quota_book.book_of(devices, quotas=[] if limit is None else [quota("q", limit)])
    body = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u", "namespace": namespace, "operation": "CREATE", "object": raw},
    }
    _, reply = review.answer(
        json.dumps(body).encode(),
        config=devices,
        scheduler_name="hami-scheduler",
        force_overwrite=True,
        quota_view=book.view,
    )
    response = json.loads(reply)["response"]
    return response["allowed"], json.loads(base64.b64decode(response.get("patch", "W10=")))


def raw_pod(limits: dict[str, str], **spec: object) -> dict[str, object]:
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}], **spec},
    }  # fmt: skip


@pytest.mark.parametrize("limits", [{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4Gi"}, {"nvidia.com/gpu": "500m"}])
def test_unit_the_webhook_refuses_it_too(limits: dict[str, str]) -> None:
    assert not admit(raw_pod(limits))[0]


@pytest.mark.case("REQ-08")
def test_share_without_count_is_refused_where_no_count_is_added() -> None:
    config = "nvidia: {resourceCountName: x/gpu, resourceMemoryName: x/mem, defaultGPUNum: 0}"
    assert not admit(raw_pod({"x/mem": "1000"}), config=config)[0]
    assert admit(raw_pod({"x/mem": "1000"}), config=config.replace(": 0", ": 1"))[0]


def test_unknown_field_dropped_the_patch_touches_only_what_it_changes() -> None:
    allowed, patch = admit(raw_pod({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1"}, fieldOfTheFuture={"a": 1}))
    assert allowed
    assert [operation["path"] for operation in patch] == ["/spec/schedulerName"]


def test_quota_namespace_the_requests_namespace_counts_where_the_pod_names_none() -> None:
    wanted = raw_pod({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2000"})
    assert not admit(wanted, limit=1000)[0]
    assert admit(wanted, namespace="other", limit=1000)[0]


def test_simulation_without_cards_fits_on_every_node() -> None:
    book = Ledger(device_config.default_config(), Policies())
    asked = simulation.begin(book, simulation.ClusterMaker(book.config, {}), pod(kube.Container(name="c")))
    assert asked.answer([node(card("A"))]).fitting == ["n1"]


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Path:
    here = Path(__file__).parent
    monkeypatch.syspath_prepend(here)
    return here


def test_every_kind_has_a_line_in_the_documentation(harness: Path) -> None:
    decisions = importlib.import_module("decisions")
    vectors = importlib.import_module("vectors")
    text = (harness.parents[1] / "docs/compatibility.md").read_text(encoding="utf-8")
    data = harness.parent / "data/vectors"
    tags = {
        tag
        for group in vectors.groups(data)
        for row in vectors.rows(group.file)
        if "family" not in row or decisions.deferral(row) is None
        for tag in row.get("tags", [])
        if tag.startswith("suspect:")
    }
    undocumented = [kind for kind in (*decisions.SUSPICIONS, *sorted(tags)) if f"`{kind}`" not in text]
    undocumented += [what for what in decisions.DEFERRALS if f"| {what} |" not in text]
    assert undocumented == []
