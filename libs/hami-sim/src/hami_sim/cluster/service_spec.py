"""One long-lived program of a local cluster, as data."""

from __future__ import annotations

from typing import Any

import msgspec


class ServiceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How a program is started, and how it is known to be ready."""

    name: str
    argv: tuple[str, ...]
    """Without the settings file, which goes behind as `--config FILE` where there are settings."""
    settings: dict[str, Any] | None = None
    account: str = ""
    """Service account of our namespace whose kubeconfig the program gets. Empty: none of ours."""
    environment: dict[str, str] = {}
    """On top of the starter's own."""
    ready_url: str = ""
    """Answers 200 when ready."""
    ready_nodes: tuple[str, ...] = ()
    """In place of an address: nodes that must be Ready in the API."""
    stage: int
    """Programs of a stage start together, when those of the stage before are ready."""
    node: str = ""
    """The simulated node that it belongs to."""


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over`, group by group."""
    result = dict(base)
    for key, value in over.items():
        known = result.get(key)
        result[key] = merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return result
