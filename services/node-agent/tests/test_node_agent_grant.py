"""What one container is given."""

from __future__ import annotations

import random

import pytest
from hami_model import kube
from hami_model.cards import Slice
from hami_model.ids import CardId
from hami_node_agent.core import backends, grant
from hami_node_agent.core.backends import EnforcementPolicy, NodeTerms, Promise
from hami_node_agent.core.grant import HostLayout, HostState, LimitPolicy
from hypothesis import given
from hypothesis import strategies as st

LAYOUT = HostLayout()
HOST = HostState(library="/usr/local/vgpu/libvgpu.so.7")


def piece(card: str, memory: int = 1000, cores: int = 10) -> Slice:
    return Slice(card_id=CardId(card), vendor="NVIDIA", memory_mib=memory, cores_percent=cores)


def given_to(
    *slices: Slice, policy: LimitPolicy | None = None, host: HostState = HOST, env: list[kube.EnvVar] | None = None
) -> grant.Grant:
    container = kube.Container(name="main", env=env)
    enforcement = EnforcementPolicy()
    handed = backends.promise(slices, container, position=0, region_name="r.cache", policy=enforcement)
    return backends.make_grant(
        Promise(pod_uid="u1", container=container, handed=handed),
        NodeTerms(layout=LAYOUT, host=host, limits=policy or LimitPolicy(), policy=enforcement),
    )


def test_a_slice_becomes_limits_and_mounts() -> None:
    found = given_to(piece("A", 3000, 30))

    assert found.card_ids == ("A",)
    assert found.environment == {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
        "CUDA_DEVICE_SM_LIMIT": "30",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/r.cache",
    }
    assert [(mount.container_path, mount.host_path, mount.read_only) for mount in found.mounts] == [
        ("/usr/local/vgpu/libvgpu.so", "/usr/local/vgpu/libvgpu.so.7", True),
        ("/usr/local/vgpu", "/usr/local/vgpu/containers/u1_main", False),
        ("/usr/local/vgpu/limits", "/usr/local/vgpu/limits/u1_main", True),
        ("/tmp/vgpulock", "/tmp/vgpulock", False),
        ("/etc/ld.so.preload", "/usr/local/vgpu/ld.so.preload", True),
    ]


@pytest.mark.parametrize(
    ("policy", "more"),
    [
        pytest.param(LimitPolicy(oversubscribed=True), {"CUDA_OVERSUBSCRIBE": "true"}, id="oversubscribed"),
        pytest.param(LimitPolicy(library_log_level="3"), {"LIBCUDA_LOG_LEVEL": "3"}, id="log level"),
        pytest.param(LimitPolicy(disable_core_limit=True), {"GPU_CORE_UTILIZATION_POLICY": "disable"}, id="no cores"),
    ],
)
def test_the_node_s_policy_is_told_to_every_container(policy: LimitPolicy, more: dict[str, str]) -> None:
    assert given_to(piece("A"), policy=policy).environment == {**given_to(piece("A")).environment, **more}


def test_a_licence_brings_its_validator() -> None:
    found = given_to(piece("A"), host=HostState(library="x", has_license=True))

    assert [mount.container_path for mount in found.mounts][-2:] == ["/tmp/license", "/usr/bin/vgpuvalidator"]


@pytest.mark.case("CPR-10")
@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, True),  # also where it is to come from a ConfigMap: that is not the pod's own specification
        ("", True),
        ("false", True),
        ("0", True),
        ("yes", True),
        ("true", False),
        ("1", False),
        ("True", False),
        ("T", False),
    ],
)
def test_control_is_given_up_only_in_so_many_words(value: str | None, *, wanted: bool) -> None:
    found = given_to(piece("A"), env=[kube.EnvVar(name="CUDA_DISABLE_CONTROL", value=value)])
    plain = given_to(piece("A"))

    assert ("/etc/ld.so.preload" in [mount.container_path for mount in found.mounts]) is wanted
    assert [mount for mount in plain.mounts if mount.container_path != "/etc/ld.so.preload" or wanted] == list(
        found.mounts
    )
    assert (found.card_ids, found.environment) == (plain.card_ids, plain.environment)


@given(
    shares=st.lists(st.tuples(st.integers(0, 80000), st.integers(0, 100)), min_size=1, max_size=8),
    order=st.randoms(use_true_random=False),
)
def test_each_limit_is_of_its_card_in_whatever_order_it_was_annotated(
    shares: list[tuple[int, int]], order: random.Random
) -> None:
    slices = [piece(f"card-{number}", *share) for number, share in enumerate(shares)]
    order.shuffle(slices)
    indexes = {f"card-{number}": number for number in range(len(shares))}

    ordered = grant.in_limit_order(slices, indexes)
    found = given_to(*ordered)

    assert sorted(ordered, key=str) == sorted(slices, key=str)
    seen_by_container = sorted(found.card_ids, key=lambda card: indexes[card])
    for number, card in enumerate(seen_by_container):
        memory, cores = shares[indexes[card]]
        assert found.environment[f"CUDA_DEVICE_MEMORY_LIMIT_{number}"] == f"{memory}m"
        limit = found.environment.get(f"CUDA_DEVICE_SM_LIMIT_{number}", found.environment["CUDA_DEVICE_SM_LIMIT"])
        assert int(limit) % 100 == cores % 100
