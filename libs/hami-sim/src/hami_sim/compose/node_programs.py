"""The table of a node container's programs: what each is started with. Pure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
from kubelet_api.constants import DEVICE_PLUGINS_FOLDER, KUBELET_SOCKET, POD_RESOURCES_FOLDER

from hami_sim.cluster.artefacts import Artefacts
from hami_sim.cluster.layout import NodeLayout
from hami_sim.compose import places
from hami_sim.controlplane.layout import CertificateFiles, StateLayout
from hami_sim.loopback_ports import LOOPBACK

NODE_AGENT_PORT = 9397
MONITOR_PORT = 9394
USAGE_PERIOD_SECONDS = 2.0


class NodeProgram(msgspec.Struct, frozen=True, kw_only=True):
    """One program, and the file whose appearance says that the next may start."""

    name: str
    argv: tuple[str, ...]
    """Without `--config FILE`, which goes behind."""
    settings: dict[str, Any]
    environment: dict[str, str] = {}
    ready_file: Path | None = None


def node_programs(
    name: str, address: str, place: NodeLayout, artefacts: Artefacts, certificate: CertificateFiles
) -> tuple[NodeProgram, ...]:
    """In the order in which they start."""
    return (
        _kubelet(name, address, place, artefacts, certificate),
        _node_agent(name, place, artefacts),
        _monitor(name, place, artefacts),
    )


def _kubelet(
    name: str, address: str, place: NodeLayout, artefacts: Artefacts, certificate: CertificateFiles
) -> NodeProgram:
    """It is no service of ours and acts as the administrator."""
    return NodeProgram(
        name="kubelet",
        argv=(sys.executable, "-m", "hami_sim.kubelet.main"),
        settings={
            "log": {"format": "text"},
            "kube": {"kubeconfig": str(StateLayout(places.CLUSTER).kubeconfig)},
            "logs": {
                "address": address,
                "certificate": str(certificate.certificate),
                "key": str(certificate.key),
            },
            "nodes": [
                {
                    "node_name": name,
                    "node_address": address,
                    "root_dir": str(place.kubelet),
                    "cdi_dirs": [str(place.cdi)],
                    "programs_dirs": [str(artefacts.programs)],
                    "labels": {"gpu": "on"},
                    "driver": {
                        "library_dir": str(artefacts.driver_libraries),
                        "environment": _driver_environment(place),
                        "shared_paths": [str(place.driver_state)],
                    },
                }
            ],
        },
        ready_file=place.kubelet / DEVICE_PLUGINS_FOLDER / KUBELET_SOCKET,
    )


def _node_agent(name: str, place: NodeLayout, artefacts: Artefacts) -> NodeProgram:
    return NodeProgram(
        name="node-agent",
        argv=(_command("hami-node-agent"), "serve"),
        settings={
            **_connections("hami-node-agent"),
            "observation": {"host": LOOPBACK, "port": NODE_AGENT_PORT},
            "node": {"name": name},
            "kubelet": {
                "plugins_dir": str(place.kubelet / DEVICE_PLUGINS_FOLDER),
                "pod_resources_socket": str(place.kubelet / POD_RESOURCES_FOLDER / KUBELET_SOCKET),
            },
            "nvml": {"library_file": str(artefacts.driver_libraries / "libnvidia-ml.so.1")},
            "files": {
                "hook_path": str(place.hook),
                "library_file": str(artefacts.library),
                "lock_dir": str(place.lock),
                "cdi_dir": str(place.cdi),
                "nvidia_cdi_dirs": [str(place.cdi)],
                "state_dir": str(place.agent_state),
            },
        },
        environment=_host_environment(place, artefacts),
    )


def _monitor(name: str, place: NodeLayout, artefacts: Artefacts) -> NodeProgram:
    return NodeProgram(
        name="monitor",
        argv=(_command("hami-monitor"), "serve"),
        settings={
            **_connections("hami-monitor"),
            "observation": {"host": LOOPBACK, "port": MONITOR_PORT},
            "node": {
                "name": name,
                "hook_path": str(place.hook),
                "driver_library_folder": str(artefacts.driver_libraries),
            },
            "sampling": {"period_seconds": USAGE_PERIOD_SECONDS},
        },
        environment=_host_environment(place, artefacts),
    )


def _connections(account: str) -> dict[str, Any]:
    return {
        "log": {"format": "text"},
        "kube": {"kubeconfig": str(StateLayout(places.CLUSTER).component_kubeconfig(account))},
        "bus": {"servers": [places.NATS_URL]},
    }


def _command(name: str) -> str:
    """A program of the environment that runs us."""
    return str(Path(sys.executable).with_name(name))


def _driver_environment(place: NodeLayout) -> dict[str, str]:
    return {"HAMI_SIM_DRIVER": str(place.driver), "HAMI_SIM_STATE": str(place.driver_state)}


def _host_environment(place: NodeLayout, artefacts: Artefacts) -> dict[str, str]:
    """Of what runs on the node's host: it finds the driver as on a machine where one is installed."""
    return {**_driver_environment(place), "LD_LIBRARY_PATH": str(artefacts.driver_libraries)}
