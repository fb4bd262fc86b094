"""Families read from descriptor files and from the device configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hami_model import allocations, device_config, handshake, kube, register, requests, templates, vendors
from hami_model.annotation_writers import UnknownWriterError, writer
from hami_model.cards import Slice
from hami_model.device_config import DeviceConfigError
from test_model_handshake import NOW

ASCEND = device_config.default_config(["ascend"])
B3 = ASCEND.vendor("Ascend910B3")
assert B3 is not None


def test_the_catalogue_names_every_word_once() -> None:
    words = [word for family in vendors.catalogue() for word in family.words]
    assert len(set(words)) == len(words)
    assert {"NVIDIA", "DCU", "Ascend910B3", "Ascend910C", "Ascend310P"} <= set(words)


def test_optional_families_are_in_use_only_where_they_are_enabled() -> None:
    assert device_config.default_config().vendor("Ascend910B3") is None
    text = "vnpus: {configs: [{commonWord: Ascend910B3, resourceName: huawei.com/Ascend910B3}]}\nhygon: {}\n"
    assert "vnpus: the family ascend is not enabled, so its section is ignored" in device_config.parse(text).warnings
    found = device_config.parse(text, ["ascend"]).vendor("Ascend910B3")
    assert found is not None
    assert found.resources.count == "huawei.com/Ascend910B3"
    with pytest.raises(DeviceConfigError, match="there are: ascend"):
        device_config.default_config(["asced"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("vnpus: {configs: [{resourceName: a}]}", r"vnpus.configs\[0\].commonWord"),
        ("vnpus: {configs: 3}", "vnpus.configs: must be a list"),
        ("vnpus: {configs: [{commonWord: A}, {commonWord: A}]}", "A is configured twice"),
        ("vnpus: {configs: [{commonWord: A, templates: 3}]}", r"vnpus.configs\[0\]"),
        ("vnpus: {configs: [{commonWord: A, memoryCapacity: -1}]}", "memoryCapacity"),
    ],
)
def test_faults_of_a_list_of_chips_name_their_place(text: str, problem: str) -> None:
    with pytest.raises(DeviceConfigError, match=problem):
        device_config.parse(text, ["ascend"])


def test_keys_of_the_node_side_are_known_and_others_are_warned_of() -> None:
    entry = "{commonWord: A, chipName: a, aiCore: 20, aiCPU: 7, surprise: 1}"
    assert device_config.parse(f"vnpus: {{hamiVnpuCore: true, odd: 1, configs: [{entry}]}}", ["ascend"]).warnings == (
        "vnpus.odd: unknown key is ignored",
        "vnpus.configs[0].surprise: unknown key is ignored",
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"surprise": "1"}, "surprise"),
        ({"health": '"luck"'}, "health"),
        ({"annotations": '"nothing_there"'}, None),
    ],
)
def test_a_descriptor_with_a_fault_is_refused(tmp_path: Path, change: dict[str, str], problem: str | None) -> None:
    text = Path(vendors.__file__).with_name("hygon.toml").read_text()
    for key, value in change.items():
        kept = [line for line in text.splitlines() if not line.startswith(f"{key} ")]
        text = "\n".join([f"{key} = {value}", *kept])
    (tmp_path / "made.toml").write_text(text)
    if problem is None:
        with pytest.raises(UnknownWriterError, match="nothing_there"):
            writer("nothing_there")
    else:
        with pytest.raises(vendors.DescriptorError, match=f"made: .*{problem}"):
            vendors.read_catalogue(tmp_path)


@pytest.mark.parametrize(
    ("memory_mib", "cut"),
    [(0, ("vir05_1c_16g", 16384)), (16385, ("vir10_3c_32g", 32768)), (32769, ("", 65536)), (65537, None)],
)
def test_a_request_takes_the_smallest_template_that_holds_it(memory_mib: int, cut: tuple[str, int] | None) -> None:
    assert B3 is not None
    assert B3.cut_sizes is not None
    found = B3.cut_sizes.cut_for(memory_mib)
    assert (None if found is None else (found.name, found.memory_mib)) == cut
    assert templates.cut_sizes([], whole_card_mib=5, capacity_mib=0).cut_for(9) == templates.Template(
        name="", memory_mib=5
    )


def _pod(annotations: dict[str, str], **limits: str) -> kube.Pod:
    resources = kube.Resources(limits={f"huawei.com/{name.replace('_', '-')}": text for name, text in limits.items()})
    return kube.Pod(
        metadata=kube.Metadata(name="p", namespace="n", uid="u", annotations=annotations),
        spec=kube.PodSpec(containers=[kube.Container(name="c", resources=resources)]),
    )


@pytest.mark.parametrize(
    ("annotations", "mode", "cards"),
    [
        ({}, "", '[{"UUID":"d1","temp":"vir05_1c_16g","memory":16384}]'),
        ({"huawei.com/vnpu-mode": "hami-core"}, "hami-core", '[{"UUID":"d1","memory":16384}]'),
        ({"huawei.com/vnpu-mode": "other"}, "", '[{"UUID":"d1","temp":"vir05_1c_16g","memory":16384}]'),
    ],
)
def test_ascend_writes_what_its_plugin_reads(annotations: dict[str, str], mode: str, cards: str) -> None:
    pod = _pod(annotations, Ascend910B3="1", Ascend910B3_memory="16384")
    request = requests.pod_request(pod, ASCEND, requests.Policies())
    assert [card.soft_split_mode for container in request.containers for card in container.cards] == [mode]
    held = Slice(card_id="d1", vendor="Ascend910B3", memory_mib=16384, cores_percent=0)
    written = allocations.assignment(
        "node-a",
        {"Ascend910B3": ((held,),)},
        ASCEND,
        allocation_id="id",
        now_seconds=7,
        soft_split_modes=requests.soft_split_modes(annotations, ASCEND),
    ).annotations
    assert written["hami.io/Ascend910B3-devices-allocated"] == "d1,Ascend910B3,16384,0:;"
    assert written["predicate-time"] == "7"
    assert written["huawei.com/Ascend910B3"] == cards


def test_custom_information_keeps_plain_values() -> None:
    text = '[{"id":"d0","custominfo":{"NetworkID":0,"AIC":"x","deep":{"a":1},"list":[1],"no":null}}]'
    (card,) = register.decode(B3.vendor, text) if B3 else ()
    assert card.custom == {"NetworkID": 0.0, "AIC": "x", "no": None}


def test_a_silent_plugin_stays_out_until_it_reports_or_cards_are_allocatable() -> None:
    old = "Requesting_2026-11-29 19:00:00"
    steps: list[tuple[str | None, int, bool]] = [
        ("Reported_2026-11-29 19:59:50", 0, True),
        (old, 0, False),
        (None, 0, False),
        ("Reported_2026-11-29 20:00:00", 0, True),
        (old, 4, True),
        (old, 0, False),
        ("Reported_2026-11-29 20:00:00", 0, False),
        (None, 4, True),
    ]
    memory = handshake.Memory()
    usable: list[Any] = []
    for text, allocatable, _ in steps:
        verdict = handshake.judge_answered(memory, handshake=text, allocatable=allocatable, now=NOW)
        memory = verdict.memory
        usable.append(verdict.usable)
    assert usable == [wanted for _, _, wanted in steps]
