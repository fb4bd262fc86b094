"""Where the control plane's programs are looked for, and what is good enough."""

from __future__ import annotations

from pathlib import Path

import pytest
from hami_sim.binaries import BinariesUnavailableError, find_binaries
from hami_sim.binaries.build import build
from hami_sim.binaries.cache import CONTAINERD, ETCD, KUBERNETES, Recipe

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "etcd")


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def install(folder: Path, version: str = "v1.37.9", *, etcd_version: str = "3.6.1", without: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        if name == without:
            continue
        program = folder / name
        says = f"etcd Version: {etcd_version}" if name == "etcd" else f"Kubernetes {version}"
        program.write_text(f"#!/bin/sh\necho '{says}'\n")
        program.chmod(0o755)
    return folder


def test_assets_come_first_then_the_path_then_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for recipe in (KUBERNETES, ETCD):
        install(recipe.folder())
    cached = find_binaries()
    assert (cached.kube_apiserver, cached.etcd) == (
        KUBERNETES.folder() / "kube-apiserver",
        ETCD.folder() / "etcd",
    )

    on_path = install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{on_path}:/usr/bin:/bin")
    assert find_binaries().kube_apiserver == on_path / "kube-apiserver"

    assets = install(tmp_path / "assets")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    found = find_binaries()
    assert {found.etcd.parent, found.kubectl.parent} == {assets}
    assert found.kubelet is None


@pytest.mark.parametrize(
    ("version", "etcd_version", "without", "reason"),
    [
        ("v1.36.4", "3.6.1", "", "'Kubernetes v1.36.4', needed is 1.37 or later"),
        ("v1.37.2", "3.4.23", "", "'etcd Version: 3.4.23', needed is 3.5 or later"),
        ("v1.37.2", "3.6.1", "kube-scheduler", "KUBEBUILDER_ASSETS lacks kube-scheduler"),
        ("v1.37.2", "3.6.1", "etcd", "KUBEBUILDER_ASSETS lacks etcd"),
        ("unknown", "3.6.1", "", "'Kubernetes unknown', needed is 1.37 or later"),
    ],
    ids=["old Kubernetes", "old etcd", "no scheduler", "no etcd", "no version"],
)
def test_what_is_not_good_enough_is_passed_over_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, version: str, etcd_version: str, without: str, reason: str
) -> None:
    assets = install(tmp_path / "assets", version, etcd_version=etcd_version, without=without)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    with pytest.raises(BinariesUnavailableError) as unavailable:
        find_binaries()
    assert reason in str(unavailable.value)
    assert "make kubernetes" in str(unavailable.value)


def test_programs_of_one_kind_are_never_mixed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assets = install(tmp_path / "assets", without="kube-scheduler")
    for recipe in (KUBERNETES, ETCD):
        install(recipe.folder())
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    found = find_binaries()
    assert found.kube_apiserver.parent == KUBERNETES.folder()
    assert found.etcd.parent == assets


def test_without_go_the_build_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BinariesUnavailableError, match="install Go"):
        build(ETCD, lambda _line: None)


def test_the_pinned_versions_are_read_from_the_module_files() -> None:
    assert KUBERNETES.version() == "v1.37.2"
    assert ETCD.version() == "v3.6.16"
    assert CONTAINERD.version() == "v2.4.2"


def test_several_packages_are_named_as_their_programs() -> None:
    assert tuple(package.rpartition("/")[2] for package in CONTAINERD.packages) == CONTAINERD.program_names


def test_a_changed_source_gets_another_folder(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "go.mod").write_text("module x\n\nrequire example.com/program v1.2.3\n")
    recipe = Recipe("program", source, "example.com/program", ("program",))
    (source / "main.go").write_text("package main\n")
    before = recipe.folder()
    (source / "main.go").write_text("package main\n\nfunc main() {}\n")
    assert before.name.startswith("v1.2.3-")
    assert recipe.folder() != before
