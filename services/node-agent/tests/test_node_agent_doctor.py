"""What `hami-node-agent doctor` says of a machine, and that looking changes nothing there."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hami_node_agent.core.doctor import Folder, KubernetesView, MachineFacts, OtherPod, Wishes, examine, is_well
from node_agent_world import World, card_id, new_world

GOOD = MachineFacts(
    kubernetes=KubernetesView(kubelet_version="v1.34.4", runtime_version="containerd://2.0.5"),
    plugins=Folder(path="/plugins", is_there=True, is_writable=True, mode=0o755),
    card_ids=("GPU-a",),
    hook=Folder(path="/hook/vgpu", is_there=True, is_writable=True, mode=0o755),
    limits=Folder(path="/hook/vgpu/limits"),
    cdi=Folder(path="/cdi", is_there=True, is_writable=True, mode=0o755),
    state=Folder(path="/state", is_there=True, is_writable=True, mode=0o755),
)
WISHES = Wishes(handoff="late-binding", runtime_cdi="auto", library_file="/libvgpu.so", needs_driver=True)


def but(**changes: Any) -> MachineFacts:
    return msgspec.structs.replace(GOOD, **changes)


def kubernetes(**changes: Any) -> MachineFacts:
    return but(kubernetes=msgspec.structs.replace(GOOD.kubernetes, **changes))


def bad(facts: MachineFacts, wishes: Wishes = WISHES) -> dict[str, str]:
    """Verdicts of what is not well."""
    return {each.check: each.verdict for each in examine(facts, wishes) if each.verdict != "ok"}


def test_where_all_is_well_nothing_is_advised() -> None:
    findings = examine(GOOD, WISHES)
    assert is_well(findings)
    assert {finding.verdict for finding in findings} == {"ok"}
    assert not any(finding.advice for finding in findings)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(
            but(kubernetes=KubernetesView(problem="403")),
            {"api-server": "failure", "other-device-plugin": "warning"},
            id="no API server",
        ),
        pytest.param(kubernetes(kubelet_version="v1.28.1"), {"late-binding": "failure"}, id="a kubelet without CDI"),
        pytest.param(
            kubernetes(runtime_version="containerd://1.7.2"), {"late-binding": "failure"}, id="a runtime without CDI"
        ),
        pytest.param(but(checkpoint_problem="no JSON"), {"late-binding": "failure"}, id="an unknown checkpoint"),
        pytest.param(but(kubelet_answers="refused"), {"kubelet": "failure"}, id="kubelet is away"),
        pytest.param(
            but(plugins=Folder(path="/p", is_there=True)), {"kubelet": "failure"}, id="its folder is read-only"
        ),
        pytest.param(but(pod_resources_problem="no socket"), {"pod-resources": "warning"}, id="no cross-check"),
        pytest.param(
            kubernetes(pods=(OtherPod(name="a/b", images=("nvcr.io/nvidia/k8s-device-plugin:v0.19.3",)),)),
            {"other-device-plugin": "failure"},
            id="NVIDIA's plugin",
        ),
        pytest.param(
            kubernetes(pods=(OtherPod(name="a/b", component="hami-device-plugin"),)),
            {"other-device-plugin": "failure"},
            id="HAMi's plugin",
        ),
        pytest.param(kubernetes(pods=(OtherPod(name="a/b", images=("hami/services:1",)),)), {}, id="our own pod"),
        pytest.param(but(driver_problem="not found", card_ids=()), {"driver": "failure"}, id="no driver"),
        pytest.param(but(card_ids=()), {"driver": "failure"}, id="no card"),
        pytest.param(but(library_problem="no such file"), {"library": "failure"}, id="no library"),
        pytest.param(
            but(hook=msgspec.structs.replace(GOOD.hook, no_exec=True)), {"hook-folder": "failure"}, id="noexec"
        ),
        pytest.param(but(state=Folder(path="/state")), {"state-folder": "failure"}, id="no folder for the book"),
        pytest.param(but(cdi=Folder(path="/cdi")), {"cdi-folder": "failure"}, id="no folder for CDI"),
        pytest.param(
            but(limits=Folder(path="/l", is_there=True, mode=0o777)), {"limits-pages": "failure"}, id="pages for all"
        ),
        pytest.param(but(book_problem="version 9"), {"book": "failure"}, id="a later agent's book"),
    ],
)
def test_what_is_not_well_is_found_alone_and_has_advice(facts: MachineFacts, expected: dict[str, str]) -> None:
    assert bad(facts) == expected
    assert all(finding.advice for finding in examine(facts, WISHES) if finding.verdict != "ok")
    assert is_well(examine(facts, WISHES)) == ("failure" not in expected.values())


def test_a_folder_that_is_not_there_yet_is_said_to_be_made() -> None:
    facts = but(hook=msgspec.structs.replace(GOOD.hook, to_be_made=True))
    assert bad(facts) == {}
    found = {each.check: each.found for each in examine(facts, WISHES)}
    assert found["hook-folder"] == "/hook/vgpu is made at the first start"
    assert found["state-folder"] == "/state"


def test_only_what_the_settings_need_is_missed() -> None:
    old = kubernetes(kubelet_version="v1.20.0")
    assert bad(old, msgspec.structs.replace(WISHES, handoff="auto")) == {"late-binding": "warning"}
    assert bad(old, msgspec.structs.replace(WISHES, handoff="lock")) == {}
    without_cdi = but(cdi=Folder(path="/cdi"))
    assert bad(without_cdi, msgspec.structs.replace(WISHES, handoff="lock")) == {}
    assert bad(but(card_ids=()), msgspec.structs.replace(WISHES, needs_driver=False)) == {"driver": "warning"}


# ---- the command on a simulated node --------------------------------------------------------------------------------


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with new_world() as found:
        found.configuration["files"]["library_file"] = str(found.root / "libvgpu.so")
        (found.root / "libvgpu.so").write_bytes(b"\x7fELF and so on")
        yield found


async def doctor(world: World, *options: str) -> tuple[int, list[dict[str, str]]]:
    file = world.root / "doctor.yaml"
    file.write_text(yaml.safe_dump(world.configuration))
    argv = [sys.executable, "-m", "hami_node_agent.main", "doctor", "--json", "--config", str(file), *options]
    environment = {**os.environ, "HAMI_SIM_DRIVER": str(world.description), "NO_PROXY": "*"}
    done = await asyncio.to_thread(
        subprocess.run, argv, env=environment, capture_output=True, text=True, check=False, timeout=400
    )
    assert done.stderr == ""
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def files_below(folder: Path) -> dict[str, tuple[int, int]]:
    """All but what kubelet and the simulated driver write meanwhile, and the settings of the call."""
    own = (folder / "kl", folder / "driver.json.state", folder / "doctor.yaml")
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_mode)
        for path in folder.rglob("*")
        if not any(path.is_relative_to(each) for each in own)
    }


def write_book(world: World, text: str) -> None:
    folder = Path(world.configuration["files"]["state_dir"])
    folder.mkdir()
    (folder / "handed-out.json").write_text(text)


async def test_a_node_that_is_ready_for_the_agent_is_well_and_is_left_as_it_was(world: World) -> None:
    async with world.kubelet():
        before = files_below(world.root)
        status, findings = await doctor(world)
        assert files_below(world.root) == before
    wrong = [each for each in findings if each["verdict"] != "ok"]
    assert (status, wrong) == (0, [])
    (driver,) = [each for each in findings if each["check"] == "driver"]
    assert card_id(1) in driver["found"]


async def test_a_machine_without_anything_is_told_all_of_it_at_once(world: World) -> None:
    world.configuration["nvml"] = {"library_file": "/nowhere/libnvidia-ml.so.1"}
    world.configuration["files"]["library_file"] = str(world.root / "missing.so")
    status, findings = await doctor(world)
    failed = {each["check"] for each in findings if each["verdict"] == "failure"}
    assert status == 1
    assert {"api-server", "kubelet", "driver", "library"} <= failed
    assert all(each["advice"] for each in findings if each["verdict"] != "ok")


async def test_a_book_of_a_later_agent_is_found_before_it_is_in_the_way(world: World) -> None:
    write_book(world, '{"version":999,"pods":{}}')
    async with world.kubelet():
        status, findings = await doctor(world)
    assert status == 1
    assert [each["check"] for each in findings if each["verdict"] == "failure"] == ["book"]
