"""CDI specifications: ours, NVIDIA's, and hostile ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hami_node_agent.core import cdi_document, cdi_spec
from hami_node_agent.core.cdi_spec import ForeignSpec, NotInSpecificationError
from hami_node_agent.core.device_lists import DeviceRules, VisibleDevice
from hami_node_agent.core.grant import Grant, Mount
from hypothesis import given
from hypothesis import strategies as st

GRANT = Grant(
    card_ids=("GPU-a", "GPU-b"),
    environment={"CUDA_DEVICE_MEMORY_LIMIT_0": "1m"},
    mounts=(Mount(container_path="/c", host_path="/h", read_only=True),),
)
SCHEMA = json.loads((Path(__file__).parents[3] / "tests" / "data" / "cdi" / "schema.json").read_text())
CARDS = (
    VisibleDevice(uuid="GPU-b", index="1", nodes=("/dev/nvidia4",)),
    VisibleDevice(uuid="GPU-a", index="0", nodes=("/dev/nvidia3",)),
)


def nvidia(
    names: tuple[str, ...], *, kind: str = "nvidia.com/gpu", file: str = "a.json", rank: int = 0, node: str = "of"
) -> ForeignSpec:
    found = cdi_spec.foreign_spec(
        {
            "cdiVersion": "0.7.0",
            "kind": kind,
            "devices": [
                {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/{node}-{name}"}]}} for name in names
            ],
            "containerEdits": {
                "env": ["NVIDIA_VISIBLE_DEVICES=all"],
                "hooks": [{"hookName": "createContainer", "path": "/x"}],
                "additionalGids": [44],
            },
        },
        file=file,
        rank=rank,
    )
    assert found is not None
    return found


def test_our_specification_says_cards_limits_and_that_the_hand_over_is_done() -> None:
    document = json.loads(cdi_spec.own_spec("abc", GRANT, cdi_spec.shown_by_runtime(CARDS, DeviceRules())))

    jsonschema.validate(document, SCHEMA)
    assert document["kind"] == "hami.io/slice"
    assert document["cdiVersion"] == "0.5.0"
    edits = document["devices"][0]["containerEdits"]
    assert set(edits["env"]) == {
        "CUDA_DEVICE_MEMORY_LIMIT_0=1m",
        "NVIDIA_VISIBLE_DEVICES=GPU-b,GPU-a",
        "HAMI_HANDOFF=done",
    }
    assert edits["mounts"] == [{"hostPath": "/h", "containerPath": "/c", "options": ["ro", "nosuid", "nodev", "rbind"]}]


@pytest.mark.parametrize(
    "names",
    [pytest.param(("0", "1", "all"), id="by index"), pytest.param(("GPU-b", "GPU-a"), id="by UUID")],
)
def test_nvidia_s_edits_come_first_and_the_variable_is_void(names: tuple[str, ...]) -> None:
    shown = cdi_spec.shown_by_edits(CARDS, [nvidia(names)])

    document = json.loads(cdi_spec.own_spec("abc", GRANT, shown))

    jsonschema.validate(document, SCHEMA)
    assert document["cdiVersion"] == "0.7.0"
    edits = document["devices"][0]["containerEdits"]
    assert [text for text in edits["env"] if text.startswith("NVIDIA_VISIBLE")] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert len(edits["deviceNodes"]) == 2
    assert edits["additionalGids"] == [44]


def test_a_card_that_no_specification_names_is_said() -> None:
    with pytest.raises(NotInSpecificationError, match="nvidia-ctk cdi generate"):
        cdi_spec.shown_by_edits([VisibleDevice(uuid="GPU-c", index="2")], [nvidia(("0", "1"))])


def test_cards_are_not_put_together_from_two_specifications() -> None:
    with pytest.raises(NotInSpecificationError):
        cdi_spec.shown_by_edits(CARDS, [nvidia(("0",)), nvidia(("1",), kind="k8s.device-plugin.nvidia.com/gpu")])


def nodes(*specs: ForeignSpec) -> list[str]:
    shown = cdi_spec.shown_by_edits(CARDS[:1], specs)
    return [node["path"] for edits in shown.edits for node in edits.get("deviceNodes", [])]


def test_of_two_folders_the_later_one_counts() -> None:
    assert nodes(nvidia(("1",), rank=1, node="later"), nvidia(("1",), rank=0)) == ["/dev/later-1"]


def test_two_specifications_that_contradict_each_other_are_named() -> None:
    specs = [nvidia(("1",), file="/x/a.json"), nvidia(("1", "7"), file="/x/b.yaml", node="other")]

    with pytest.raises(NotInSpecificationError, match=r"/x/a.json, /x/b.yaml; remove all but one"):
        nodes(*specs)
    assert cdi_spec.conflicts(specs) == [
        "CDI device nvidia.com/gpu=1 is named by /x/a.json and /x/b.yaml: remove all but one of them"
    ]


def test_two_that_say_the_same_do_no_harm() -> None:
    assert nodes(nvidia(("1",), file="/x/a.json"), nvidia(("1",), file="/x/b.json")) == ["/dev/of-1"]


def test_nothing_is_in_conflict_over_several_folders() -> None:
    assert cdi_spec.conflicts([nvidia(("1",)), nvidia(("1",), rank=1)]) == []


def test_members_of_newer_versions_are_kept_and_unknown_ones_left_out() -> None:
    rdt = {"closID": "c", "schemata": ["L3:0=f"], "enableMonitoring": True}
    found = cdi_spec.foreign_spec(
        {
            "cdiVersion": "9.0.0",
            "kind": "nvidia.com/gpu",
            "annotations": {"a": "b"},
            "tomorrow": {},
            "devices": [
                {
                    "name": "1",
                    "containerEdits": {
                        "intelRdt": rdt,
                        "netDevices": [{"hostInterfaceName": "e0", "name": "e1"}],
                        "mounts": [{"hostPath": "/h", "containerPath": "/c", "colour": "red"}],
                        "unheardOf": [1],
                    },
                }
            ],
        }
    )
    assert found is not None

    document = json.loads(cdi_spec.own_spec("abc", GRANT, cdi_spec.shown_by_edits(CARDS[:1], [found])))

    jsonschema.validate(document, SCHEMA)
    assert document["cdiVersion"] == "1.1.0"
    edits = document["devices"][0]["containerEdits"]
    assert edits["intelRdt"] == rdt
    assert edits["netDevices"] == [{"hostInterfaceName": "e0", "name": "e1"}]
    assert found.problems == ("device 1: mounts.colour, unheardOf is not known here and left out",)


@pytest.mark.parametrize(
    "edits",
    [
        pytest.param({"deviceNodes": [{"path": "relative"}]}, id="a relative path"),
        pytest.param({"hooks": [{"hookName": "sometime", "path": "/x"}]}, id="an unknown moment"),
        pytest.param({"env": ["NO_VALUE"]}, id="no assignment"),
        pytest.param({"mounts": [{"hostPath": "/h"}]}, id="no target"),
        pytest.param({"deviceNodes": "/dev/nvidia0"}, id="no list"),
    ],
)
def test_a_device_that_makes_no_sense_is_left_out_alone(edits: dict[str, Any]) -> None:
    devices = [{"name": "1", "containerEdits": edits}, {"name": "0", "containerEdits": {"env": ["A=b"]}}]

    found = cdi_spec.foreign_spec({"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices})

    assert found is not None
    assert list(found.devices) == ["0"]
    assert len(found.problems) == 1


@pytest.mark.parametrize("by", [DeviceRules(strategies=("volume-mounts",)), DeviceRules(id_strategy="index")])
@pytest.mark.parametrize("pass_nodes", [False, True])
def test_whatever_is_configured_our_specification_is_one(by: DeviceRules, *, pass_nodes: bool) -> None:
    rules = msgspec.structs.replace(
        by, pass_nodes=pass_nodes, imex_channels=(0,), features=("gds",), control_nodes=("/dev/nvidiactl",)
    )

    document = json.loads(cdi_spec.own_spec("abc", GRANT, cdi_spec.shown_by_runtime(CARDS, rules)))

    jsonschema.validate(document, SCHEMA)
    edits = document["devices"][0]["containerEdits"]
    assert ("deviceNodes" in edits) is pass_nodes
    assert "NVIDIA_GDS=enabled" in edits["env"]


EDITS = st.fixed_dictionaries(
    {},
    optional={
        "env": st.lists(st.sampled_from(["A=1", "A=", "B==", "=x", "no"]), max_size=3),
        "deviceNodes": st.lists(
            st.fixed_dictionaries(
                {"path": st.sampled_from(["/dev/a", "dev/a", ""])},
                optional={"type": st.sampled_from(["c", "z"]), "fileMode": st.integers(-1, 511), "odd": st.none()},
            ),
            max_size=2,
        ),
        "additionalGids": st.lists(st.integers(-1, 2**32), max_size=2),
        "hooks": st.lists(
            st.fixed_dictionaries({"hookName": st.sampled_from(["prestart", "x"]), "path": st.just("/h")}), max_size=1
        ),
        "intelRdt": st.fixed_dictionaries({}, optional={"closID": st.text(max_size=3), "l3CacheSchema": st.text()}),
    },
)


@given(EDITS)
def test_what_we_write_has_the_public_schema_and_what_we_refuse_has_not(edits: dict[str, Any]) -> None:
    document = {
        "cdiVersion": "1.1.0",
        "kind": "hami.io/slice",
        "devices": [{"name": "a", "containerEdits": edits}],
    }
    try:
        written = json.loads(cdi_document.encoded("hami.io/slice", {"a": edits}))
    except cdi_document.InvalidSpecificationError:
        assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(document) or not any(edits.values())
    else:
        jsonschema.validate(written, SCHEMA)


@pytest.mark.parametrize(
    ("uid", "name"),
    [("../../etc", "a"), ("u/1", "a"), ("", "a"), ("u1", "../a"), ("u1", ""), ("u1", "a" * 64), ("-u", "a")],
)
def test_nothing_hostile_becomes_part_of_a_path(uid: str, name: str) -> None:
    assert cdi_spec.file_name(uid, name) is None


@given(st.text(), st.text())
def test_a_file_is_of_the_pod_that_it_was_named_for(uid: str, name: str) -> None:
    file = cdi_spec.file_name(uid, name)

    assert file is None or (cdi_spec.owner_of_file(file) == uid and "/" not in file and "\0" not in file)


@pytest.mark.parametrize("qualified", ["nvidia.com/gpu=0", "hami.io/slice=", "hami.io/slice=../x", "hami.io/slice"])
def test_only_our_own_names_are_ours(qualified: str) -> None:
    assert cdi_spec.own_name(qualified) is None
    assert cdi_spec.own_name(cdi_spec.device_name("abc")) == "abc"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_any_document_is_read_or_left_out(document: object) -> None:
    assert cdi_spec.foreign_spec(document) is None or isinstance(document, dict)


@given(st.lists(st.dictionaries(st.sampled_from(["env", "mounts", "hooks", "odd"]), JSON, max_size=4), max_size=4))
def test_edits_of_any_shape_can_be_merged_and_written(parts: list[dict[str, Any]]) -> None:
    msgspec.json.encode(cdi_spec.merged(parts))
