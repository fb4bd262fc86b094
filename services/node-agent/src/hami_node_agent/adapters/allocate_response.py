"""What kubelet is answered where Allocate itself hands a container over."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from kubelet_api import deviceplugin_v1beta1_pb2 as pb

from hami_node_agent.core.device_lists import DeviceRules, VisibleDevice, device_list
from hami_node_agent.core.grant import Grant

_READ_AND_WRITE = "rw"


def allocate_response(
    given: Grant, devices: Sequence[VisibleDevice], rules: DeviceRules
) -> pb.ContainerAllocateResponse:
    """Limits, files and devices of one container."""
    listed = device_list(devices, rules, str(uuid.uuid4()))
    return pb.ContainerAllocateResponse(
        envs={**given.environment, **listed.environment},
        mounts=[
            pb.Mount(container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only)
            for mount in (*listed.mounts, *given.mounts)
        ],
        devices=[
            pb.DeviceSpec(container_path=node.container_path, host_path=node.host_path, permissions=_READ_AND_WRITE)
            for node in listed.nodes
        ],
        annotations=listed.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in listed.cdi_devices],
    )
