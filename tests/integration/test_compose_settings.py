"""compose.yaml and node containers give every service settings that it takes; images install what the project pins."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hami_chassis.settings import load_settings
from hami_monitor.config import MonitorSettings
from hami_node_agent.config import NodeAgentSettings
from hami_scheduler.config import SchedulerSettings
from hami_sim.cluster.artefacts import Artefacts
from hami_sim.cluster.layout import NodeLayout
from hami_sim.compose import places
from hami_sim.compose.node_programs import MONITOR_PORT, NODE_AGENT_PORT, node_programs
from hami_sim.controlplane.layout import CertificateFiles
from hami_sim.kubelet.main import RunnerSettings
from hami_sim.leader_forwarder.main import ForwarderSettings
from hami_webhook.config import WebhookSettings, serving_faults

ROOT = Path(__file__).resolve().parents[2]
NODE_SETTINGS = {"kubelet": RunnerSettings, "node-agent": NodeAgentSettings, "monitor": MonitorSettings}


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    return found


@pytest.mark.parametrize("name", ["scheduler-0", "scheduler-1"])
def test_schedulers_answer_kube_scheduler_alone(name: str, services: dict[str, dict[str, Any]]) -> None:
    settings = load_settings(SchedulerSettings, environment=services[name]["environment"])
    assert settings.events.instance == name
    assert settings.extender.tls.client_ca_file == str(places.client_ca(places.SCHEDULER))
    assert settings.extender.tls.cert_file == str(places.serving_files(places.SCHEDULER).certificate)
    assert settings.kube.kubeconfig == str(places.kubeconfig(places.SCHEDULER))
    assert settings.bus.servers == (places.NATS_URL,)
    assert settings.election.lease.namespace == places.NAMESPACE


def test_the_webhook_can_serve(services: dict[str, dict[str, Any]]) -> None:
    settings = load_settings(WebhookSettings, environment=services["webhook"]["environment"])
    assert list(serving_faults(settings)) == []
    assert settings.kube.kubeconfig == str(places.kubeconfig(places.WEBHOOK))
    assert f":{settings.https.port}/" in places.WEBHOOK_URL


def test_the_forwarder_knows_every_replica(services: dict[str, dict[str, Any]]) -> None:
    sets = [part.removeprefix("--set=") for part in services["forwarder"]["command"] if part.startswith("--set=")]
    settings = load_settings(ForwarderSettings, environment={}, sets=sets)
    replicas = {name for name in services if name.startswith("scheduler-")}
    port = load_settings(SchedulerSettings, environment={}).extender.http.port
    assert settings.addresses == {name: f"{name}:{port}" for name in replicas}
    assert places.EXTENDER_URL.endswith(f":{settings.listen.port}")


def test_programs_of_a_node_take_their_settings(services: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    build = places.PROGRAMS
    artefacts = Artefacts(library=build / "lib/libvgpu.so", driver_libraries=build / "sim", programs=build / "bin")
    certificate = CertificateFiles(Path("/n/0/kubelet.crt"), Path("/n/0/kubelet.key"))
    programs = node_programs("a", "192.0.2.1", NodeLayout(places.NODES_ROOT, 0), artefacts, certificate)
    assert [program.name for program in programs] == list(NODE_SETTINGS)
    for program in programs:
        file = tmp_path / f"{program.name}.json"
        file.write_bytes(msgspec.json.encode(program.settings))
        load_settings(NODE_SETTINGS[program.name], file=file, environment={})
    health = " ".join(services["node"]["healthcheck"]["test"])
    assert {int(port) for port in re.findall(r":(\d+)/", health)} == {NODE_AGENT_PORT, MONITOR_PORT}


def test_every_container_is_without_power(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert "privileged" not in service, name
        assert "cap_add" not in service, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name


@pytest.mark.parametrize("file", sorted((ROOT / "images").glob("*.lock")), ids=lambda file: file.name)
def test_images_install_what_the_project_pins(file: Path) -> None:
    pinned = _pins(ROOT / "requirements.lock")
    ours = _pins(file)
    assert ours
    assert {name: pinned.get(name) for name in ours} == ours, "`make lock` writes all of them"


def _pins(file: Path) -> dict[str, str]:
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", file.read_text(), re.MULTILINE))


def test_a_machine_that_cannot_run_containers_is_told_so(tmp_path: Path) -> None:
    """Without docker, and without what would install it."""
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, str(ROOT / "tools/compose/main.py"), "test"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 77
    assert done.stdout.splitlines()[-1].startswith("compose: docker is missing, and installing docker.io needs ")
