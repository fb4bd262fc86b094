"""The table of a local cluster's programs beside the control plane: what each is started with. Pure.

stage 0  nats-server
stage 1  scheduler replicas, webhook
stage 2  the forwarder to the leading scheduler, the kubelet stand-in of all nodes
stage 3  a node-agent per node with cards
stage 4  a monitor per node with cards
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from kubelet_api.constants import DEVICE_PLUGINS_FOLDER, POD_RESOURCES_FOLDER

from hami_sim.cluster.artefacts import Artefacts
from hami_sim.cluster.layout import ClusterLayout, NodeLayout
from hami_sim.cluster.profile import NodePlan, NodeServiceName, node_plans
from hami_sim.cluster.record import SimRecord, nodes_root
from hami_sim.cluster.service_spec import ServiceSpec, merged
from hami_sim.loopback_ports import LOOPBACK
from hami_sim.nats_server import find_nats_server, nats_arguments

NAMESPACE = "hami-system"
LEASE_NAME = "hami-scheduler"
USAGE_PERIOD_SECONDS = 2.0
# A killed scheduler's successor starts soon, and yet a leader outlives the seconds in which a busy laptop's API server
# does not answer: with 4.5 s to renew it was lost while 60 pods came at once.
LEASE = {"lease_seconds": 12, "renew_seconds": 9, "retry_seconds": 0.5}
BIND_SECONDS = 4.0


def service_table(layout: ClusterLayout, record: SimRecord, artefacts: Artefacts) -> tuple[ServiceSpec, ...]:
    """Every program, in the order in which they start. Raises NatsServerUnavailableError."""
    plans = node_plans(record.profile)
    with_cards = [plan for plan in plans if plan.has_cards]
    return (
        _nats(layout, record),
        *(_scheduler(layout, record, number) for number in range(record.profile.schedulers)),
        _webhook(layout, record),
        _forwarder(layout, record),
        *([_kubelets(layout, record, artefacts, plans)] if plans else []),
        *(_node_agent(layout, record, artefacts, plan) for plan in with_cards),
        *(_monitor(layout, record, artefacts, plan) for plan in with_cards),
    )


def nats_url(record: SimRecord) -> str:
    """Where clients reach nats-server."""
    return f"nats://{LOOPBACK}:{record.ports['nats']}"


def extender_url(record: SimRecord) -> str:
    """Where kube-scheduler asks: the forwarder."""
    return f"http://{LOOPBACK}:{record.ports['extender']}"


def webhook_url(record: SimRecord) -> str:
    """Where the API server sends reviews."""
    return f"https://{LOOPBACK}:{record.ports['webhook']}/webhook"


def kubeconfig_of(layout: ClusterLayout, account: str) -> Path:
    """Kubeconfig of one of our service accounts."""
    return layout.component_kubeconfig(account)


def program(name: str) -> str:
    """A program of the environment that runs us."""
    return str(Path(sys.executable).with_name(name))


def _http(port: int) -> dict[str, Any]:
    return {"host": LOOPBACK, "port": port}


def _ready(port: int) -> str:
    return f"http://{LOOPBACK}:{port}/readyz"


def _connections(layout: ClusterLayout, record: SimRecord, account: str) -> dict[str, Any]:
    """Settings that all services share."""
    return {
        "log": {"format": "text"},
        "kube": {"kubeconfig": str(kubeconfig_of(layout, account))},
        "bus": {"servers": [nats_url(record)]},
    }


def _nats(layout: ClusterLayout, record: SimRecord) -> ServiceSpec:
    port, monitor_port = record.ports["nats"], record.ports["nats-monitor"]
    return ServiceSpec(
        name="nats-server",
        argv=(str(find_nats_server()), *nats_arguments(layout.nats, port, monitor_port)),
        ready_url=f"http://{LOOPBACK}:{monitor_port}/healthz",
        stage=0,
    )


def _scheduler(layout: ClusterLayout, record: SimRecord, number: int) -> ServiceSpec:
    name, account = f"scheduler-{number}", "hami-scheduler"
    observation = record.ports[f"{name}-observation"]
    settings = {
        **_connections(layout, record, account),
        # The forwarder finds the leader's address by this name.
        "events": {"instance": name},
        "election": {"lease": {"namespace": NAMESPACE, "name": LEASE_NAME, **LEASE}},
        "bind": {"timeout_seconds": BIND_SECONDS},
        "extender": {"http": _http(record.ports[f"{name}-extender"])},
        "observation": _http(observation),
    }
    return ServiceSpec(
        name=name,
        argv=(program("hami-scheduler"), "serve"),
        settings=merged(settings, record.profile.settings.get("scheduler", {})),
        account=account,
        ready_url=_ready(observation),
        stage=1,
    )


def _webhook(layout: ClusterLayout, record: SimRecord) -> ServiceSpec:
    account = "hami-webhook"
    observation, certificate = record.ports["webhook-observation"], layout.issued_certificate("webhook")
    settings = {
        **_connections(layout, record, account),
        "https": _http(record.ports["webhook"]),
        "tls": {"cert_file": str(certificate.certificate), "key_file": str(certificate.key)},
        "observation": _http(observation),
    }
    return ServiceSpec(
        name="webhook",
        argv=(program("hami-webhook"), "serve"),
        settings=merged(settings, record.profile.settings.get("webhook", {})),
        account=account,
        ready_url=_ready(observation),
        stage=1,
    )


def _forwarder(layout: ClusterLayout, record: SimRecord) -> ServiceSpec:
    account = "hami-scheduler"  # it may read the Lease
    replicas = [f"scheduler-{number}" for number in range(record.profile.schedulers)]
    observation = record.ports["forwarder-observation"]
    return ServiceSpec(
        name="forwarder",
        argv=(sys.executable, "-m", "hami_sim.leader_forwarder.main"),
        settings={
            "log": {"format": "text"},
            "kube": {"kubeconfig": str(kubeconfig_of(layout, account))},
            "lease": {"namespace": NAMESPACE, "name": LEASE_NAME},
            "listen": _http(record.ports["extender"]),
            "observation": _http(observation),
            "addresses": {name: f"{LOOPBACK}:{record.ports[f'{name}-extender']}" for name in replicas},
        },
        account=account,
        ready_url=_ready(observation),
        stage=2,
    )


def _kubelets(
    layout: ClusterLayout, record: SimRecord, artefacts: Artefacts, plans: tuple[NodePlan, ...]
) -> ServiceSpec:
    """One process for all nodes. It is no service of ours and acts as the administrator."""
    certificate = layout.issued_certificate("kubelet")
    return ServiceSpec(
        name="kubelets",
        argv=(sys.executable, "-m", "hami_sim.kubelet.main"),
        settings={
            "log": {"format": "text"},
            "kube": {"kubeconfig": str(layout.kubeconfig)},
            "logs": {
                "address": LOOPBACK,
                "certificate": str(certificate.certificate),
                "key": str(certificate.key),
            },
            "nodes": [_kubelet_node(record, artefacts, plan) for plan in plans],
        },
        ready_nodes=tuple(plan.name for plan in plans),
        stage=2,
    )


def _kubelet_node(record: SimRecord, artefacts: Artefacts, plan: NodePlan) -> dict[str, Any]:
    place = NodeLayout(nodes_root(record), plan.index)
    node: dict[str, Any] = {
        "node_name": plan.name,
        "root_dir": str(place.kubelet),
        "mode": record.profile.container_mode,
        "cdi_dirs": [str(place.cdi)],
        "programs_dirs": [str(artefacts.programs)],
        "labels": plan.group.labels,
        "time_scale": record.profile.time_scale,
    }
    if plan.has_cards:
        node["driver"] = {
            "library_dir": str(artefacts.driver_libraries),
            "environment": _driver_environment(place),
            "shared_paths": [str(place.driver_state)],
        }
    return node


def _driver_environment(place: NodeLayout) -> dict[str, str]:
    return {"HAMI_SIM_DRIVER": str(place.driver), "HAMI_SIM_STATE": str(place.driver_state)}


def _host_environment(place: NodeLayout, artefacts: Artefacts) -> dict[str, str]:
    """Of a service that runs on the node's host: it finds the driver as on a machine where one is installed."""
    own = os.environ.get("LD_LIBRARY_PATH", "")
    libraries = f"{artefacts.driver_libraries}:{own}" if own else str(artefacts.driver_libraries)
    return {**_driver_environment(place), "LD_LIBRARY_PATH": libraries}


def _on_node(settings: dict[str, Any], record: SimRecord, plan: NodePlan, service: NodeServiceName) -> dict[str, Any]:
    """Over what the cluster needs: what the profile says for all nodes, then what it says for these."""
    return merged(merged(settings, record.profile.settings.get(service, {})), plan.group.settings.get(service, {}))


def _node_agent(layout: ClusterLayout, record: SimRecord, artefacts: Artefacts, plan: NodePlan) -> ServiceSpec:
    account, name = "hami-node-agent", f"node-agent-{plan.name}"
    place, observation = NodeLayout(nodes_root(record), plan.index), record.ports[f"node-agent-{plan.name}"]
    settings = {
        **_connections(layout, record, account),
        "observation": _http(observation),
        "node": {"name": plan.name},
        "kubelet": {
            "plugins_dir": str(place.kubelet / DEVICE_PLUGINS_FOLDER),
            "pod_resources_socket": str(place.kubelet / POD_RESOURCES_FOLDER / "kubelet.sock"),
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
    }
    return ServiceSpec(
        name=name,
        argv=(program("hami-node-agent"), "serve"),
        settings=_on_node(settings, record, plan, "node-agent"),
        account=account,
        environment=_host_environment(place, artefacts),
        ready_url=_ready(observation),
        stage=3,
        node=plan.name,
    )


def _monitor(layout: ClusterLayout, record: SimRecord, artefacts: Artefacts, plan: NodePlan) -> ServiceSpec:
    account, name = "hami-monitor", f"monitor-{plan.name}"
    place, observation = NodeLayout(nodes_root(record), plan.index), record.ports[f"monitor-{plan.name}"]
    settings = {
        **_connections(layout, record, account),
        "observation": _http(observation),
        "node": {
            "name": plan.name,
            "hook_path": str(place.hook),
            "driver_library_folder": str(artefacts.driver_libraries),
        },
        "sampling": {"period_seconds": USAGE_PERIOD_SECONDS},
    }
    return ServiceSpec(
        name=name,
        argv=(program("hami-monitor"), "serve"),
        settings=_on_node(settings, record, plan, "monitor"),
        account=account,
        environment=_host_environment(place, artefacts),
        ready_url=_ready(observation),
        stage=4,
        node=plan.name,
    )
