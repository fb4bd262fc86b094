"""Where everything of a local cluster lies.

Beside what `hami_sim.controlplane.layout` names (kubeconfig, pki/, kubeconfigs/, logs/, run/):

hami-sim.json            what the cluster consists of, its ports, where its nodes are
settings/                one file per service
nats/                    data of nats-server
n/<index>/               one folder per node, here or, where this path is too long for unix sockets, in a short place
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hami_sim.controlplane.layout import StateLayout

NODES_PATH_MAX = 48
"""Bytes of the nodes' folder; a node's sockets add about 50, and a socket's path has at most 107."""


class ClusterLayout(StateLayout):
    """Paths below one state directory; nothing is created by asking for them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.sim_record = self.root / "hami-sim.json"
        self.settings = self.root / "settings"
        self.nats = self.root / "nats"

    def settings_file(self, service: str) -> Path:
        """Settings that a service is started with."""
        return self.settings / f"{service}.json"

    def create_directories(self) -> None:
        """Makes the directories, closed to other users."""
        super().create_directories()
        for folder in (self.settings, self.nats):
            folder.mkdir(exist_ok=True)

    def own_entries(self) -> tuple[str, ...]:
        """Names in the state directory that are ours to remove."""
        return (
            "cluster.json", "config", "etcd", "hami-sim.json", "kubeconfig", "kubeconfigs", "lock", "logs", "n", "nats",
            "pki", "run", "settings",
        )  # fmt: skip

    def choose_nodes_root(self) -> Path:
        """The nodes' folder: in the state directory where its path is short enough, else a new one in a short place."""
        inside = self.root / "n"
        if len(os.fsencode(inside)) <= NODES_PATH_MAX:
            inside.mkdir(parents=True, exist_ok=True)
            return inside
        for base in filter(None, (os.environ.get("XDG_RUNTIME_DIR"), "/tmp")):  # noqa: S108 (mkdtemp closes it)
            if Path(base).is_dir() and len(os.fsencode(base)) < NODES_PATH_MAX - len("/hami-xxxxxxxx"):
                return Path(tempfile.mkdtemp(prefix="hami-", dir=base))
        inside.mkdir(parents=True, exist_ok=True)
        return inside


class NodeLayout:
    """Paths of one simulated node."""

    def __init__(self, nodes_root: Path, index: int) -> None:
        self.root = nodes_root / str(index)
        self.kubelet = self.root / "k"
        """Takes the place of /var/lib/kubelet."""
        self.cdi = self.root / "cdi"
        self.driver = self.root / "driver.json"
        self.driver_state = self.root / "driver.json.state"
        """Where the driver has it by default, so that `sim-driver --description` alone finds a node's state."""
        self.hook = self.root / "hami"
        """Host folder of what the node-agent hands to containers."""
        self.agent_state = self.root / "agent"
        self.lock = self.root / "lock"

    def create_directories(self) -> None:
        """Makes the folders."""
        for folder in (self.kubelet, self.cdi, self.driver_state, self.hook, self.agent_state, self.lock):
            folder.mkdir(parents=True, exist_ok=True)
