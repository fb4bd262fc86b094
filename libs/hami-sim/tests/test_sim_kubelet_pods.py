"""Pods on one stand-in: real plugin sockets, real processes, an API server in memory. In both container modes."""

import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import grpc
import msgspec
import pytest
from hami_sim.kubelet import DriverSettings, KubeletSettings, KubeletStandIn, end_containers
from hami_sim.kubelet.container_mode import ModeUnavailableError, choose_mode, namespace_fault
from hami_sim.kubelet.device_plugins import PluginEndpoint
from hami_sim.kubelet.log_server import LogServer
from hami_sim.kubelet.memory_kube import MemoryKube
from hami_sim.kubelet.objects import ConfigMap, ObjectMeta
from hami_sim.kubelet.ports import PluginError
from hami_sim.kubelet.scripted_plugin import Refused, ScriptedPlugin
from hami_sim.kubelet.settings import LogServerSettings
from hami_sim.kubelet.shim_server import ShimServer
from kubelet_api.deviceplugin_v1beta1_pb2 import CDIDevice, ContainerAllocateResponse, Mount, RegisterRequest
from kubelet_api.deviceplugin_v1beta1_pb2_grpc import RegistrationStub, add_DevicePluginServicer_to_server

RESOURCE = "example.com/gpu"
FOREVER = "while :; do sleep 0.05; done"


class Node:
    """A stand-in's surroundings, which outlive it."""

    def __init__(self, root: Path, mode: str) -> None:
        self.root = root
        self.kube = MemoryKube()
        self.plugin_folder = root / "device-plugins"
        self.log_port = 0
        self.settings = KubeletSettings(
            node_name="n1",
            root_dir=str(root),
            mode=mode,
            cdi_dirs=(str(root / "cdi"),),
            time_scale=0.002,
            graceful_floor_seconds=0.1,
        )

    @asynccontextmanager
    async def kubelet(self) -> AsyncIterator[KubeletStandIn]:
        async with LogServer(LogServerSettings()).serving() as logs:
            self.log_port = logs.port
            stand_in = await KubeletStandIn.create(self.settings, self.kube, events=self.kube, log_server=logs)
            async with stand_in.running():
                yield stand_in

    @asynccontextmanager
    async def kubelet_and(self, plugin: ScriptedPlugin, count: int) -> AsyncIterator[KubeletStandIn]:
        async with self.kubelet() as stand_in, plugin.serving(self.plugin_folder):
            await self.allocatable(count)
            yield stand_in

    def run(self, *containers: dict, name: str = "pod", policy: str = "Never", **spec) -> str:
        return self.kube.run_pod("n1", {"restartPolicy": policy, "containers": list(containers), **spec}, name)

    def folder(self, name: str = "pod", container: str = "main", attempt: int = 0) -> Path:
        uid = self.kube.pods[name]["metadata"]["uid"]
        return self.root / "containers" / uid / container / str(attempt)

    def log(self, name: str = "pod", container: str = "main", attempt: int = 0) -> str:
        return (self.folder(name, container, attempt) / "log").read_text()

    def pid(self, name: str = "pod", container: str = "main", attempt: int = 0) -> int:
        return json.loads((self.folder(name, container, attempt) / "state.json").read_text())["pid"]

    def state(self, name: str = "pod", container: str = "main") -> dict:
        status = self.kube.pods[name]["status"]
        every = [*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])]
        return next((one for one in every if one["name"] == container), {"state": {}, "restartCount": 0})

    async def running(self, name: str = "pod", container: str = "main") -> None:
        await self.kube.until(lambda: "running" in self.state(name, container)["state"])

    async def waiting(self, reason: str, name: str = "pod", container: str = "main") -> str:
        def found() -> bool:
            return self.state(name, container)["state"].get("waiting", {}).get("reason") == reason

        await self.kube.until(found)
        return self.state(name, container)["state"]["waiting"].get("message", "")

    async def allocatable(self, count: int) -> None:
        await self.kube.until(
            lambda: self.kube.nodes["n1"]["status"].get("allocatable", {}).get(RESOURCE) == str(count)
        )


@pytest.fixture
async def short_root() -> AsyncIterator[Path]:
    """A unix socket's path has a limit that pytest's own folders exceed."""
    root = Path(tempfile.mkdtemp(prefix="kl"))
    yield root
    await end_containers(root)
    shutil.rmtree(root)


@pytest.fixture
def shims() -> Iterator[ShimServer]:
    server = ShimServer()
    yield server
    server.close()


async def skip_without_namespaces(root: Path, shims: ShimServer) -> None:
    fault = await namespace_fault(root, shims)
    if fault:
        pytest.skip(f"this machine allows no mount namespaces: {fault}")


@pytest.fixture(params=["prefix", "namespace"])
async def node(request: pytest.FixtureRequest, short_root: Path, shims: ShimServer) -> Node:
    if request.param == "namespace":
        await skip_without_namespaces(short_root, shims)
    return Node(short_root, request.param)


@pytest.fixture
def prefix_node(short_root: Path) -> Node:
    """For what does not depend on the mode."""
    return Node(short_root, "prefix")


def container(script: str, name: str = "main", gpus: int = 0, **more) -> dict:
    limits = {"resources": {"limits": {RESOURCE: str(gpus)}}} if gpus else {}
    return {"name": name, "image": "any", "command": ["/bin/sh", "-c", script], **limits, **more}


def alive(pid: int) -> bool:
    """A zombie is dead: who reaps it is not the stand-in's business."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# ---- what a container gets -----------------------------------------------------------------------------------------


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


# ---- admission -----------------------------------------------------------------------------------------------------


async def test_a_pod_that_finds_no_devices_fails_and_the_next_one_finds_them_free_again(prefix_node):
    node, plugin = prefix_node, ScriptedPlugin(RESOURCE, ["a", "b"])
    async with node.kubelet_and(plugin, 2):
        node.run(container(FOREVER, gpus=2), name="first")
        await node.running("first")
        node.run(container("true", gpus=1), name="second")
        refused = await node.kube.until_phase("second", "Failed")
        node.kube.ask_deletion("first", 1)
        await node.kube.until_gone("first")
        node.run(container("true", gpus=2), name="third")
        await node.kube.until_phase("third", "Succeeded")

    assert refused["reason"] == "UnexpectedAdmissionError"
    assert "Requested: 1, Available: 0, which is unexpected" in refused["message"]


async def test_an_allocate_that_is_refused_fails_the_pod(prefix_node):
    def refuse(_: list[str]) -> ContainerAllocateResponse:
        raise Refused("no binding pod found")

    plugin = ScriptedPlugin(RESOURCE, ["a"])
    plugin.allocate = refuse
    async with prefix_node.kubelet_and(plugin, 1):
        prefix_node.run(container("true", gpus=1))
        status = await prefix_node.kube.until_phase("pod", "Failed")

    assert status["message"] == (
        "Pod was rejected: Allocate failed due to rpc error: code = Unknown desc = no binding pod found, "
        "which is unexpected"
    )


class SilentPlugin(ScriptedPlugin):
    """Is asked, and ends before it answers."""

    async def Allocate(self, request, _context):  # noqa: N802
        await self._note("Allocate", request)
        await asyncio.Event().wait()


async def test_a_plugin_that_ends_in_a_call_fails_that_call_and_nothing_else(short_root):
    """Its channel is closed once its list of devices ends, which cancels the calls on it: as if the caller were."""
    plugin = SilentPlugin(RESOURCE, ["a"])
    server = grpc.aio.server()
    add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix:{short_root / 'scripted.sock'}")
    await server.start()
    endpoint = PluginEndpoint(RESOURCE, short_root / "scripted.sock")
    await endpoint.connect()
    asked = [asyncio.create_task(endpoint.allocate(["a"])) for _ in range(2)]
    async with plugin.called:
        await plugin.called.wait_for(lambda: len(plugin.bodies("Allocate")) == len(asked))
    asked[1].cancel()
    await asyncio.wait([asked[1]])
    await endpoint.close()
    with pytest.raises(PluginError, match="Unavailable"):
        await asked[0]
    assert asked[1].cancelled()
    await server.stop(None)


async def test_a_resource_that_no_plugin_ever_registered_is_not_the_kubelets_business(prefix_node):
    async with prefix_node.kubelet():
        prefix_node.run(container("true", resources={"limits": {"example.com/other": "5", "cpu": "1"}}))
        await prefix_node.kube.until_phase("pod", "Succeeded")


async def test_pods_are_admitted_one_after_another_oldest_first(prefix_node):
    node, plugin = prefix_node, ScriptedPlugin(RESOURCE, [f"d{i}" for i in range(6)])
    order = []
    for index, size in enumerate((3, 1, 2)):
        node.kube.run_pod(
            "n1",
            {"restartPolicy": "Never", "containers": [container("true", gpus=size)]},
            f"p{size}",
            creationTimestamp=f"2026-01-01T00:00:0{(2, 0, 1)[index]}Z",
        )
    # Known to the kubelet, not yet connected: as after a restart.
    node.plugin_folder.mkdir()
    (node.plugin_folder / "kubelet_internal_checkpoint").write_text(
        json.dumps({"Data": {"PodDeviceEntries": None, "RegisteredDevices": {RESOURCE: []}}, "Checksum": 0})
    )
    async with node.kubelet():
        for size in (1, 2, 3):
            status = await node.kube.until_phase(f"p{size}", "Failed")
            order.append(status["message"])
    assert all(f"cannot allocate unregistered device {RESOURCE}" in message for message in order)
    assert [pod for pod, _, _ in node.kube.warnings] == ["p1", "p2", "p3"]
    assert plugin.calls == []


# ---- starting, restarting ------------------------------------------------------------------------------------------


async def test_a_refused_pre_start_is_tried_again_and_the_container_does_not_run(node):
    refusals = iter(["first", "second"])

    def refuse_twice(_: list[str]) -> None:
        text = next(refusals, None)
        if text:
            raise Refused(text)

    plugin = ScriptedPlugin(RESOURCE, ["a", "b"])
    plugin.pre_start = refuse_twice
    async with node.kubelet_and(plugin, 2):
        node.run(container("echo ran", gpus=2))
        message = await node.waiting("CreateContainerConfigError")
        assert not node.folder().exists()
        status = await node.kube.until_phase("pod", "Succeeded")

    assert "PreStartContainer rpc failed with err: rpc error: code = Unknown desc = " in message
    assert [sorted(body["devices_ids"]) for body in plugin.bodies("PreStartContainer")] == [["a", "b"]] * 3
    assert len(plugin.bodies("Allocate")) == 1
    assert (node.log(), status["containerStatuses"][0]["restartCount"]) == ("ran\n", 0)


async def test_a_container_that_fails_comes_back_and_pre_start_comes_each_time(prefix_node):
    node, plugin = prefix_node, ScriptedPlugin(RESOURCE, ["a"])
    script = f"echo x >> {node.root}/runs; [ $(wc -l < {node.root}/runs) -ge 3 ]"
    async with node.kubelet_and(plugin, 1):
        node.run(container(script, gpus=1), policy="OnFailure")
        status = await node.kube.until_phase("pod", "Succeeded")

    assert status["containerStatuses"][0]["restartCount"] == 2
    assert status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1
    assert len(plugin.bodies("PreStartContainer")) == 3
    assert len(plugin.bodies("Allocate")) == 1


async def test_a_container_that_always_ends_is_held_back(prefix_node):
    prefix_node.settings = msgspec.structs.replace(prefix_node.settings, time_scale=10.0)
    async with prefix_node.kubelet():
        prefix_node.run(container("exit 3"), policy="Always")
        message = await prefix_node.waiting("CrashLoopBackOff")

    assert message.startswith("back-off 100s restarting failed container=main pod=pod_default(")
    assert prefix_node.state()["restartCount"] == 1
    assert prefix_node.state()["lastState"]["terminated"]["exitCode"] == 3
    assert prefix_node.kube.pods["pod"]["status"]["phase"] == "Running"


async def test_init_containers_run_in_order_before_the_others(prefix_node):
    root = prefix_node.root
    async with prefix_node.kubelet():
        prefix_node.run(
            container(f"cat {root}/order"),
            initContainers=[
                container(f"sleep 0.2; echo one >> {root}/order", name="one"),
                container(f"echo two >> {root}/order", name="two"),
            ],
        )
        await prefix_node.kube.until_phase("pod", "Succeeded")

    assert prefix_node.log() == "one\ntwo\n"


async def test_a_failed_init_container_fails_a_pod_that_never_restarts(prefix_node):
    async with prefix_node.kubelet():
        prefix_node.run(container("true"), initContainers=[container("exit 4", name="init")])
        status = await prefix_node.kube.until_phase("pod", "Failed")

    assert status["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 4
    assert status["containerStatuses"][0]["state"]["waiting"]["reason"] == "PodInitializing"


async def test_a_sidecar_runs_beside_the_others_and_ends_after_them(prefix_node):
    root = prefix_node.root
    script = f'trap "echo bye; exit 0" TERM; touch {root}/up; {FOREVER}'
    async with prefix_node.kubelet():
        prefix_node.run(
            container(f"while [ ! -e {root}/up ]; do sleep 0.05; done; echo worked"),
            initContainers=[container(script, name="side", restartPolicy="Always")],
        )
        await prefix_node.kube.until_phase("pod", "Succeeded")

    assert (prefix_node.log(), prefix_node.log(container="side")) == ("worked\n", "bye\n")


async def test_what_a_container_leaves_behind_ends_with_it(node):
    async with node.kubelet():
        node.run(container(f"setsid sh -c '{FOREVER}' & echo $!; sleep 0.2"))
        await node.kube.until_phase("pod", "Succeeded")

    assert not alive(int(node.log()))


async def test_a_pod_past_its_deadline_fails(prefix_node):
    async with prefix_node.kubelet():
        prefix_node.run(container(FOREVER), activeDeadlineSeconds=1)
        status = await prefix_node.kube.until_phase("pod", "Failed")

    assert status["reason"] == "DeadlineExceeded"


async def test_the_image_comes_before_pre_start_and_pre_start_before_the_process(prefix_node):
    order: list[str] = []
    plugin = ScriptedPlugin(RESOURCE, ["a"])
    plugin.pre_start = lambda _: order.append("pre-start" if not prefix_node.folder().exists() else "too late")

    async def pull(image: str) -> None:
        order.append(image)

    async with LogServer(LogServerSettings()).serving() as logs:
        stand_in = await KubeletStandIn.create(
            prefix_node.settings, prefix_node.kube, events=prefix_node.kube, log_server=logs, pull=pull
        )
        async with stand_in.running(), plugin.serving(prefix_node.plugin_folder):
            await prefix_node.allocatable(1)
            prefix_node.run(container("true", gpus=1))
            await prefix_node.kube.until_phase("pod", "Succeeded")

    assert order == ["any", "pre-start"]


# ---- deletion ------------------------------------------------------------------------------------------------------


async def test_a_deleted_pod_may_say_goodbye(node):
    async with node.kubelet():
        node.run(
            container(
                f'trap "echo bye > {node.root}/bye; exit 7" TERM; touch {node.root}/up; {FOREVER}',
                volumeMounts=[{"name": "root", "mountPath": str(node.root)}],
            ),
            volumes=[{"name": "root", "hostPath": {"path": str(node.root)}}],
        )
        await node.running()
        while not (node.root / "up").exists():  # noqa: ASYNC110 (another process writes it)
            await asyncio.sleep(0.02)
        folder = node.folder()
        node.kube.ask_deletion("pod", 20)
        await node.kube.until_gone("pod")

    assert (node.root / "bye").read_text() == "bye\n"
    assert not folder.exists()


async def test_a_pod_that_does_not_listen_is_killed_when_its_grace_is_over(prefix_node):
    async with prefix_node.kubelet():
        prefix_node.run(container(f'trap "" TERM; {FOREVER}'))
        await prefix_node.running()
        pid = prefix_node.pid()
        prefix_node.kube.ask_deletion("pod", 1)
        await prefix_node.kube.until_gone("pod")

    assert not alive(pid)


async def test_a_pod_can_be_deleted_while_its_start_is_refused(prefix_node):
    def refuse(_: list[str]) -> None:
        raise Refused("never")

    plugin = ScriptedPlugin(RESOURCE, ["a"])
    plugin.pre_start = refuse
    async with prefix_node.kubelet_and(plugin, 1):
        prefix_node.run(container("true", gpus=1))
        await prefix_node.waiting("CreateContainerConfigError")
        prefix_node.kube.ask_deletion("pod", 30)
        await prefix_node.kube.until_gone("pod")


async def test_a_pod_removed_by_force_is_ended(prefix_node):
    async with prefix_node.kubelet() as stand_in:
        prefix_node.run(container(FOREVER), terminationGracePeriodSeconds=1)
        await prefix_node.running()
        process = next(iter(stand_in._processes.all_of(prefix_node.kube.pods["pod"]["metadata"]["uid"])))
        prefix_node.kube.ask_deletion("pod", 0)
        end = await process.ended()

    assert end.signal is not None


# ---- restarts ------------------------------------------------------------------------------------------------------


async def test_a_plugin_may_go_and_come_back(prefix_node):
    node, plugin = prefix_node, ScriptedPlugin(RESOURCE, ["a", "b"])
    async with node.kubelet():
        async with plugin.serving(node.plugin_folder):
            await node.allocatable(2)
            node.run(container(FOREVER, gpus=1), name="stays")
            await node.running("stays")
            pid = node.pid("stays")
        await node.allocatable(0)
        assert node.kube.nodes["n1"]["status"]["capacity"][RESOURCE] == "2"
        async with plugin.serving(node.plugin_folder, "again.sock"):
            await node.allocatable(2)
            node.run(container("true", gpus=1), name="next")
            await node.kube.until_phase("next", "Succeeded")
            node.run(container("true", gpus=2), name="too-much")
            await node.kube.until_phase("too-much", "Failed")
        assert alive(pid)


async def test_an_unhealthy_device_is_not_allocatable(prefix_node):
    plugin = ScriptedPlugin(RESOURCE, ["a", "b"])
    async with prefix_node.kubelet_and(plugin, 2):
        await plugin.set_health({"a": False})
        await prefix_node.allocatable(1)
        prefix_node.run(container("true", gpus=1))
        await prefix_node.kube.until_phase("pod", "Succeeded")

    assert plugin.bodies("Allocate") == [{"container_requests": [{"devices_ids": ["b"]}]}]


async def test_a_new_stand_in_takes_processes_and_devices_over(node):
    plugin = ScriptedPlugin(RESOURCE, ["a", "b"])
    script = f"while [ ! -e {node.root}/go ]; do sleep 0.05; done; exit 5"
    async with node.kubelet_and(plugin, 2):
        node.run(
            container(script, gpus=2, volumeMounts=[{"name": "root", "mountPath": str(node.root)}]),
            volumes=[{"name": "root", "hostPath": {"path": str(node.root)}}],
        )
        await node.running()
        pid = node.pid()
    assert alive(pid), "containers outlive the stand-in"
    async with node.kubelet():
        assert node.kube.nodes["n1"]["status"]["allocatable"][RESOURCE] == "0"
        async with plugin.serving(node.plugin_folder):
            await node.allocatable(2)
            node.run(container("true", gpus=1), name="second")
            await node.kube.until_phase("second", "Failed")
            assert node.pid() == pid
            (node.root / "go").touch()
            status = await node.kube.until_phase("pod", "Failed")

    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 5
    assert len(plugin.bodies("Allocate")) == 1


async def test_an_end_that_nobody_saw_is_known_afterwards(prefix_node):
    node = prefix_node
    async with node.kubelet():
        node.run(container(f"while [ ! -e {node.root}/go ]; do sleep 0.05; done; exit 6"))
        await node.running()
        exit_file = node.folder() / "exit.json"
    (node.root / "go").touch()
    while not exit_file.exists():  # noqa: ASYNC110 (another process writes it)
        await asyncio.sleep(0.02)
    async with node.kubelet():
        status = await node.kube.until_phase("pod", "Failed")

    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 6


async def test_processes_of_a_pod_that_was_removed_meanwhile_are_ended(prefix_node):
    node = prefix_node
    async with node.kubelet():
        node.run(container(FOREVER))
        await node.running()
        pid, folder = node.pid(), node.folder()
    node.kube.ask_deletion("pod", 0)
    async with node.kubelet():
        assert not alive(pid)
        assert not folder.exists()


async def test_a_start_that_an_earlier_life_left_half_done_is_done_anew(prefix_node):
    prefix_node.run(container("echo ran"))
    prefix_node.folder().mkdir(parents=True)
    (prefix_node.folder() / "spec.json").write_text("{}")
    async with prefix_node.kubelet():
        status = await prefix_node.kube.until_phase("pod", "Succeeded")

    assert (prefix_node.log(), status["containerStatuses"][0]["restartCount"]) == ("ran\n", 0)


async def test_processes_of_a_pod_that_is_finished_are_ended(prefix_node):
    node = prefix_node
    async with node.kubelet():
        node.run(container(FOREVER))
        await node.running()
        pid = node.pid()
    node.kube.pods["pod"]["status"]["phase"] = "Failed"
    async with node.kubelet():
        while not (node.folder() / "exit.json").exists():  # noqa: ASYNC110 (another process writes it)
            await asyncio.sleep(0.02)
    assert not alive(pid)


async def test_a_plugin_may_register_anew_without_going(prefix_node):
    first, second = ScriptedPlugin(RESOURCE, ["a"]), ScriptedPlugin(RESOURCE, ["b", "c"])
    async with prefix_node.kubelet_and(first, 1), second.serving(prefix_node.plugin_folder, "second.sock"):
        await prefix_node.allocatable(2)
        prefix_node.run(container("true", gpus=1))
        await prefix_node.kube.until_phase("pod", "Succeeded")

    assert (len(first.bodies("Allocate")), len(second.bodies("Allocate"))) == (0, 1)


async def test_a_plugin_of_another_version_is_refused(prefix_node):
    async with (
        prefix_node.kubelet(),
        grpc.aio.insecure_channel(f"unix:{prefix_node.plugin_folder}/kubelet.sock") as channel,
    ):
        for request in (
            RegisterRequest(version="v1", endpoint="x.sock", resource_name=RESOURCE),
            RegisterRequest(version="v1beta1", endpoint="x.sock", resource_name="gpu"),
            RegisterRequest(version="v1beta1", endpoint="../x.sock", resource_name=RESOURCE),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT"):
                await RegistrationStub(channel).Register(request)


async def test_sockets_of_an_earlier_life_are_removed(prefix_node):
    prefix_node.plugin_folder.mkdir()
    plugin = ScriptedPlugin(RESOURCE, ["a"])
    async with prefix_node.kubelet_and(plugin, 1):
        left = prefix_node.plugin_folder / "scripted.sock"
        os.link(left, prefix_node.plugin_folder / "left.sock")
    async with prefix_node.kubelet():
        assert [path.name for path in prefix_node.plugin_folder.glob("*.sock")] == ["kubelet.sock"]


async def test_a_status_is_written_when_the_api_server_is_back(prefix_node):
    node = prefix_node
    async with node.kubelet():
        node.run(container(f"while [ ! -e {node.root}/go ]; do sleep 0.05; done"))
        await node.running()
        exit_file = node.folder() / "exit.json"
        node.kube.away = True
        (node.root / "go").touch()
        while not exit_file.exists():  # noqa: ASYNC110 (another process writes it)
            await asyncio.sleep(0.02)
        node.kube.away = False
        await node.kube.until_phase("pod", "Succeeded")


async def test_a_node_and_its_pods_are_ready_again_after_silence(prefix_node):
    node = prefix_node
    node.settings = msgspec.structs.replace(
        node.settings, lease_duration_seconds=1, lease_renew_seconds=0.1, reconcile_seconds=0.0
    )
    status = node.kube.nodes

    def node_ready() -> str:
        return next(c["status"] for c in status["n1"]["status"]["conditions"] if c["type"] == "Ready")

    def pod_ready() -> str:
        conditions = node.kube.pods["pod"]["status"]["conditions"]
        return next((c["status"] for c in conditions if c["type"] == "Ready"), "")

    async with node.kubelet():
        node.run(container(FOREVER))
        await node.kube.until(lambda: pod_ready() == "True")
        node.kube.away = True
        await node.kube.until_called_in_vain(2)
        for condition in [*status["n1"]["status"]["conditions"], *node.kube.pods["pod"]["status"]["conditions"]]:
            condition["status"] = "Unknown" if condition["type"] == "Ready" else condition["status"]
        node.kube.away = False
        await node.kube.until(lambda: node_ready() == "True")
        node.kube.touch("pod")
        await node.kube.until(lambda: pod_ready() == "True")


# ---- logs ----------------------------------------------------------------------------------------------------------


async def test_logs_are_served(prefix_node):
    node = prefix_node
    async with node.kubelet(), aiohttp.ClientSession(f"http://127.0.0.1:{node.log_port}") as session:
        node.run(container(f"echo one; echo two; while [ ! -e {node.root}/go ]; do sleep 0.05; done; echo three"))
        await node.running()
        while node.log().count("\n") < 2:  # noqa: ASYNC110 (another process writes it)
            await asyncio.sleep(0.02)
        path = "/containerLogs/default/pod/main"

        async def get(query: str) -> tuple[int, str]:
            async with session.get(path + query) as response:
                return response.status, await response.text()

        assert await get("") == (200, "one\ntwo\n")
        assert await get("?tailLines=1") == (200, "two\n")
        assert await get("?tailLines=0") == (200, "")
        assert await get("?limitBytes=5") == (200, "one\nt")
        assert (await get("?timestamps=true"))[0] == 400
        assert (await get("?previous=true"))[0] == 404
        async with session.get(path + "?follow=true&tailLines=1") as following:
            assert await following.content.readline() == b"two\n"
            (node.root / "go").touch()
            assert await following.content.read() == b"three\n"
        async with session.get("/containerLogs/default/none/main") as response:
            assert response.status == 404


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
