"""Whether this node's kubelet and container runtime can bind late, and which hand-off follows."""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec
from hami_model.register import Handoff

HandoffChoice = Literal["late-binding", "lock", "auto"]
CdiSupport = Literal["auto", "yes", "no"]

_VERSION: Final = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})")
_KUBELET_WITH_CDI: Final = (1, 29)
_RUNTIMES_WITH_CDI: Final = {"containerd": (2, 0), "cri-o": (1, 23)}
"""First version that resolves CDI names without being configured to."""


class Support(msgspec.Struct, frozen=True, kw_only=True):
    """`problem` is empty where late binding works; else one sentence with what to change."""

    problem: str = ""


class HandoffRefusedError(Exception):
    """The hand-off that was asked for cannot work on this node."""


def late_binding_support(
    *, kubelet_version: str, runtime_version: str, cdi: CdiSupport, checkpoint_problem: str
) -> Support:
    """Judges by what the node's status says; `cdi` is the operator's word for runtimes that cannot be judged so."""
    kubelet = _version(kubelet_version)
    if kubelet is None or kubelet < _KUBELET_WITH_CDI:
        return Support(problem=f"kubelet {kubelet_version or 'of unknown version'} does not pass CDI names on; "
                       "1.29 is the first that does")  # fmt: skip
    if checkpoint_problem:
        return Support(problem=f"kubelet's device checkpoint cannot be read: {checkpoint_problem}")
    return Support(problem=_runtime_problem(runtime_version, cdi))


def choose_handoff(wanted: HandoffChoice, support: Support) -> tuple[Handoff, str]:
    """The hand-off, and why. Raises HandoffRefusedError where late binding is asked for and cannot work."""
    if wanted == "lock":
        return "lock", "it is configured"
    if not support.problem:
        return "late-binding", "kubelet and runtime support it" if wanted == "auto" else "it is configured"
    if wanted == "auto":
        return "lock", support.problem
    raise HandoffRefusedError(
        f"late binding cannot work on this node: {support.problem}; or set handoff.mode to lock or auto"
    )


def _runtime_problem(runtime_version: str, cdi: CdiSupport) -> str:
    if cdi == "yes":
        return ""
    if cdi == "no":
        return "handoff.runtime_cdi says that the runtime resolves no CDI names"
    name, _, text = runtime_version.partition("://")
    first, version = _RUNTIMES_WITH_CDI.get(name), _version(text)
    if first is not None and version is not None and version >= first:
        return ""
    if name == "containerd":
        return (
            f"{runtime_version} resolves CDI names only with enable_cdi in its configuration; "
            "set it, and then handoff.runtime_cdi to yes"
        )
    return (
        f"it is not known whether runtime {runtime_version or '(none in the node status)'} resolves CDI names; "
        "if it does, set handoff.runtime_cdi to yes"
    )


def _version(text: str) -> tuple[int, int] | None:
    match = _VERSION.match(text)
    return (int(match[1]), int(match[2])) if match else None
