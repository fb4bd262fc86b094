"""CDI specifications: ours, NVIDIA's, and hostile ones."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import msgspec
import pytest
from hami_node_agent.core import cdi_spec
from hami_node_agent.core.cdi_spec import ForeignSpec, NotInSpecificationError
from hami_node_agent.core.grant import Grant, Mount
from hypothesis import given
from hypothesis import strategies as st

GRANT = Grant(
    card_ids=("GPU-a", "GPU-b"),
    environment={"CUDA_DEVICE_MEMORY_LIMIT_0": "1m"},
    mounts=(Mount(container_path="/c", host_path="/h", read_only=True),),
)
# The parts of the CDI schema that every runtime checks.
EDITS = {
    "type": "object",
    "properties": {
        "env": {"type": "array", "items": {"type": "string", "pattern": "^[^=]+=.*$"}},
        "deviceNodes": {"type": "array", "items": {"type": "object", "required": ["path"]}},
        "mounts": {"type": "array", "items": {"type": "object", "required": ["hostPath", "containerPath"]}},
        "hooks": {"type": "array", "items": {"type": "object", "required": ["hookName", "path"]}},
        "additionalGids": {"type": "array", "items": {"type": "integer"}},
    },
    "additionalProperties": False,
}
SCHEMA = {
    "type": "object",
    "required": ["cdiVersion", "kind", "devices"],
    "additionalProperties": False,
    "properties": {
        "cdiVersion": {"type": "string", "pattern": r"^[0-9]+\.[0-9]+\.[0-9]+$"},
        "kind": {"type": "string", "pattern": r"^[a-zA-Z][a-zA-Z0-9._-]*/[a-zA-Z][a-zA-Z0-9_-]*$"},
        "devices": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "containerEdits"],
                "properties": {
                    "name": {"type": "string", "pattern": r"^[a-zA-Z0-9][a-zA-Z0-9_.:-]*$"},
                    "containerEdits": EDITS,
                },
            },
        },
    },
}


def nvidia(names: tuple[str, ...], *, version: str = "0.7.0", kind: str = "nvidia.com/gpu") -> ForeignSpec:
    found = cdi_spec.foreign_spec(
        {
            "cdiVersion": version,
            "kind": kind,
            "devices": [
                {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/of-{name}"}]}} for name in names
            ],
            "containerEdits": {
                "env": ["NVIDIA_VISIBLE_DEVICES=all"],
                "hooks": [{"hookName": "createContainer", "path": "/x"}],
                "additionalGids": [44],
            },
        }
    )
    assert found is not None
    return found


def test_our_specification_says_cards_limits_and_that_the_hand_over_is_done() -> None:
    document = json.loads(cdi_spec.own_spec("abc", GRANT, cdi_spec.shown_by_runtime(GRANT.card_ids)))

    jsonschema.validate(document, SCHEMA)
    assert document["kind"] == "hami.io/slice"
    assert document["cdiVersion"] == "0.5.0"
    edits = document["devices"][0]["containerEdits"]
    assert set(edits["env"]) == {
        "CUDA_DEVICE_MEMORY_LIMIT_0=1m",
        "NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b",
        "HAMI_HANDOFF=done",
    }
    assert edits["mounts"] == [{"hostPath": "/h", "containerPath": "/c", "options": ["ro", "nosuid", "nodev", "rbind"]}]


@pytest.mark.parametrize(
    "names",
    [pytest.param(("0", "1", "all"), id="by index"), pytest.param(("GPU-b", "GPU-a"), id="by UUID")],
)
def test_nvidia_s_edits_come_first_and_the_variable_is_void(names: tuple[str, ...]) -> None:
    shown = cdi_spec.shown_by_edits({"GPU-b": 1, "GPU-a": 0}, [nvidia(names)])

    document = json.loads(cdi_spec.own_spec("abc", GRANT, shown))

    jsonschema.validate(document, SCHEMA)
    assert document["cdiVersion"] == "0.7.0"
    edits = document["devices"][0]["containerEdits"]
    assert [text for text in edits["env"] if text.startswith("NVIDIA_VISIBLE")] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert len(edits["deviceNodes"]) == 2
    assert edits["additionalGids"] == [44]


def test_a_card_that_no_specification_names_is_said() -> None:
    with pytest.raises(NotInSpecificationError, match="nvidia-ctk cdi generate"):
        cdi_spec.shown_by_edits({"GPU-c": 2}, [nvidia(("0", "1"))])


def test_cards_are_not_put_together_from_two_specifications() -> None:
    with pytest.raises(NotInSpecificationError):
        cdi_spec.shown_by_edits(
            {"GPU-a": 0, "GPU-b": 1},
            [nvidia(("0",)), nvidia(("1",), kind="k8s.device-plugin.nvidia.com/gpu")],
        )


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
