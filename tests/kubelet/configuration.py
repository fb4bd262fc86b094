"""What containerd, its network plugin, the kubelet and "NVIDIA" are configured with. Pure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from node_places import (
    ADDRESS,
    CDI_FOLDER,
    CONTAINERD_SOCKET,
    CONTROL_GROUP,
    PAUSE_IMAGE,
    PODS_NETWORK,
    Folders,
)

CNI_PROGRAMS = "/usr/lib/cni"


def containerd_toml(folders: Folders, snapshotter: str, runc: str) -> str:
    """Of containerd 2, with its defaults but for places."""
    return f"""\
version = 3
root = "{folders.containerd}"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.cri.v1.images"]
snapshotter = "{snapshotter}"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE_IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi", "{CDI_FOLDER}"]
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{CNI_PROGRAMS}"]
conf_dir = "{folders.configuration}/cni"

[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false
"""


def network() -> str:
    """A wire from each pod to the node."""
    plugin = {
        "type": "ptp",
        "ipam": {"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": PODS_NETWORK}]]},
    }
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [plugin]})


def kubelet(client_authority: Path, certificate: Path, key: Path) -> dict[str, Any]:
    """KubeletConfiguration: defaults, but for the places and for what a test machine cannot give."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": ADDRESS,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(client_authority)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(certificate),
        "tlsPrivateKeyFile": str(key),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CONTROL_GROUP}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "nodeStatusUpdateFrequency": "2s",
        # A test machine's disk may be full to any degree.
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "resolvConf": "",
    }


def nvidia_specification(card_ids: list[str], libraries: list[Path], library_folder: Path, folders: Folders) -> str:
    """What `nvidia-ctk cdi generate` would write for the simulated driver: a device node for each card, and the
    libraries; /dev/null stands in for the nodes."""
    general = {
        "env": [
            f"HAMI_SIM_DRIVER={folders.driver}",
            f"HAMI_SIM_STATE={folders.driver_state}",
            "HAMI_SIM_VISIBLE_DEVICES=nodes",
        ],
        "deviceNodes": [_device_node("/dev/nvidiactl")],
        "mounts": [
            *(_mount(file, library_folder / file.name, "ro") for file in libraries),
            _mount(folders.driver, folders.driver, "ro"),
            _mount(folders.driver_state, folders.driver_state, "rw"),
        ],
    }
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": [_device_node(f"/dev/nvidia{index}")]}}
        for index, card_id in enumerate(card_ids)
        for name in (card_id, str(index))
    ]
    document = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "containerEdits": general, "devices": devices}
    return json.dumps(document)


def _device_node(path: str) -> dict[str, Any]:
    return {"path": path, "hostPath": "/dev/null", "type": "c", "major": 1, "minor": 3, "permissions": "rw"}


def _mount(host: Path, container: Path, access: str) -> dict[str, Any]:
    options = [access, "nosuid", "nodev", "rbind", "rprivate"]
    return {"hostPath": str(host), "containerPath": str(container), "options": options}
