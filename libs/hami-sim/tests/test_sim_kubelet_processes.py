"""Folders of containers on a node, whatever an earlier stand-in left of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hami_sim.kubelet import processes
from hami_sim.kubelet.processes import ContainerProcesses
from hami_sim.kubelet.shim_server import ShimServer


def test_what_a_removal_cut_short_left_is_no_container_and_goes_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = tmp_path / "containers/uid/main/0"
    (attempt / "scratch").mkdir(parents=True)
    (attempt / "shim.json").write_text("{}")

    def cut_short(_: Path) -> None:
        raise InterruptedError

    with monkeypatch.context() as killed:
        killed.setattr(processes, "remove_tree", cut_short)
        ContainerProcesses(tmp_path / "containers", ShimServer()).remove_pod("uid")
    next_one = ContainerProcesses(tmp_path / "containers", ShimServer())
    assert next_one.pods() == []
    assert list(tmp_path.rglob("shim.json")) != []
    next_one.give_up_unstarted()
    assert list(tmp_path.rglob("shim.json")) == []
