"""What is installed when a program is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hami_sim.debian_packages import PackageUnavailableError, install_missing


@pytest.fixture
def apt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An apt-get that writes down how it was called, and installs `wanted`."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    program, calls = tmp_path / "apt-get", tmp_path / "calls"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {calls}\nprintf "" > {tmp_path}/wanted\n/bin/chmod +x {tmp_path}/wanted\n'
    )
    program.chmod(0o755)
    return calls


def test_what_is_there_is_not_installed(apt: Path) -> None:
    install_missing({"apt-get": "apt"}, lambda _line: None)
    assert not apt.exists()


def test_what_is_missing_is_installed_once(apt: Path) -> None:
    said: list[str] = []
    install_missing({"wanted": "some-package", str(apt.parent / "wanted"): "some-package"}, said.append)
    assert apt.read_text().splitlines() == [
        "update -qq",
        "install -y -qq --no-install-recommends some-package",
    ]
    assert said == ["installing some-package"]


def test_a_package_without_the_program_is_told(apt: Path) -> None:
    with pytest.raises(PackageUnavailableError, match="other still missing"):
        install_missing({"other": "some-package"}, lambda _line: None)
    assert apt.exists()


def test_only_root_can_install(apt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(
        PackageUnavailableError, match="wanted is missing, and installing some-package needs apt-get and root"
    ):
        install_missing({"wanted": "some-package"}, lambda _line: None)
    assert not apt.exists()
