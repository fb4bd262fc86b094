"""What can be chosen about a local control plane, and where its programs listen."""

from __future__ import annotations

import msgspec


class ControlPlaneSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The choices of one control plane."""

    extender_url: str | None = None
    """Address of our extender without the verb, such as `http://127.0.0.1:9443`; None configures no extender."""

    controllers: bool = True
    """Whether kube-controller-manager runs. Without it nobody makes the `default` ServiceAccount of a new namespace,
    ends nodes whose lease is old, or makes pods of a Deployment."""

    extra_apiserver_arguments: tuple[str, ...] = ()
    """Appended to kube-apiserver's arguments, such as `--feature-gates=…`."""

    extra_controller_manager_arguments: tuple[str, ...] = ()
    """Appended to kube-controller-manager's arguments."""

    ready_timeout_seconds: float = 300.0
    """For each program; generous, as a laptop that also compiles is slow."""


class Ports(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Loopback TCP ports of the programs."""

    etcd_client: int
    etcd_peer: int
    apiserver: int
    controller_manager: int
    scheduler: int

    @property
    def apiserver_url(self) -> str:
        """Where clients reach the API server."""
        return f"https://127.0.0.1:{self.apiserver}"
