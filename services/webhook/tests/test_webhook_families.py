"""Admission of families whose cards hardware cuts, and of several families in one pod."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hami_model import device_config
from hami_model.device_config import DeviceConfig
from webhook_builders import container, pod, policy, review_pod

CONFIG = device_config.default_config(["ascend"])
B3, C = "huawei.com/Ascend910B3", "huawei.com/Ascend910C"
SOFT = {"huawei.com/vnpu-mode": "hami-core"}


def admitted(annotations: dict[str, str] | None = None, **limits: str) -> Any:
    names = {name: f"huawei.com/{name.replace('_', '-')}" for name in limits}
    document = pod(container(limits={names[name]: text for name, text in limits.items()}))
    document["metadata"]["annotations"] = annotations or {}
    return review_pod(document, under=policy(CONFIG))


@pytest.mark.parametrize(
    ("limits", "annotations", "wanted"),
    [
        ({"Ascend910B3": "1", "Ascend910B3_memory": "2000"}, {}, {B3: "1", f"{B3}-memory": "16384"}),
        ({"Ascend910B3": "2"}, {}, {B3: "2", f"{B3}-memory": "65536"}),
        ({"Ascend910B3": "1", "Ascend910B3_memory": "40000"}, {}, {B3: "1", f"{B3}-memory": "65536"}),
        (
            {"Ascend910B3": "1", "Ascend910B3_memory": "2000", "Ascend910B3_core": "30"},
            SOFT,
            {B3: "1", f"{B3}-memory": "2000", f"{B3}-core": "30"},
        ),
        ({"Ascend910C": "1", "Ascend910C_memory": "16384"}, {}, {C: "2", f"{C}-memory": "16384"}),
        ({"Ascend910C": "4"}, {}, {C: "4", f"{C}-memory": "65536"}),
    ],
)
def test_requests_are_fitted_to_what_the_card_can_give(
    limits: dict[str, str], annotations: dict[str, str], wanted: dict[str, str]
) -> None:
    answer = admitted(annotations, **limits)
    resources = answer.pod["spec"]["containers"][0]["resources"]
    assert answer.allowed
    assert resources["limits"] == wanted
    memory = next(name for name in wanted if name.endswith("-memory"))
    assert resources["requests"][memory] == wanted[memory]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"Ascend910B3": "1", "Ascend910B3_memory": "65537"}, ["no card is so large", "16384, 32768 or 65536"]),
        ({"Ascend910B3": "2", "Ascend910B3_memory": "2000"}, ["2 cards are given whole only", "ask for one card"]),
        ({"Ascend910B3": "1", "Ascend910B3_core": "30"}, ["leave it out", "huawei.com/vnpu-mode: hami-core"]),
        ({"Ascend910C": "3"}, ["modules of 2", "ask for a multiple of 2"]),
    ],
)
def test_what_no_card_can_give_is_refused_with_what_to_change(limits: dict[str, str], words: list[str]) -> None:
    answer = admitted(**limits)
    assert not answer.allowed
    assert all(word in answer.message for word in words), answer.message


def _hiding() -> DeviceConfig:
    return DeviceConfig(vendors=tuple(msgspec.structs.replace(found, overwrite_env=True) for found in CONFIG.vendors))


def test_chips_are_hidden_once_and_only_from_containers_that_ask_for_none() -> None:
    document = pod(container("asks", limits={B3: "1"}), container("idle"))
    spec = review_pod(document, under=policy(_hiding())).pod["spec"]
    env = {found["name"]: [entry["name"] for entry in found.get("env", [])] for found in spec["containers"]}
    assert env["idle"].count("ASCEND_VISIBLE_DEVICES") == 1
    assert "ASCEND_VISIBLE_DEVICES" not in env["asks"]


def test_what_the_system_writes_for_a_family_is_taken_off_a_created_pod() -> None:
    written = {"predicate-time": "1", B3: "[]", "hami.io/Ascend910B3-devices-allocated": ";", "mine": "1"}
    answer = admitted(written, Ascend910B3="1")
    assert answer.pod["metadata"]["annotations"] == {"mine": "1"}
