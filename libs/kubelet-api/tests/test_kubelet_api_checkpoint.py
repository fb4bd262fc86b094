import contextlib
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubelet_api.checkpoint import (
    Checkpoint,
    CheckpointData,
    CheckpointError,
    pod_devices_entry,
    read_checkpoint,
    write_checkpoint,
)
from kubelet_api.deviceplugin_v1beta1_pb2 import CDIDevice, ContainerAllocateResponse

RECORDING = Path(__file__).resolve().parents[3] / "tests/data/kube/v1.37.2-late-binding/device-plugin-calls.jsonl"
POD_UID = "76e7b1d2-5643-4188-a2e3-da1625957aae"


def recorded_checkpoints() -> list[bytes]:
    lines = [json.loads(line) for line in RECORDING.read_text().splitlines() if line]
    return [json.dumps(line["body"]).encode() for line in lines if line["call"] == "checkpoint"]


@pytest.mark.parametrize("raw", recorded_checkpoints())
def test_a_recorded_checkpoint_tells_the_containers_that_hold_a_set_of_ids(raw):
    view = read_checkpoint(raw)

    matching = view.holding("example.com/gpu-mem", frozenset({"dev-6", "dev-7", "dev-8", "dev-9"}))

    assert [(entry.pod_uid, entry.container_name) for entry in matching] == [(POD_UID, "init"), (POD_UID, "a")]
    assert [entry.allocate_response().cdi_devices[0].name for entry in matching] == [
        "hami.io/slice=9698180e889d190f",
        "hami.io/slice=ca1b32bf313df02b",
    ]
    assert dict(matching[0].allocate_response().envs) == {"LAB_OWNER": "pending", "NVIDIA_VISIBLE_DEVICES": "void"}
    assert view.registered_devices == {"example.com/gpu-mem": frozenset(f"dev-{i}" for i in range(10))}
    assert view.unreadable == ()


@pytest.mark.parametrize("raw", recorded_checkpoints())
def test_a_recorded_checkpoint_is_written_back_unchanged(raw):
    assert json.loads(write_checkpoint(msgspec.json.decode(raw, type=Checkpoint))) == json.loads(raw)


def test_an_entry_without_sense_is_listed_and_the_others_are_read():
    good = {
        "PodUID": "u",
        "ContainerName": "c",
        "ResourceName": "r",
        "DeviceIDs": {"0": ["a"]},
        "AllocResp": "",
        "New": 1,
    }
    raw = json.dumps({"Data": {"PodDeviceEntries": [{"PodUID": "bad"}, good, 7]}, "Checksum": 1, "Other": {}}).encode()

    view = read_checkpoint(raw)

    assert [entry.pod_uid for entry in view.entries] == ["u"]
    assert [(entry.index, entry.pod_uid) for entry in view.unreadable] == [(0, "bad"), (2, None)]


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"{}", b'{"Data":7}', b'{"Data":{"PodDeviceEntries":{}}}', b"[" * 100_000, b"\xff\xfe"],
)
def test_what_is_no_checkpoint_is_refused(raw):
    with pytest.raises(CheckpointError):
        read_checkpoint(raw)


def test_an_empty_checkpoint_holds_nothing():
    view = read_checkpoint(b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":null},"Checksum":0}')

    assert (view.entries, view.registered_devices) == ((), {})


@pytest.mark.parametrize("alloc_resp", ["!", "AAA", "Cv8="])
def test_an_undecodable_response_names_its_container(alloc_resp):
    entry = pod_devices_entry("u", "c", "r", {0: ["a"]}, ContainerAllocateResponse())
    broken = msgspec.structs.replace(entry, alloc_resp=alloc_resp)

    with pytest.raises(CheckpointError, match="pod u container c"):
        broken.allocate_response()


@given(
    st.lists(
        st.tuples(st.text(), st.text(), st.text(), st.dictionaries(st.integers(0, 7), st.lists(st.text())), st.text())
    )
)
def test_what_is_written_is_read_again(rows):
    entries = [
        pod_devices_entry(
            uid, container, resource, ids, ContainerAllocateResponse(cdi_devices=[CDIDevice(name=cdi_name)])
        )
        for uid, container, resource, ids, cdi_name in rows
    ]

    view = read_checkpoint(write_checkpoint(Checkpoint(CheckpointData(entries, {"r": ["a"]}), 1)))

    assert view.entries == tuple(entries)
    assert [entry.allocate_response().cdi_devices[0].name for entry in view.entries] == [row[4] for row in rows]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["Data", "PodDeviceEntries", "RegisteredDevices", "PodUID", "x"]), inner)
        ),
    )
)
def test_any_json_is_either_a_view_or_a_checkpoint_error(value):
    with contextlib.suppress(CheckpointError):
        read_checkpoint(json.dumps(value).encode())


@given(st.binary())
def test_any_bytes_are_either_a_view_or_a_checkpoint_error(raw):
    with contextlib.suppress(CheckpointError):
        read_checkpoint(raw)
