"""Where things of the node lie, and what it is called."""

from __future__ import annotations

from pathlib import Path

FOLDER_VARIABLE = "HAMI_TEST_KUBELET_NODE"
"""Set inside the node: its folder outside of the private mounts."""
NODE = "real-0"
ADDRESS = "10.111.0.1"
"""A kubelet refuses loopback addresses; this one lies on the loopback device of the node's own network."""
PODS_NETWORK = "10.112.0.0/24"
CONTROL_GROUP = "hami-test-kubelet"
KUBELET_FOLDER = Path("/var/lib/kubelet")
CDI_FOLDER = Path("/var/run/cdi")
CONTAINERD_SOCKET = Path("/run/containerd/containerd.sock")
PAUSE_IMAGE = "example.local/pause:test"
WORKLOAD_IMAGE = "example.local/workload:test"


class Folders:
    """Below the node's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "s"
        """Of the control plane and our services, with everybody's logs."""
        self.kubelet = root / "kubelet"
        """Seen at KUBELET_FOLDER."""
        self.containerd = root / "containerd"
        self.images = root / "images"
        self.configuration = root / "configuration"
        self.driver = root / "driver.json"
        self.driver_state = root / "driver"
        self.hook = root / "hook"
        self.agent_state = root / "agent"
        self.lock = root / "lock"
