"""Quotas at admission: what counts as used, what a pod needs at least, and when it is refused."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hami_model import device_config, kube
from hami_webhook.core.quota import Amount, NamespaceQuota
from hami_webhook.core.quota_book import QuotaBook, book_of, holding, limits
from hypothesis import given
from hypothesis import strategies as st
from webhook_builders import (
    Json,
    configured,
    container,
    gpu_pod,
    pod,
    policy,
    quota,
    review_pod,
    running_pod,
)

CONFIG = device_config.default_config()
HELD = "GPU-1,NVIDIA,4000,30:;"


def needs_sidecar_and_app() -> Json:
    return pod(
        container(limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000", "nvidia.com/gpucores": "10"}),
        initContainers=[
            container("one-shot", limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "500"}),
            container("sidecar", restartPolicy="Always", limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2000"}),
            container("later", limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "700"}),
        ],
    )


# ---- refused or not --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "hard", "fits"),
    [
        pytest.param(gpu_pod(gpu=1, gpumem=1000), {"gpumem": "5000"}, True, id="used and asked together at the limit"),
        pytest.param(gpu_pod(gpu=1, gpumem=1001), {"gpumem": "5000"}, False, id="one MiB above"),
        pytest.param(gpu_pod(gpu=1, gpumem=1, gpucores=21), {"gpucores": "50"}, False, id="cores above"),
        pytest.param(gpu_pod(gpu=1), {"gpucores": "129"}, False, id="the cores that we add count"),
        pytest.param(gpu_pod(gpu=1), {"gpucores": "130"}, True, id="the cores that we add fit"),
        pytest.param(gpu_pod(gpu=1, gpumem=1, gpucores=0), {"gpucores": "29"}, False, id="overdrawn already"),
        pytest.param(pod(container()), {"gpucores": "29", "gpumem": "0"}, True, id="a pod without cards"),
        pytest.param(gpu_pod(gpu=1, gpumem=1), {"gpu": "0"}, True, id="the count is Kubernetes' own quota"),
        pytest.param(gpu_pod(gpu=1, gpumem=1), {"gpumem": "1.5"}, True, id="a limit that is no whole number"),
        pytest.param(gpu_pod(gpu=1, gpumem_percentage=10), {"gpumem": "4001"}, True, id="a percentage that may fit"),
        pytest.param(gpu_pod(gpu=1, gpumem_percentage=10), {"gpumem": "4000"}, False, id="a percentage, nothing left"),
        pytest.param(gpu_pod(gpu=2, gpumem_percentage=10), {"gpumem": "4001"}, False, id="two cards, one MiB left"),
        pytest.param(needs_sidecar_and_app(), {"gpumem": "7000"}, True, id="sidecar and app run together"),
        pytest.param(needs_sidecar_and_app(), {"gpumem": "6999"}, False, id="sidecar and app do not fit"),
    ],
)
def test_quota_in_a_namespace_that_uses_4000_mib_and_30_percent(
    document: Json, hard: dict[str, str], fits: bool
) -> None:
    reviewed = review_pod(document, quotas=[quota(**hard)], pods=[running_pod("a", HELD)])
    assert reviewed.allowed is fits
    if not fits:
        assert (reviewed.code, reviewed.message) == (403, "exceeding resource quota")
        assert "allowed" in reviewed.causes[0]
        assert "used" in reviewed.causes[0]
        assert reviewed.warnings == reviewed.causes


def test_the_peak_of_an_init_container_counts_with_the_sidecars_before_it() -> None:
    document = needs_sidecar_and_app()
    document["spec"]["initContainers"][2]["resources"]["limits"]["nvidia.com/gpumem"] = "3000"
    assert review_pod(document, quotas=[quota(gpumem="5000")]).allowed
    assert not review_pod(document, quotas=[quota(gpumem="4999")]).allowed


@pytest.mark.case("QUO-01")
def test_the_smallest_limit_of_several_quotas_holds_in_any_order() -> None:
    strict, loose = quota("strict", gpumem="1000"), quota("loose", gpumem="8000")
    for order in itertools.permutations([strict, loose]):
        assert not review_pod(gpu_pod(gpu=1, gpumem=2000), quotas=order).allowed
        assert review_pod(gpu_pod(gpu=1, gpumem=1000), quotas=order).allowed
        book = book_of(CONFIG, quotas=order)
        kept = limits(loose, CONFIG)
        assert kept is not None
        book.drop_limits(kept)
        assert book.view("team-a").limits["NVIDIA"].memory_mib == 1000
        kept = limits(strict, CONFIG)
        assert kept is not None
        book.drop_limits(kept)
        assert book.view("team-a") == NamespaceQuota()


@pytest.mark.case("QUO-05")
@pytest.mark.parametrize(("limit", "fits"), [("4095", False), ("4096", True)])
def test_amounts_are_per_card(limit: str, fits: bool) -> None:
    document = gpu_pod(gpu=2, gpumem=2048, gpucores=20)
    assert review_pod(document, quotas=[quota(gpumem=limit, gpucores="40")]).allowed is fits


@pytest.mark.case("QUO-07")
@pytest.mark.parametrize("settings", CONFIG.vendors, ids=lambda settings: settings.vendor.word)
def test_every_family_with_memory_or_cores_has_its_quota(settings: device_config.VendorSettings) -> None:
    names = settings.resources
    asks = pod(container(limits={names.count: "1", names.memory: "2000"}))
    config = device_config.DeviceConfig(vendors=(msgspec.structs.replace(settings, memory_factor=2),))
    hard = kube.ResourceQuota(
        metadata=kube.Metadata(name="q", namespace="team-a", uid="q"),
        spec=kube.QuotaSpec(hard={f"limits.{names.memory}": "2000"}),
    )
    assert review_pod(asks, under=policy(config), quotas=[hard]).allowed
    asks["spec"]["containers"][0]["resources"]["limits"][names.memory] = "2001"
    assert not review_pod(asks, under=policy(config), quotas=[hard]).allowed


@pytest.mark.case("QUO-08")
def test_an_update_never_shows_a_namespace_without_limits() -> None:
    """A quota is replaced in one step, so no review can fall between an old and a new one."""
    book = book_of(CONFIG, quotas=[quota(gpumem="1000")])
    for hard in ("1000", "999", "1000"):
        kept = limits(quota(gpumem=hard), CONFIG)
        assert kept is not None
        book.put_limits(kept)
        assert book.view("team-a").limits["NVIDIA"].memory_mib == int(hard)


@pytest.mark.case("QUO-09")
@pytest.mark.parametrize("asked", [{"gpumem": 1}, {"gpumem_percentage": 1}, {}])
def test_a_quota_of_0_blocks(asked: dict[str, int]) -> None:
    assert not review_pod(gpu_pod(gpu=1, **asked), quotas=[quota(gpumem="0")]).allowed


def test_the_namespace_of_the_request_counts_where_the_pod_names_none() -> None:
    document = gpu_pod(gpu=1, gpumem=2)
    del document["metadata"]["namespace"]
    assert not review_pod(document, quotas=[quota(gpumem="1")]).allowed
    assert review_pod(document, quotas=[quota(namespace="team-b", gpumem="1")]).allowed


def test_an_unknown_quota_is_not_checked_and_that_is_said() -> None:
    reviewed = review_pod(gpu_pod(gpu=1), quotas=[quota(gpumem="0")], quota_known=False)
    assert reviewed.allowed
    assert "not known yet" in reviewed.warnings[0]
    assert review_pod(pod(container()), quota_known=False).warnings == []


def test_the_memory_of_a_request_without_any_is_the_configured_one() -> None:
    config = configured(default_memory_mib=2000)
    assert review_pod(gpu_pod(gpu=2, gpucores=0), under=policy(config), quotas=[quota(gpumem="4000")]).allowed
    assert not review_pod(gpu_pod(gpu=2, gpucores=0), under=policy(config), quotas=[quota(gpumem="3999")]).allowed


# ---- what counts as used ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "used"),
    [
        pytest.param(running_pod("a", HELD), Amount(memory_mib=4000, cores_percent=30), id="a running pod"),
        pytest.param(
            running_pod("a", HELD, status={"phase": "Pending"}), Amount(memory_mib=4000, cores_percent=30), id="bound"
        ),
        pytest.param(running_pod("a", HELD, status={"phase": "Succeeded"}), None, id="ended"),
        pytest.param(running_pod("a", HELD, spec={"containers": [container()]}), None, id="not bound"),
        pytest.param(running_pod("a", ";"), None, id="no cards"),
        pytest.param(running_pod("a", "GPU-1,NVIDIA,x,30:;"), None, id="malformed: the cards are blocked elsewhere"),
        pytest.param(
            running_pod("a", "GPU-1,NVIDIA,x,30:GPU-2,NVIDIA,7,1:;"), Amount(memory_mib=7, cores_percent=1),
            id="what of a malformed one can be read",
        ),
    ],
)  # fmt: skip
def test_what_a_pod_holds(found: kube.Pod, used: Amount | None) -> None:
    held = holding(found, CONFIG)
    assert (held.used["NVIDIA"] if held else None) == used


@pytest.mark.case("QUO-04")
@pytest.mark.parametrize(
    "history", [["put", "drop"], ["put", "put", "drop"], ["put", "drop", "drop"], ["drop", "put", "drop", "drop"]]
)
def test_nothing_stays_behind_of_a_pod(history: list[str]) -> None:
    book = book_of(CONFIG, pods=[running_pod("other", HELD)], quotas=[quota(gpumem="9")])
    mine = holding(running_pod("mine", HELD), CONFIG)
    assert mine is not None
    for step in history:
        if step == "put":
            book.put_holding(mine)
        else:
            book.drop_holding("mine")
    assert book.view("team-a").used == {"NVIDIA": Amount(memory_mib=4000, cores_percent=30)}


AMOUNTS = st.builds(Amount, memory_mib=st.integers(0, 100), cores_percent=st.integers(0, 100))
STEPS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["ns-1", "ns-2"]), st.none() | AMOUNTS), max_size=30
)


@given(STEPS)
def test_used_is_the_sum_over_the_pods_that_are_there(steps: list[tuple[str, str, Amount | None]]) -> None:
    book = QuotaBook(CONFIG)
    for namespace in ("ns-1", "ns-2"):
        kept = limits(quota(namespace=namespace, gpumem="1"), CONFIG)
        assert kept is not None
        book.put_limits(kept)
    present: dict[str, tuple[str, Amount]] = {}
    for uid, namespace, amount in steps:
        if amount is None:
            book.drop_holding(uid)
            present.pop(uid, None)
            continue
        held: Any = holding(
            running_pod(uid, f"G,NVIDIA,{amount.memory_mib},{amount.cores_percent}:;", namespace=namespace), CONFIG
        )
        book.put_holding(held)
        present[uid] = (namespace, amount)
    for namespace in ("ns-1", "ns-2"):
        expected = sum((amount for where, amount in present.values() if where == namespace), Amount())
        assert book.view(namespace).used.get("NVIDIA", Amount()) == expected
