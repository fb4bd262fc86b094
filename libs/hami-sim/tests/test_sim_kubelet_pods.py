"""What containers of pods on one stand-in get, in both container modes."""

import asyncio
import json
import os
import signal

import msgspec
import pytest
from hami_chassis.kube.errors import Conflict
from hami_sim.kubelet import DriverSettings, KubeletStandIn
from hami_sim.kubelet.container_mode import ModeUnavailableError, choose_mode, namespace_fault
from hami_sim.kubelet.log_server import LogServer
from hami_sim.kubelet.objects import ConfigMap, ObjectMeta
from hami_sim.kubelet.scripted_plugin import ScriptedPlugin
from hami_sim.kubelet.settings import LogServerSettings
from kubelet_api.deviceplugin_v1beta1_pb2 import CDIDevice, ContainerAllocateResponse, Mount
from kubelet_node import FOREVER, RESOURCE, Node, alive, container, skip_without_namespaces


async def test_a_pod_without_devices_runs_to_its_end(node):
    async with node.kubelet():
        node.run(container("echo hello $WHO", env=[{"name": "WHO", "value": "you"}]))

        status = await node.kube.until_phase("pod", "Succeeded")

        assert node.log() == "hello you\n"
        assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
        conditions = {c["type"]: c["status"] for c in status["conditions"]}
        assert (conditions["PodScheduled"], conditions["Ready"], conditions["Initialized"]) == ("True", "False", "True")


async def test_a_container_gets_what_the_plugin_answers(node):
    library = node.root / "host-library"
    library.mkdir()
    (library / "file").write_text("from the host\n")
    plugin = ScriptedPlugin(RESOURCE, ["a", "b", "c"])
    plugin.allocate = lambda ids: ContainerAllocateResponse(
        envs={"IDS": str(len(ids)), "FILE": "/opt/library/file", "WHO": "plugin"},
        mounts=[Mount(container_path="/opt/library", host_path=str(library), read_only=True)],
    )
    async with node.kubelet_and(plugin, 3):
        node.run(container('echo $IDS $WHO; cat "$FILE"', gpus=2, env=[{"name": "WHO", "value": "spec"}]))

        await node.kube.until_phase("pod", "Succeeded")

        assert node.log() == "2 spec\nfrom the host\n"


async def test_a_mounted_preload_file_takes_effect(node):
    source = node.root / "preloaded.c"
    source.write_text('#include <unistd.h>\n__attribute__((constructor)) static void f(void) { write(1, "in\\n", 3); }')
    compiler = await asyncio.create_subprocess_exec("gcc", "-shared", "-fPIC", "-o", node.root / "lib.so", source)
    assert await compiler.wait() == 0
    (node.root / "slice").mkdir()
    (node.root / "preload").write_text("/opt/slice/lib.so\n")
    plugin = ScriptedPlugin(RESOURCE, ["a"])
    plugin.allocate = lambda _: ContainerAllocateResponse(
        envs={"CACHE": "/opt/slice/x.cache"},
        mounts=[
            Mount(container_path="/opt/slice/lib.so", host_path=str(node.root / "lib.so"), read_only=True),
            Mount(container_path="/opt/slice", host_path=str(node.root / "slice")),
            Mount(container_path="/etc/ld.so.preload", host_path=str(node.root / "preload"), read_only=True),
        ],
    )
    async with node.kubelet_and(plugin, 1):
        node.run(container('echo x > "$CACHE"', gpus=1))

        await node.kube.until_phase("pod", "Succeeded")

    assert node.log() == "in\n"
    assert sorted(path.name for path in (node.root / "slice").iterdir()) == ["lib.so", "x.cache"]
    assert (node.root / "slice" / "lib.so").stat().st_size == 0, "the mount point, as a runtime leaves it"
    assert not os.path.exists("/etc/ld.so.preload")  # noqa: ASYNC240, PTH110


async def test_cdi_edits_win_and_show_cards(node):
    node.settings = msgspec.structs.replace(
        node.settings, driver=DriverSettings(library_dir="/opt/driver", environment={"DRIVER": "d.json"})
    )
    (node.root / "cdi").mkdir()
    (node.root / "data").mkdir()
    spec = {
        "cdiVersion": "0.6.0",
        "kind": "example.com/slice",
        "containerEdits": {"env": ["GENERAL=yes"]},
        "devices": [
            {
                "name": "x1",
                "containerEdits": {
                    "env": ["OWNER=cdi"],
                    "deviceNodes": [{"path": "/dev/nvidia3"}],
                    "mounts": [{"hostPath": str(node.root / "data"), "containerPath": "/data", "options": ["ro"]}],
                },
            }
        ],
    }
    (node.root / "cdi" / "x.json").write_text(json.dumps(spec))
    plugin = ScriptedPlugin(RESOURCE, ["a"])
    plugin.allocate = lambda _: ContainerAllocateResponse(
        envs={"OWNER": "pending", "NVIDIA_VISIBLE_DEVICES": "void"},
        cdi_devices=[CDIDevice(name="example.com/slice=x1")],
    )
    script = "echo $OWNER $GENERAL $HAMI_SIM_VISIBLE_DEVICES $LD_LIBRARY_PATH $DRIVER"
    async with node.kubelet_and(plugin, 1):
        node.run(container(script, gpus=1, env=[{"name": "OWNER", "value": "spec"}]))
        await node.kube.until_phase("pod", "Succeeded")
        node.run(container("echo [$LD_LIBRARY_PATH] [$DRIVER]"), name="without")
        await node.kube.until_phase("without", "Succeeded")

    assert node.log() == "cdi yes 3 /opt/driver d.json\n"
    assert node.log("without") == "[] []\n"


async def test_an_unknown_cdi_name_is_tried_again_until_it_is_known(prefix_node):
    node = prefix_node
    plugin = ScriptedPlugin(RESOURCE, ["a"])
    plugin.allocate = lambda _: ContainerAllocateResponse(cdi_devices=[CDIDevice(name="v/c=late")])
    async with node.kubelet_and(plugin, 1):
        node.run(container("echo $LATE", gpus=1))

        message = await node.waiting("CreateContainerError")
        assert "unresolvable CDI devices v/c=late" in message

        (node.root / "cdi").mkdir()
        spec = {
            "cdiVersion": "0.6.0",
            "kind": "v/c",
            "devices": [{"name": "late", "containerEdits": {"env": ["LATE=ok"]}}],
        }
        (node.root / "cdi" / "v.json").write_text(json.dumps(spec))
        await node.kube.until_phase("pod", "Succeeded")

    assert node.log() == "ok\n"
    assert ("pod", "Failed") in [(pod, reason) for pod, reason, _ in node.kube.warnings]


async def test_volumes_and_config_maps(node):
    node.kube.config_maps["settings"] = ConfigMap(ObjectMeta(name="settings"), {"size": "7", "file.txt": "text\n"})
    volumes = [
        {"name": "shared", "emptyDir": {}},
        {"name": "config", "configMap": {"name": "settings"}},
        {"name": "token", "projected": {"sources": []}},
    ]
    mounts = [{"name": "shared", "mountPath": "/shared"}, {"name": "config", "mountPath": "/config"}]
    size = {"name": "SIZE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "size"}}}
    async with node.kubelet():
        node.run(
            container("cat /shared/note /config/file.txt; echo $SIZE", volumeMounts=mounts, env=[size]),
            volumes=volumes,
            initContainers=[container("echo from-init > /shared/note", name="init", volumeMounts=mounts)],
        )
        await node.kube.until_phase("pod", "Succeeded")

    assert node.log() == "from-init\ntext\n7\n"


async def test_a_missing_config_map_holds_the_container_back(prefix_node):
    source = {"name": "X", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "k"}}}
    async with prefix_node.kubelet():
        prefix_node.run(container("true", env=[source]))

        assert 'configmap "none" not found' in await prefix_node.waiting("CreateContainerConfigError")


async def test_a_program_that_is_not_there_is_a_start_error(node):
    async with node.kubelet():
        node.run({"name": "main", "image": "any", "command": ["/no/such/program"]})

        status = await node.kube.until_phase("pod", "Failed")

    terminated = status["containerStatuses"][0]["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (128, "StartError")
    assert "No such file" in terminated["message"]


async def test_a_container_sees_its_own_root(short_root, shims):
    await skip_without_namespaces(short_root, shims)
    node = Node(short_root, "namespace")
    async with node.kubelet():
        node.run(container(f"echo x > {short_root}/only-inside && ls {short_root}/only-inside"))
        await node.kube.until_phase("pod", "Succeeded")

    assert node.log() == f"{short_root}/only-inside\n"
    assert not (short_root / "only-inside").exists()


# ---- the mode ------------------------------------------------------------------------------------------------------


async def test_the_node_names_its_mode(node):
    async with node.kubelet() as stand_in:
        ready = next(c for c in node.kube.nodes["n1"]["status"]["conditions"] if c["type"] == "Ready")

        assert stand_in.mode == node.settings.mode
        assert f"containers run in {node.settings.mode} mode" in ready["message"]
        assert node.kube.leases["n1"]["holderIdentity"] == "n1"


async def test_a_mode_that_cannot_be_had_is_refused(short_root, shims):
    assert await choose_mode("prefix", short_root, shims) == "prefix"
    if await namespace_fault(short_root, shims) is None:
        assert await choose_mode("auto", short_root, shims) == "namespace"
        return
    with pytest.raises(ModeUnavailableError, match="set mode=prefix"):
        await choose_mode("namespace", short_root, shims)


async def test_a_container_whose_shim_died_is_ended(prefix_node):
    node = prefix_node
    async with node.kubelet():
        node.run(container(FOREVER))
        await node.running()
        pid = node.pid()
        os.kill(json.loads((node.folder() / "shim.json").read_text())["pid"], signal.SIGKILL)
        status = await node.kube.until_phase("pod", "Failed")

    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    assert not alive(pid)


async def test_containers_live_on_when_the_server_of_shims_dies(prefix_node, shims):
    node = prefix_node
    async with LogServer(LogServerSettings()).serving() as logs:
        stand_in = await KubeletStandIn.create(node.settings, node.kube, events=node.kube, log_server=logs, shims=shims)
        async with stand_in.running():
            node.run(container(f"while [ ! -e {node.root}/go ]; do sleep 0.05; done; exit 9"), name="first")
            await node.running("first")
            os.kill(shims._pid, signal.SIGKILL)
            node.run(container("true"), name="second")
            await node.kube.until_phase("second", "Succeeded")
            (node.root / "go").touch()
            status = await node.kube.until_phase("first", "Failed")

    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 9


async def test_a_conflict_of_writers_ends_no_pod(prefix_node, monkeypatch):
    patch, conflicts = prefix_node.kube.patch_pod_status, [1]

    async def patch_pod_status(*arguments: object) -> None:
        if conflicts:
            conflicts.pop()
            raise Conflict("the object has been modified", code=409)
        await patch(*arguments)

    monkeypatch.setattr(prefix_node.kube, "patch_pod_status", patch_pod_status)
    async with prefix_node.kubelet():
        prefix_node.run(container("echo ran"))
        await prefix_node.kube.until_phase("pod", "Succeeded")

    assert (prefix_node.log(), conflicts) == ("ran\n", [])
