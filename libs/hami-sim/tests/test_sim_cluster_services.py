"""The table of programs, where they lie, and the objects they need."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hami_sim.binaries import Binaries
from hami_sim.cluster.artefacts import KUBERNETES_OBJECTS, Artefacts, find_artefacts
from hami_sim.cluster.errors import ClusterError
from hami_sim.cluster.layout import NODES_PATH_MAX, ClusterLayout, NodeLayout
from hami_sim.cluster.leftovers import mount_points_below
from hami_sim.cluster.local_cluster import LocalCluster
from hami_sim.cluster.objects import identities, object_path
from hami_sim.cluster.observe import observe
from hami_sim.cluster.profile import profile_of, uniform_profile
from hami_sim.cluster.record import load_sim_record, new_record, port_names, store_sim_record
from hami_sim.cluster.service_runner import ServiceRunner
from hami_sim.cluster.service_spec import ServiceSpec, merged
from hami_sim.cluster.services import service_table
from hami_sim.cluster.starting import ACCOUNTS
from hami_sim.controlplane import ControlPlane, ControlPlaneSettings
from hami_sim.controlplane.layout import StateLayout
from hami_sim.controlplane.record import ClusterRecord, store_record
from hami_sim.controlplane.record import choose_ports as choose_control_plane_ports
from hami_sim.processes import start_program

ARTEFACTS = Artefacts(library=Path("/b/libvgpu.so"), driver_libraries=Path("/b/sim"), programs=Path("/b/bin"))
PROFILE = profile_of(
    {
        "nodes": [{"count": 2}, {"name": "cpu", "cards": []}],
        "schedulers": 2,
        "settings": {"scheduler": {"log": {"level": "debug"}}},
    },
    "here",
)


@pytest.fixture
def layout(tmp_path, monkeypatch):
    monkeypatch.setattr("hami_sim.cluster.layout.NODES_PATH_MAX", 4096)  # nodes stay in the state directory
    found = ClusterLayout(tmp_path / "s")
    found.create_directories()
    return found


@pytest.fixture
def table(layout):
    return {spec.name: spec for spec in service_table(layout, new_record(layout, PROFILE), ARTEFACTS)}


class TestTable:
    def test_every_program_once_nodes_without_cards_have_none(self, table):
        assert list(table) == [
            "nats-server", "scheduler-0", "scheduler-1", "webhook", "forwarder", "kubelets",
            "node-agent-sim-0", "node-agent-sim-1", "monitor-sim-0", "monitor-sim-1",
        ]  # fmt: skip

    def test_a_cluster_without_nodes_has_no_kubelets(self, layout):
        record = new_record(layout, uniform_profile(0, 4))
        assert "kubelets" not in {spec.name for spec in service_table(layout, record, ARTEFACTS)}

    def test_stages_never_go_back(self, table):
        stages = [spec.stage for spec in table.values()]
        assert stages == sorted(stages)

    def test_services_use_their_own_accounts(self, table):
        used = {spec.account for spec in table.values() if spec.account}
        assert used == set(ACCOUNTS)
        for spec in table.values():
            if spec.account:
                assert spec.settings["kube"]["kubeconfig"].endswith(f"/{spec.account}.kubeconfig")

    def test_settings_of_the_profile_win_and_leave_the_rest(self, table):
        assert table["scheduler-1"].settings["log"] == {"format": "text", "level": "debug"}
        assert table["webhook"].settings["log"] == {"format": "text"}

    def test_the_forwarder_knows_every_replica_by_the_name_it_goes_by(self, table):
        addresses = table["forwarder"].settings["addresses"]
        for name in ("scheduler-0", "scheduler-1"):
            settings = table[name].settings
            assert settings["events"]["instance"] == name
            assert addresses[name] == f"127.0.0.1:{settings['extender']['http']['port']}"

    def test_containers_and_host_share_the_drivers_books(self, table):
        node = table["kubelets"].settings["nodes"][1]
        environment = table["node-agent-sim-1"].environment
        assert node["driver"]["environment"].items() <= environment.items()
        assert node["driver"]["shared_paths"] == [environment["HAMI_SIM_STATE"]]
        # Where `sim-driver --description FILE` looks.
        assert environment["HAMI_SIM_STATE"] == environment["HAMI_SIM_DRIVER"] + ".state"
        assert "driver" not in table["kubelets"].settings["nodes"][2]

    def test_agent_and_monitor_mean_the_same_files(self, table):
        agent, monitor = table["node-agent-sim-0"].settings, table["monitor-sim-0"].settings
        assert agent["files"]["hook_path"] == monitor["node"]["hook_path"]
        assert agent["node"]["name"] == monitor["node"]["name"] == "sim-0"

    def test_merging_goes_group_by_group(self):
        assert merged({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": 4}, "e": 5}) == {
            "a": {"b": 1, "c": 4}, "d": 3, "e": 5,
        }  # fmt: skip


class TestRunner:
    async def test_what_was_edited_while_a_service_runs_is_told_with_what_to_do(self, layout):
        runner = ServiceRunner(layout)
        spec = ServiceSpec(name="webhook", argv=("/bin/sh", "-c", "exec sleep 600"), settings={"log": {}}, stage=1)
        program = runner.launch(spec)
        try:
            assert runner.edited_while_running(spec) == ""
            file = layout.settings_file("webhook")
            file.write_text('{"log": {"level": "debug"}}')
            said = runner.edited_while_running(spec)
            for word in ("webhook runs on", str(file), "(log.level)", f"kill {program.pid}", "hami-sim up"):
                assert word in said
            file.write_text("{")
            assert "correct it" in runner.edited_while_running(spec)
        finally:
            await runner.kill("webhook")

    def test_a_service_without_settings_has_none_to_edit(self, layout):
        assert ServiceRunner(layout).edited_while_running(ServiceSpec(name="nats", argv=("/bin/true",), stage=0)) == ""


async def test_what_was_not_started_yet_is_not_dead(layout):
    """As `status` sees it while `up` is at work."""
    profile = uniform_profile(1, 1)
    binaries = Binaries(**dict.fromkeys(Binaries.__struct_fields__, Path("/bin/true")))
    place = StateLayout(layout.root)
    ports = choose_control_plane_ports(place)
    store_record(place, ClusterRecord(ports=ports, settings=ControlPlaneSettings(), binaries=binaries))
    ControlPlane.attach(layout.root).credentials.write_all()
    cluster = LocalCluster(layout, new_record(layout, profile), ARTEFACTS)
    ended = start_program("etcd", ["/bin/true"], log_path=layout.log("etcd"), process_file=layout.process_file("etcd"))
    while ended.is_alive():  # noqa: ASYNC110  # nobody is told
        await asyncio.sleep(0.01)

    states = {service.name: service.state for service in (await observe(cluster)).services}

    assert states.pop("etcd") == "dead"
    assert len(states) > 8
    assert set(states.values()) == {"stopped"}


class TestRecord:
    def test_every_port_is_another(self, layout):
        record = new_record(layout, PROFILE)
        assert set(record.ports) == set(port_names(PROFILE))
        assert len(set(record.ports.values())) == len(record.ports)

    def test_it_is_read_back(self, layout):
        assert load_sim_record(layout) is None
        record = new_record(layout, PROFILE)
        store_sim_record(layout, record)
        assert load_sim_record(layout) == record

    def test_a_damaged_one_is_named(self, layout):
        layout.sim_record.write_text('{"profile": 1}')
        with pytest.raises(ClusterError, match=r"hami-sim\.json"):
            load_sim_record(layout)


class TestPlaces:
    def test_nodes_lie_in_the_state_directory_where_its_path_is_short(self, monkeypatch, tmp_path):
        monkeypatch.setattr("hami_sim.cluster.layout.NODES_PATH_MAX", len(os.fsencode(tmp_path)) + 10)
        assert ClusterLayout(tmp_path).choose_nodes_root() == tmp_path / "n"

    def test_else_in_a_short_place(self, monkeypatch, tmp_path):
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        chosen = ClusterLayout(tmp_path / ("d" * NODES_PATH_MAX)).choose_nodes_root()
        try:
            assert len(os.fsencode(chosen)) <= NODES_PATH_MAX
            assert chosen.stat().st_mode & 0o077 == 0
        finally:
            chosen.rmdir()

    def test_sockets_of_a_node_stay_short(self):
        kubelet = NodeLayout(Path("/" + "x" * (NODES_PATH_MAX - 1)), 999).kubelet
        for socket in ("device-plugins/hami-nvidia.sock", "pod-resources/kubelet.sock"):
            assert len(os.fsencode(kubelet / socket)) < 107

    def test_all_that_is_made_is_named_for_removal(self, layout):
        assert {path.name for path in layout.root.iterdir()} <= set(layout.own_entries())


class TestObjects:
    def test_the_repositorys_accounts_and_roles_are_found(self):
        found = identities(KUBERNETES_OBJECTS)
        accounts = {document["metadata"]["name"] for document in found if document["kind"] == "ServiceAccount"}
        assert set(ACCOUNTS) <= accounts
        assert {document["kind"] for document in found} <= {
            "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding",
        }  # fmt: skip

    def test_accounts_come_before_what_names_them(self):
        kinds = [document["kind"] for document in identities(KUBERNETES_OBJECTS)]
        assert kinds == sorted(kinds, key=kinds.index)

    def test_paths(self):
        role = {"kind": "Role", "metadata": {"name": "r", "namespace": "n"}}
        assert object_path(role) == "/apis/rbac.authorization.k8s.io/v1/namespaces/n/roles/r"

    def test_a_folder_without_any_is_refused(self, tmp_path):
        with pytest.raises(ClusterError, match="checkout"):
            identities(tmp_path)

    def test_what_is_not_built_is_named(self, tmp_path):
        with pytest.raises(ClusterError, match=r"libvgpu\.so.*make libvgpu"):
            find_artefacts(tmp_path)


class TestLeftovers:
    def test_mounts_are_found_below_a_folder_only(self, tmp_path):
        assert mount_points_below([tmp_path]) == []
        assert Path("/proc") in mount_points_below([Path("/")])
