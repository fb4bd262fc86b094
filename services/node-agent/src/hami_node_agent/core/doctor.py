"""What keeps the node-agent from working on a machine, judged from what was found there. Changes nothing.

Each finding says what was looked at, what was found, and for what is not well, what to change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from hami_node_agent.core.runtime_support import CdiSupport, HandoffChoice, late_binding_support

Verdict = Literal["ok", "warning", "failure"]

_WORLD_WRITABLE: Final = 0o002
_PLUGIN_IMAGES: Final = ("k8s-device-plugin", "projecthami/hami")
_PLUGIN_COMPONENT: Final = "hami-device-plugin"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""
    """What to change; empty where all is well."""


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of the host as this process sees it."""

    path: str
    to_be_made: bool = False
    """The first start makes it; the rest is said of the folder in which it will be."""
    is_there: bool = False
    is_writable: bool = False
    no_exec: bool = False
    """Its file system runs no programs and loads no libraries."""
    mode: int = 0


class OtherPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of the node, as far as it may be another device plugin."""

    name: str
    images: tuple[str, ...] = ()
    component: str = ""
    """Of the label app.kubernetes.io/component."""


class KubernetesView(msgspec.Struct, frozen=True, kw_only=True):
    """What the API server says of the node; `problem` where it says nothing."""

    problem: str = ""
    kubelet_version: str = ""
    runtime_version: str = ""
    pods: tuple[OtherPod, ...] = ()


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that decide what must be there."""

    handoff: HandoffChoice
    runtime_cdi: CdiSupport
    library_file: str
    needs_driver: bool


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found."""

    kubernetes: KubernetesView
    plugins: Folder
    kubelet_answers: str = ""
    """Why kubelet's socket does not; empty where it does."""
    checkpoint_problem: str = ""
    pod_resources_problem: str = ""
    driver_problem: str = ""
    card_ids: tuple[str, ...] = ()
    library_problem: str = ""
    """Of the library to install, or of the one that is there."""
    hook: Folder
    limits: Folder
    """Of the limits pages; not there before the first start."""
    cdi: Folder
    state: Folder
    book_problem: str = ""


def examine(facts: MachineFacts, wishes: Wishes) -> tuple[Finding, ...]:
    """In the order in which a node-agent needs things."""
    return (
        _kubernetes(facts.kubernetes),
        *_runtime(facts, wishes),
        _kubelet(facts),
        _pod_resources(facts),
        _other_plugins(facts.kubernetes),
        _driver(facts, wishes),
        _library(facts, wishes),
        *_folders(facts, wishes),
        _limits(facts.limits),
        _book(facts),
    )


def is_well(findings: Sequence[Finding]) -> bool:
    """Whether the node-agent can work; warnings do not keep it from that."""
    return not any(finding.verdict == "failure" for finding in findings)


def line(finding: Finding) -> str:
    """For a terminal."""
    advice = f"\n{'':9}{finding.advice}" if finding.advice else ""
    return f"{finding.verdict:9}{finding.check}: {finding.found}{advice}"


def _kubernetes(view: KubernetesView) -> Finding:
    if view.problem:
        return Finding(
            check="api-server",
            verdict="failure",
            found=view.problem,
            advice="check kube.kubeconfig, node.name, and the role hami-node-agent of this account",
        )
    return Finding(check="api-server", verdict="ok", found="it knows this node")


def _runtime(facts: MachineFacts, wishes: Wishes) -> Iterator[Finding]:
    view = facts.kubernetes
    if view.problem or wishes.handoff == "lock":
        return
    support = late_binding_support(
        kubelet_version=view.kubelet_version,
        runtime_version=view.runtime_version,
        cdi=wishes.runtime_cdi,
        checkpoint_problem=facts.checkpoint_problem,
    )
    said = f"kubelet {view.kubelet_version}, {view.runtime_version}"
    if not support.problem:
        yield Finding(check="late-binding", verdict="ok", found=said)
    elif wishes.handoff == "auto":
        yield Finding(
            check="late-binding",
            verdict="warning",
            found=support.problem,
            advice="pods of this node are handed over one after the other, under the node lock",
        )
    else:
        yield Finding(
            check="late-binding", verdict="failure", found=support.problem, advice="or set handoff.mode to lock or auto"
        )


def _kubelet(facts: MachineFacts) -> Finding:
    problem = facts.kubelet_answers or ("" if facts.plugins.is_writable else f"{facts.plugins.path} cannot be written")
    if problem:
        return Finding(
            check="kubelet",
            verdict="failure",
            found=problem,
            advice=f"mount kubelet's folder of plugins at {facts.plugins.path}, or name it in kubelet.plugins_dir",
        )
    return Finding(check="kubelet", verdict="ok", found=f"it listens in {facts.plugins.path}")


def _pod_resources(facts: MachineFacts) -> Finding:
    if facts.pod_resources_problem:
        return Finding(
            check="pod-resources",
            verdict="warning",
            found=facts.pod_resources_problem,
            advice="hand-overs are not cross-checked; mount kubelet's folder pod-resources or set "
            "kubelet.pod_resources_socket",
        )
    return Finding(check="pod-resources", verdict="ok", found="kubelet answers")


def _other_plugins(view: KubernetesView) -> Finding:
    """The API server knows; a socket alone does not say whose it is."""
    if view.problem:
        return Finding(
            check="other-device-plugin",
            verdict="warning",
            found="not known without the API server",
            advice="see that no other device plugin on this node offers the same resource",
        )
    others = sorted(
        pod.name
        for pod in view.pods
        if pod.component == _PLUGIN_COMPONENT or any(word in image for image in pod.images for word in _PLUGIN_IMAGES)
    )
    if others:
        return Finding(
            check="other-device-plugin",
            verdict="failure",
            found=f"{', '.join(others)} may offer the same resource to kubelet: who registers last has it",
            advice="take it off this node (docs/moving-over.md); GPU Operator: devicePlugin.enabled=false",
        )
    return Finding(check="other-device-plugin", verdict="ok", found="none is known")


def _driver(facts: MachineFacts, wishes: Wishes) -> Finding:
    if facts.driver_problem or not facts.card_ids:
        return Finding(
            check="driver",
            verdict="failure" if wishes.needs_driver else "warning",
            found=facts.driver_problem or "the driver knows no card",
            advice="let NVIDIA's runtime show all cards to this container (NVIDIA_VISIBLE_DEVICES=all), or mount the "
            "driver's root and name it in nvml.driver_root",
        )
    return Finding(check="driver", verdict="ok", found=f"{len(facts.card_ids)} cards: {', '.join(facts.card_ids)}")


def _library(facts: MachineFacts, wishes: Wishes) -> Finding:
    if facts.library_problem:
        return Finding(
            check="library",
            verdict="failure",
            found=facts.library_problem,
            advice="set files.library_file to the libvgpu.so to install",
        )
    return Finding(check="library", verdict="ok", found=wishes.library_file or "it is installed")


def _folders(facts: MachineFacts, wishes: Wishes) -> Iterator[Finding]:
    needed = [("hook-folder", facts.hook, "files.hook_path"), ("state-folder", facts.state, "files.state_dir")]
    if wishes.handoff != "lock":
        needed.append(("cdi-folder", facts.cdi, "files.cdi_dir"))
    for check, folder, setting in needed:
        if not folder.is_there or not folder.is_writable:
            yield Finding(
                check=check,
                verdict="failure",
                found=f"{folder.path} {'cannot be written' if folder.is_there else 'is not there'}",
                advice=f"mount it from the host at the same path, writable, or change {setting}",
            )
        elif check == "hook-folder" and folder.no_exec:
            yield Finding(
                check=check,
                verdict="failure",
                found=f"{folder.path} is on a file system that is mounted noexec: no process can load the library",
                advice=f"mount it without noexec, or move {setting} to a file system that may run programs",
            )
        else:
            yield Finding(
                check=check,
                verdict="ok",
                found=f"{folder.path} is made at the first start" if folder.to_be_made else folder.path,
            )


def _limits(folder: Folder) -> Finding:
    if folder.is_there and folder.mode & _WORLD_WRITABLE:
        return Finding(
            check="limits-pages",
            verdict="failure",
            found=f"{folder.path} can be written by everybody ({folder.mode:04o})",
            advice=f"chmod 0755 {folder.path}: libraries refuse pages that others than their owner may change",
        )
    return Finding(
        check="limits-pages",
        verdict="ok",
        found=folder.path if folder.is_there else f"{folder.path} is made at the first start",
    )


def _book(facts: MachineFacts) -> Finding:
    if facts.book_problem:
        return Finding(
            check="book",
            verdict="failure",
            found=facts.book_problem,
            advice="start the node-agent that wrote it; or drain the node of pods with cards and remove the file",
        )
    return Finding(check="book", verdict="ok", found="what was handed out can be read")
