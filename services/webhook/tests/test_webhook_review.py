"""The decision about a pod as a whole, and the bytes around it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hami_model import device_config
from hami_model.device_config import DeviceConfig
from hami_webhook.core.quota import NamespaceQuota
from hami_webhook.core.review import Policy, answer
from hypothesis import given
from hypothesis import strategies as st
from webhook_builders import Json, configured, container, decoded, gpu_pod, pod, policy, review_body, review_pod

ALLOCATION = {
    "hami.io/vgpu-node": "n1",
    "hami.io/vgpu-time": "1",
    "hami.io/bind-time": "1",
    "hami.io/bind-phase": "success",
    "hami.io/allocation-id": "x",
    "hami.io/retry-at": "1",
    "hami.io/vgpu-devices-to-allocate": "GPU-1,NVIDIA,1,1:;",
    "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1,1:;",
    "hami.io/vgpu-mig-allocations": "{}",
}


def answered(
    body: bytes, content_type: str = "application/json", config: DeviceConfig | None = None
) -> tuple[int, Json]:
    status, text = answer(
        body,
        config=config or device_config.default_config(),
        scheduler_name="hami-scheduler",
        force_overwrite=True,
        quota_view=lambda _namespace: NamespaceQuota(),
        content_type=content_type,
    )
    return status, json.loads(text)


# ---- which scheduler -------------------------------------------------------------------------------------------


@pytest.mark.case("WHK-03")
@pytest.mark.parametrize(
    ("named", "overwrite", "ours", "after"),
    [
        pytest.param(None, True, "hami-scheduler", "hami-scheduler", id="none named"),
        pytest.param("", True, "hami-scheduler", "hami-scheduler", id="an empty name"),
        pytest.param("default-scheduler", True, "hami-scheduler", "hami-scheduler", id="Kubernetes' default"),
        pytest.param("default-scheduler", False, "hami-scheduler", "default-scheduler", id="default, not overwritten"),
        pytest.param("hami-scheduler", True, "hami-scheduler", "hami-scheduler", id="ours"),
        pytest.param("other", True, "hami-scheduler", "other", id="another one"),
        pytest.param("hami-scheduler", True, "", "hami-scheduler", id="we route nothing"),
        pytest.param(None, True, "", None, id="we route nothing and none is named"),
    ],
)
def test_scheduler_name(named: str | None, overwrite: bool, ours: str, after: str | None) -> None:
    document = gpu_pod(gpu=1)
    if named is not None:
        document["spec"]["schedulerName"] = named
    reviewed = review_pod(document, under=policy(scheduler_name=ours, force_overwrite=overwrite))
    assert reviewed.allowed
    assert reviewed.pod["spec"].get("schedulerName") == after
    belongs_to_another = after in ("other", "default-scheduler") or (named == "hami-scheduler" and not ours)
    assert (reviewed.message != "") is belongs_to_another


def test_pod_of_another_scheduler_is_left_alone_whatever_it_asks() -> None:
    document = gpu_pod(gpu=1, gpumem="4Gi")
    document["spec"] |= {"schedulerName": "other", "nodeName": "n1"}
    document["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    reviewed = review_pod(document)
    assert reviewed.allowed
    assert reviewed.patch == []


def test_pod_without_cards_is_left_alone() -> None:
    document = pod(container(securityContext={"privileged": True}, limits={"cpu": "1"}), nodeName="n1")
    assert review_pod(document).patch == []


# ---- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.case("REQ-07")
def test_pod_with_a_node_is_refused() -> None:
    document = gpu_pod(gpu=1)
    document["spec"]["nodeName"] = "n1"
    reviewed = review_pod(document)
    assert (reviewed.allowed, reviewed.code, reviewed.message) == (False, 403, "pod has node assigned")
    assert "nodeSelector" in reviewed.warnings[0]


@pytest.mark.case("WHK-01")
@pytest.mark.parametrize("allowed", [False, True])
def test_privileged_container_with_cards(allowed: bool) -> None:
    document = gpu_pod(gpu=1)
    document["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    reviewed = review_pod(document, under=policy(allow_privileged=allowed))
    assert reviewed.allowed is allowed
    if allowed:
        assert reviewed.pod["spec"]["schedulerName"] == "hami-scheduler"
    else:
        assert reviewed.message == "container main is privileged"
        assert reviewed.causes
        assert reviewed.patch == []


@pytest.mark.case("WHK-02")
@pytest.mark.parametrize(
    ("document", "refused"),
    [
        pytest.param(
            pod(container("a", securityContext={"privileged": True}), container("b", limits={"nvidia.com/gpu": "1"})),
            "a", id="beside the asking container",
        ),
        pytest.param(
            pod(
                container("b", limits={"nvidia.com/gpu": "1"}),
                initContainers=[container("i", securityContext={"privileged": True})],
            ),
            "i", id="an init container",
        ),
        pytest.param(pod(container("a", securityContext={"privileged": True})), None, id="without any card"),
    ],
)  # fmt: skip
def test_privileged_container_beside(document: Json, refused: str | None) -> None:
    reviewed = review_pod(document)
    assert reviewed.allowed is (refused is None)
    assert reviewed.patch == []
    if refused is not None:
        assert reviewed.message == f"container {refused} is privileged"


def test_details_of_a_refusal_can_stand_in_its_message() -> None:
    document = gpu_pod(gpu=1)
    document["spec"]["nodeName"] = "n1"
    reviewed = review_pod(document, under=policy(explain_in_message=True))
    assert reviewed.message.startswith("pod has node assigned: ")
    assert "nodeSelector" in reviewed.message


# ---- allocations are ours to write -----------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", ["", "other"])
@pytest.mark.parametrize("limits", [{"nvidia.com/gpu": "1"}, {}])
def test_allocation_on_a_created_pod_is_taken_off(scheduler: str, limits: Json) -> None:
    document = pod(container(limits=limits), schedulerName=scheduler)
    document["metadata"] |= {
        "annotations": {**ALLOCATION, "nvidia.com/use-gputype": "A100"},
        "labels": {"hami.io/vgpu-node": "n1", "app": "x"},
    }
    reviewed = review_pod(document)
    assert reviewed.pod["metadata"]["annotations"] == {"nvidia.com/use-gputype": "A100"}
    assert reviewed.pod["metadata"]["labels"] == {"app": "x"}
    assert len(reviewed.warnings) == len(ALLOCATION) + 1


def test_allocation_on_an_updated_pod_stays() -> None:
    document = gpu_pod(gpu=1, gpumem=100)
    document["metadata"]["annotations"] = dict(ALLOCATION)
    reviewed = review_pod(document, request={"operation": "UPDATE"})
    assert reviewed.pod["metadata"]["annotations"] == ALLOCATION


# ---- bytes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"])
def test_answer_is_in_the_version_of_the_request(version: str) -> None:
    body = json.loads(review_body(gpu_pod(gpu=1)))
    body["apiVersion"] = version
    status, found = answered(json.dumps(body).encode())
    assert status == 200
    assert (found["apiVersion"], found["kind"]) == (version, "AdmissionReview")
    assert found["response"]["uid"] == "u-1"


def test_unknown_fields_survive() -> None:
    document = gpu_pod(gpumem=100)
    document["spec"]["fieldOfTomorrow"] = {"a": [1, 2.5, None]}
    document["spec"]["containers"][0]["alsoNew"] = 1
    reviewed = review_pod(document)
    assert reviewed.pod["spec"]["fieldOfTomorrow"] == document["spec"]["fieldOfTomorrow"]
    assert all("fieldOfTomorrow" not in operation["path"] for operation in reviewed.patch)


@pytest.mark.parametrize(
    ("body", "content_type", "http_status", "place"),
    [
        pytest.param(b"", "application/json", 400, "not JSON", id="empty"),
        pytest.param(b"{", "application/json", 400, "not JSON", id="cut off"),
        pytest.param(b'{"request": {"uid": x}}', "application/json", 400, "byte 20", id="not JSON, with the place"),
        pytest.param(b"[" * 1_000_000, "application/json", 400, "nested too deeply", id="a million brackets"),
        pytest.param(b'{"a": "\xff"}', "application/json", 400, "not JSON", id="not UTF-8"),
        pytest.param(b"[]", "application/json", 400, "no object", id="a list"),
        pytest.param(b"{}", "text/plain", 400, "contentType=text/plain", id="another content type"),
        pytest.param(b"{}", "", 400, "expected application/json", id="no content type"),
        pytest.param(b"{}", "application/json", 200, "no request", id="no request"),
        pytest.param(b'{"request":{"uid":"u"}}', "application/json", 200, "no object", id="no object"),
        pytest.param(review_body([]), "application/json", 200, "not a Pod", id="a list as pod"),  # type: ignore[arg-type]
        pytest.param(review_body({"kind": "Node"}), "application/json", 200, "v1 Node", id="another kind"),
        pytest.param(
            review_body(pod(container(resources={"limits": "x"}))), "application/json", 200,
            "$.spec.containers[0].resources.limits", id="a text as limits",
        ),
        pytest.param(
            review_body(pod(container(limits={"nvidia.com/gpu": ""}))), "application/json", 200,
            "not a quantity", id="an empty quantity",
        ),
        pytest.param(
            review_body({"spec": {"containers": [{"name": "c"}, None]}}), "application/json", 200,
            "$.spec.containers[1]", id="a null container",
        ),
        pytest.param(
            review_body(pod(container(), initContainers=[None])), "application/json", 200,
            "$.spec.initContainers[0]", id="a null init container",
        ),
        pytest.param(
            review_body(pod(container(env=[{"name": "A"}, None]))), "application/json", 200,
            "$.spec.containers[0].env[1]", id="a null variable",
        ),
    ],
)  # fmt: skip
def test_body_that_holds_no_pod(body: bytes, content_type: str, http_status: int, place: str) -> None:
    for config in (device_config.default_config(), configured(core_policy="force", overwrite_env=True)):
        status, found = answered(body, content_type, config)
        response = found["response"]
        assert (status, response["allowed"], response["status"]["code"]) == (http_status, False, 400)
        assert place in response["status"]["message"]


@pytest.mark.parametrize("nothing", [{}, {"spec": None}, {"spec": {"containers": None}}, {"spec": {"containers": []}}])
def test_pod_without_containers_is_refused(nothing: Json) -> None:
    status, found = answered(review_body(nothing))
    assert status == 200
    assert found["response"]["status"]["code"] == 403
    assert found["response"]["status"]["message"] == "pod has no containers"


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_json_content_types(content_type: str) -> None:
    status, found = answered(review_body(gpu_pod(gpu=1)), content_type)
    assert (status, found["response"]["allowed"]) == (200, True)


# ---- any input -------------------------------------------------------------------------------------------------

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
QUANTITIES = st.sampled_from(["0", "1", "100", "4Gi", "500m", "-1", "1k", "50.5", "3e3", "99999999999", "", "x"]) | (
    st.integers(-5, 200)
)
RESOURCES = st.fixed_dictionaries(
    {},
    optional={
        table: st.none()
        | st.dictionaries(
            st.sampled_from(
                [
                    "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores",
                    "nvidia.com/priority", "cpu",
                ]
            ),
            QUANTITIES,
            max_size=5,
        )
        for table in ("limits", "requests")
    },
)  # fmt: skip
ENV = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["A", "CUDA_TASK_PRIORITY", "NVIDIA_VISIBLE_DEVICES"])},
        optional={"value": st.sampled_from(["", "none", "1"]), "valueFrom": st.just({"fieldRef": {"fieldPath": "x"}})},
    ),
    max_size=3,
)
CONTAINERS = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b/c", "d~e"])},
    optional={
        "resources": st.none() | RESOURCES,
        "env": st.none() | ENV,
        "restartPolicy": st.just("Always"),
        "securityContext": st.fixed_dictionaries({}, optional={"privileged": st.booleans()}),
        "unknown": JSON_VALUES,
    },
)
PODS = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {},
            optional={
                "annotations": st.none()
                | st.dictionaries(st.sampled_from([*ALLOCATION, "a/b", "c~d"]), st.text(max_size=3)),
                "labels": st.dictionaries(st.sampled_from(["hami.io/vgpu-node", "app"]), st.text(max_size=3)),
            },
        ),
        "spec": st.fixed_dictionaries(
            {"containers": st.lists(CONTAINERS, min_size=1, max_size=3)},
            optional={
                "initContainers": st.none() | st.lists(CONTAINERS, max_size=2),
                "schedulerName": st.sampled_from(["", "default-scheduler", "other", "hami-scheduler"]),
                "nodeName": st.sampled_from(["", "n1"]),
                "unknown": JSON_VALUES,
            },
        ),
    }
)
POLICIES = st.builds(
    policy,
    st.builds(
        configured,
        core_policy=st.sampled_from(["default", "force"]),
        overwrite_env=st.booleans(),
        default_count=st.integers(0, 3),
        runtime_class=st.sampled_from(["", "nvidia"]),
        default_memory_mib=st.sampled_from([0, 500]),
    ),
    allow_privileged=st.booleans(),
    force_overwrite=st.booleans(),
    scheduler_name=st.sampled_from(["", "hami-scheduler"]),
)


@given(JSON_VALUES | st.fixed_dictionaries({"request": st.fixed_dictionaries({"object": JSON_VALUES})}))
def test_any_json_gets_an_answer(value: Any) -> None:
    status, found = answered(json.dumps(value).encode())
    assert status in (200, 400)
    assert isinstance(found["response"]["allowed"], bool)


@given(PODS, st.data(), POLICIES)
def test_a_null_item_anywhere_in_a_pod_is_unreadable(document: Json, data: st.DataObject, under: Policy) -> None:
    spec = document["spec"]
    lists = [spec[field] for field in ("containers", "initContainers") if spec.get(field) is not None]
    lists += [found["env"] for field in lists for found in field if found.get("env") is not None]
    chosen = data.draw(st.sampled_from(lists))
    chosen.insert(data.draw(st.integers(0, len(chosen))), None)
    reviewed = review_pod(document, under=under)
    assert (reviewed.allowed, reviewed.code) == (False, 400)


@given(st.binary(max_size=200))
def test_any_bytes_get_an_answer(body: bytes) -> None:
    status, _ = answered(body)
    assert status in (200, 400)


@given(PODS, POLICIES)
def test_patch_gives_the_pod_that_was_decided_about(document: Json, under: Any) -> None:
    reviewed = review_pod(document, under=under)
    if not reviewed.allowed:
        assert reviewed.patch == []
        assert reviewed.message
        return
    spec, before = reviewed.pod["spec"], document["spec"]
    assert spec.get("unknown") == before.get("unknown")
    for field in ("containers", "initContainers"):
        for after, sent in zip(spec.get(field) or [], before.get(field) or [], strict=True):
            limits = (after.get("resources") or {}).get("limits") or {}
            assert limits.items() >= ((sent.get("resources") or {}).get("limits") or {}).items()
            assert (after.get("env") or [])[: len(sent.get("env") or [])] == (sent.get("env") or [])
            assert {k: v for k, v in after.items() if k not in ("env", "resources")} == {
                k: v for k, v in sent.items() if k not in ("env", "resources")
            }
    assert not set(ALLOCATION) & set(reviewed.pod["metadata"].get("annotations") or {})
    if not _has_a_count_without_limit(spec):
        assert review_pod(reviewed.pod, under=under).patch == []


def _has_a_count_without_limit(spec: Json) -> bool:
    """The API server refuses such a pod right after the review, so it is never reviewed again."""
    tables = [
        found.get("resources") or {} for field in ("containers", "initContainers") for found in spec.get(field) or []
    ]
    return any(
        (table.get("requests") or {}).get("nvidia.com/gpu") is not None
        and (table.get("limits") or {}).get("nvidia.com/gpu") is None
        for table in tables
    )


def test_answer_decodes_as_sent() -> None:
    document = gpu_pod(gpumem=100)
    status, text = answer(
        review_body(document),
        config=device_config.default_config(),
        scheduler_name="hami-scheduler",
        force_overwrite=True,
        quota_view=lambda _namespace: NamespaceQuota(),
    )
    reviewed = decoded(status, text, document)
    assert [operation["path"] for operation in reviewed.patch] == [
        "/spec/containers/0/resources/limits/nvidia.com~1gpu",
        "/spec/schedulerName",
    ]
