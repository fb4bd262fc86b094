"""What the control plane's programs are told: command lines, kubeconfigs, kube-scheduler's configuration."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec
import pytest
from hami_sim.controlplane.arguments import (
    apiserver_arguments,
    controller_manager_arguments,
    etcd_arguments,
    scheduler_arguments,
)
from hami_sim.controlplane.kubeconfig import BearerToken, ClientCertificate, kubeconfig_document
from hami_sim.controlplane.layout import StateLayout
from hami_sim.controlplane.scheduler_config import scheduler_configuration
from hami_sim.controlplane.settings import ControlPlaneSettings, Ports

LAYOUT = StateLayout(Path("/state"))
PORTS = Ports(etcd_client=1, etcd_peer=2, apiserver=3, controller_manager=4, scheduler=5)
PROGRAM = Path("/bin/program")

COMMAND_LINES = {
    "etcd": etcd_arguments(PROGRAM, LAYOUT, PORTS),
    "kube-apiserver": apiserver_arguments(PROGRAM, LAYOUT, PORTS, ControlPlaneSettings()),
    "kube-controller-manager": controller_manager_arguments(PROGRAM, LAYOUT, PORTS, ControlPlaneSettings()),
    "kube-scheduler": scheduler_arguments(PROGRAM, LAYOUT, PORTS),
}


@pytest.mark.parametrize("name", COMMAND_LINES)
def test_a_program_gets_each_flag_once_and_listens_on_loopback_only(name: str) -> None:
    program, *flags = COMMAND_LINES[name]
    names = [flag.partition("=")[0] for flag in flags]
    assert program == "/bin/program"
    assert len(names) == len(set(names))
    listens = [flag for flag in flags if "://" in flag and "listen" in flag] + [
        flag for flag in flags if "bind-address" in flag
    ]
    assert listens
    assert all("127.0.0.1" in flag for flag in listens)


@pytest.mark.parametrize("name", COMMAND_LINES)
def test_every_path_of_a_command_line_lies_in_the_state_directory(name: str) -> None:
    paths = [flag.partition("=")[2] for flag in COMMAND_LINES[name][1:] if "=/" in flag]
    assert [path for path in paths if not path.startswith("/state/")] == []


def test_the_api_server_checks_roles_and_reads_logs_with_a_certificate() -> None:
    flags = COMMAND_LINES["kube-apiserver"]
    for expected in (
        "--authorization-mode=Node,RBAC",
        "--endpoint-reconciler-type=none",
        "--advertise-address=127.0.0.1",
        "--kubelet-client-certificate=/state/pki/apiserver-kubelet-client.crt",
        "--kubelet-certificate-authority=/state/pki/ca.crt",
    ):
        assert expected in flags


@pytest.mark.parametrize(("controllers", "disabled"), [(True, False), (False, True)], ids=["with", "without"])
def test_nodes_are_not_tainted_where_no_controller_would_lift_the_taint(controllers: bool, disabled: bool) -> None:
    flags = apiserver_arguments(PROGRAM, LAYOUT, PORTS, ControlPlaneSettings(controllers=controllers))
    assert ("--disable-admission-plugins=TaintNodesByCondition" in flags) is disabled


def test_extra_arguments_come_last_so_that_they_win() -> None:
    settings = ControlPlaneSettings(extra_apiserver_arguments=("--v=4",), extra_controller_manager_arguments=("--v=5",))
    assert apiserver_arguments(PROGRAM, LAYOUT, PORTS, settings)[-1] == "--v=4"
    assert controller_manager_arguments(PROGRAM, LAYOUT, PORTS, settings)[-1] == "--v=5"


def test_the_scheduler_has_two_profiles_and_our_extender() -> None:
    raw = scheduler_configuration(Path("/state/k"), "http://127.0.0.1:9")
    assert msgspec.json.decode(raw) == {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": "/state/k", "qps": 500, "burst": 1000},
        "percentageOfNodesToScore": 100,
        "profiles": [{"schedulerName": "default-scheduler"}, {"schedulerName": "hami-scheduler"}],
        "extenders": [
            {
                "urlPrefix": "http://127.0.0.1:9",
                "filterVerb": "filter",
                "bindVerb": "bind",
                "weight": 1,
                "nodeCacheCapable": True,
                "enableHTTPS": False,
                "httpTimeout": "30s",
                "ignorable": False,
                "managedResources": [
                    {"name": "nvidia.com/gpu", "ignoredByScheduler": True},
                    {"name": "nvidia.com/gpumem", "ignoredByScheduler": True},
                    {"name": "nvidia.com/gpumem-percentage", "ignoredByScheduler": True},
                    {"name": "nvidia.com/gpucores", "ignoredByScheduler": True},
                    {"name": "nvidia.com/priority", "ignoredByScheduler": True},
                    {"name": "hygon.com/dcunum", "ignoredByScheduler": True},
                    {"name": "hygon.com/dcumem", "ignoredByScheduler": True},
                    {"name": "hygon.com/dcucores", "ignoredByScheduler": True},
                ],
            }
        ],
    }


def test_without_an_address_there_is_no_extender() -> None:
    assert "extenders" not in msgspec.json.decode(scheduler_configuration(Path("/state/k"), None))


def test_a_kubeconfig_carries_its_certificates_inside() -> None:
    document = msgspec.json.decode(
        kubeconfig_document("https://127.0.0.1:3", b"CA", "someone", ClientCertificate(b"CERT", b"KEY"), namespace="x")
    )
    assert document["clusters"] == [
        {
            "name": "hami-sim",
            "cluster": {"server": "https://127.0.0.1:3", "certificate-authority-data": _base64(b"CA")},
        }
    ]
    assert document["users"] == [
        {
            "name": "someone",
            "user": {"client-certificate-data": _base64(b"CERT"), "client-key-data": _base64(b"KEY")},
        }
    ]
    context = {"cluster": "hami-sim", "user": "someone", "namespace": "x"}
    assert document["contexts"] == [{"name": "someone@hami-sim", "context": context}]
    assert document["current-context"] == "someone@hami-sim"


def test_a_kubeconfig_of_a_token_shows_no_certificate() -> None:
    document = msgspec.json.decode(kubeconfig_document("https://127.0.0.1:3", b"CA", "someone", BearerToken("t0ken")))
    assert document["users"] == [{"name": "someone", "user": {"token": "t0ken"}}]


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
