"""The agent's own checkpoint, and whose kubelet's devices are."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hami_node_agent.core import checkpoint_match, handed_out
from hami_node_agent.core.checkpoint_match import Holder, Unmatched
from hami_node_agent.core.handed_out import (
    HandedContainer,
    HandedOut,
    HandedPod,
    HandedSlice,
    MalformedCheckpointError,
    NewerCheckpointError,
)
from hypothesis import given
from hypothesis import strategies as st
from kubelet_api.checkpoint import CheckpointView, read_checkpoint
from kubelet_api.deviceplugin_v1beta1_pb2 import CDIDevice, ContainerAllocateResponse

RESOURCE = "nvidia.com/gpu"
VARIABLE = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
SLICES = st.builds(HandedSlice, card_id=st.text(), memory_mib=st.integers(0, 2**31), cores_percent=st.integers(0, 100))
CONTAINERS = st.builds(
    HandedContainer, slices=st.lists(SLICES).map(tuple), region_name=st.text(), position=st.integers(0, 100)
)
PODS = st.builds(
    HandedPod,
    namespace=st.text(),
    name=st.text(),
    allocation_id=st.text(),
    state=st.sampled_from(["allocated", "failed"]),
    reason=st.text(),
    containers=st.dictionaries(st.text(), CONTAINERS, max_size=3),
)
POD = HandedPod(namespace="ns", name="p", allocation_id="a")


def handed(region: str = "r.cache", memory: int = 1) -> HandedContainer:
    return HandedContainer(
        slices=(HandedSlice(card_id="A", memory_mib=memory, cores_percent=1),), region_name=region, position=0
    )


@given(st.dictionaries(st.text(), PODS, max_size=4))
def test_what_is_written_is_read_again(pods: dict[str, HandedPod]) -> None:
    assert dict(handed_out.decode(handed_out.encode(HandedOut(pods))).items()) == pods


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_a_book_or_malformed(raw: bytes) -> None:
    try:
        handed_out.decode(raw)
    except (MalformedCheckpointError, NewerCheckpointError):
        return


def test_a_later_version_is_not_guessed_at() -> None:
    with pytest.raises(NewerCheckpointError, match="version 2"):
        handed_out.decode(b'{"version": 2, "pods": {}}')


def test_the_first_form_is_read() -> None:
    """As the first agents wrote it, without any member that came later."""
    book = handed_out.decode(
        b'{"version":1,"pods":{"u":{"namespace":"n","name":"p","allocation_id":"a","state":"allocated","reason":"",'
        b'"containers":{"main":{"slices":[{"card_id":"GPU-a","memory_mib":3000,"cores_percent":30}],'
        b'"region_name":"r.cache","position":0}}}}}'
    )

    found = book.get("u")
    assert found is not None
    assert found.containers["main"] == HandedContainer(
        slices=(HandedSlice(card_id="GPU-a", memory_mib=3000, cores_percent=30),), region_name="r.cache", position=0
    )


def test_members_of_a_later_agent_are_skipped() -> None:
    book = handed_out.decode(
        b'{"version":1,"more":1,"pods":{"u":{"namespace":"n","name":"p","allocation_id":"a","verified":true}}}'
    )
    assert book.get("u") == HandedPod(namespace="n", name="p", allocation_id="a")


def test_the_first_hand_over_and_the_first_reason_hold() -> None:
    book = HandedOut()
    book.add_container("u", POD, "main", handed(memory=1))
    book.add_container("u", POD, "main", handed(memory=2))
    book.fail("u", POD, "first")
    book.fail("u", POD, "second")

    found = book.get("u")
    assert found is not None
    assert found.containers["main"].slices[0].memory_mib == 1
    assert (found.state, found.reason) == ("failed", "first")


def test_a_region_file_tells_who_was_answered() -> None:
    book = HandedOut()
    book.add_container("u1", POD, "main", handed("one.cache"))
    book.add_container("u2", POD, "side", handed("two.cache"))

    assert handed_out.receiver_of(book, "/usr/local/vgpu/two.cache") == ("u2", "side")
    assert handed_out.receiver_of(book, "/usr/local/vgpu/three.cache") is None
    assert handed_out.receiver_of(book, "") is None


# ---- kubelet's checkpoint ------------------------------------------------------------------------------------------


def response(name: str | None = None, region: str = "") -> str:
    message = ContainerAllocateResponse(
        envs={VARIABLE: region} if region else {}, cdi_devices=[CDIDevice(name=name)] if name else []
    )
    return base64.b64encode(message.SerializeToString()).decode()


def entry(pod: str, container: str, ids: list[str], answer: str, resource: str = RESOURCE) -> dict[str, Any]:
    return {
        "PodUID": pod, "ContainerName": container, "ResourceName": resource, "DeviceIDs": {"-1": ids},
        "AllocResp": answer,
    }  # fmt: skip


def view(*entries: object) -> CheckpointView:
    return read_checkpoint(json.dumps({"Data": {"PodDeviceEntries": entries}, "Checksum": 1}).encode())


def test_ids_given_again_to_an_app_container_have_two_holders() -> None:
    found = checkpoint_match.holders(
        view(
            entry("u", "init", ["a", "b"], response("hami.io/slice=one")),
            entry("u", "app", ["b", "a"], response("hami.io/slice=two")),
            entry("u", "other", ["a"], response("hami.io/slice=three")),
            entry("u", "else", ["a", "b"], response("hami.io/slice=four"), resource="x/y"),
        ),
        RESOURCE,
        ["a", "b"],
        VARIABLE,
    )

    assert found == (
        Holder(pod_uid="u", container="init", cdi_name="one"),
        Holder(pod_uid="u", container="app", cdi_name="two"),
    )


def test_an_answer_without_a_name_was_given_by_lock() -> None:
    found = checkpoint_match.holders(
        view(entry("u", "c", ["a"], response(region="/x/r.cache"))), RESOURCE, ["a"], VARIABLE
    )

    assert found == (Holder(pod_uid="u", container="c", cdi_name=None, region_file="/x/r.cache"),)


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([], id="nobody"),
        pytest.param([entry("u", "c", ["a"], "!!")], id="an answer that is no message"),
        pytest.param([{"PodUID": 3}], id="an entry of another shape"),
    ],
)
def test_where_nobody_can_be_told_kubelet_is_asked_to_come_again(entries: list[Any]) -> None:
    assert isinstance(checkpoint_match.holders(view(*entries), RESOURCE, ["a"], VARIABLE), Unmatched)


IDS = st.sets(st.sampled_from("abcdef"), min_size=1, max_size=4)


@given(st.lists(IDS, max_size=8), IDS)
def test_holders_are_exactly_those_with_the_same_ids(held: list[set[str]], wanted: set[str]) -> None:
    entries = [
        entry(f"u{number}", "c", sorted(ids), response(f"hami.io/slice=n{number}")) for number, ids in enumerate(held)
    ]

    found = checkpoint_match.holders(view(*entries), RESOURCE, wanted, VARIABLE)

    expected = [f"u{number}" for number, ids in enumerate(held) if ids == wanted]
    assert ([holder.pod_uid for holder in found] if isinstance(found, tuple) else []) == expected
