"""From a container's spec to its running process, in the order of kubelet and runtime.

Image, PreStartContainer of every resource it holds, environment and volumes (kubelet's part); then CDI edits, mounts
and the process (the runtime's part).
Environment: what Allocate answered, over it the pod's spec, over it the CDI edits.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec
from hami_chassis.errors import Permanent, Transient
from hami_chassis.kube.errors import NotFound
from kubelet_api.deviceplugin_v1beta1_pb2 import ContainerAllocateResponse

from hami_sim.kubelet.cdi import CdiRegistry, ContainerEdits, Unresolvable
from hami_sim.kubelet.devices import DeviceBook
from hami_sim.kubelet.environment import (
    ReferenceFault,
    Sources,
    expand,
    referenced_names,
    spec_environment,
)
from hami_sim.kubelet.launch import (
    Bind,
    Launch,
    driver_binds,
    in_mount_order,
    placeholders,
    preload_source,
    runtime_environment,
    with_host_paths,
)
from hami_sim.kubelet.library_folder import forget, library_folders, put_together
from hami_sim.kubelet.objects import Container, Pod
from hami_sim.kubelet.ports import DevicePlugin, ImagePuller, KubeApi, PluginError
from hami_sim.kubelet.processes import ContainerProcess, ContainerProcesses
from hami_sim.kubelet.settings import ContainerMode, KubeletSettings
from hami_sim.kubelet.visibility import is_simulated_node, visible_cards
from hami_sim.kubelet.volumes import prepare_volumes, volume_binds


class StartFault(Exception):  # noqa: N818 (a state of the container, retried)
    """There is no container yet. `reason` is what kubelet shows while it waits and tries again."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class _Granted(msgspec.Struct, frozen=True):
    """What Allocate answered for all resources of one container."""

    environment: dict[str, str]
    binds: list[Bind]
    device_nodes: list[tuple[str, str]]
    """(host path, path in the container)."""
    cdi_names: list[str]


class ContainerStarter:
    """Starts containers of one node."""

    def __init__(
        self,
        settings: KubeletSettings,
        *,
        mode: ContainerMode,
        kube: KubeApi,
        book: DeviceBook,
        find_plugin: Callable[[str], DevicePlugin | None],
        processes: ContainerProcesses,
        pull: ImagePuller,
    ) -> None:
        self._settings = settings
        self._mode = mode
        self._kube = kube
        self._book = book
        self._find_plugin = find_plugin
        self._processes = processes
        self._pull = pull
        self._cdi = CdiRegistry(settings.cdi_dirs)

    async def start(self, pod: Pod, container: Container, attempt: int) -> ContainerProcess:
        """The process runs when this returns, or its `end()` says why not. Raises StartFault."""
        await self._pull(container.image)
        await self._pre_start(pod, container)
        granted = self._granted(pod, container)
        try:
            sources = await self._sources(pod)
            spec_env = spec_environment(pod, container, sources, self._settings.node_address)
            volumes = prepare_volumes(pod, self._pod_dir(pod.uid), sources)
            binds = volume_binds(container, volumes)
        except (ReferenceFault, OSError, Transient, Permanent) as error:
            raise StartFault("CreateContainerConfigError", str(error)) from error
        environment = granted.environment | spec_env
        argv = [expand(word, environment) for word in [*container.command, *container.args]]
        if not container.command:
            raise StartFault("CreateContainerError", "the kubelet stand-in has no images: give the container a command")
        edits = self._edits(granted.cdi_names)
        environment |= dict(item.split("=", 1) for item in edits.env)
        launch = self._launch(
            pod,
            container,
            argv=argv,
            environment=environment,
            volumes=binds,
            granted=granted,
            edits=edits,
        )
        own_root = self._mode == "namespace"
        try:
            return await self._processes.start(pod.uid, container.name, attempt, launch, own_root=own_root)
        except OSError as error:
            raise StartFault("CreateContainerError", f"its process cannot be started: {error}") from error

    def forget_pod(self, pod_uid: str) -> Path:
        """The folder with the pod's volumes, to be removed."""
        forget(self._pod_dir(pod_uid))
        return self._pod_dir(pod_uid)

    def _pod_dir(self, pod_uid: str) -> Path:
        return Path(self._settings.root_dir) / "pods" / pod_uid

    async def _pre_start(self, pod: Pod, container: Container) -> None:
        for holding in self._book.held(pod.uid, container.name):
            plugin = self._find_plugin(holding.resource)
            if plugin is None:
                raise StartFault(
                    "CreateContainerConfigError",
                    f"endpoint not found in cache for a registered resource: {holding.resource}",
                )
            if not plugin.pre_start_required:
                continue
            try:
                await plugin.pre_start(list(holding.ids))
            except PluginError as error:
                raise StartFault(
                    "CreateContainerConfigError", f"device plugin PreStartContainer rpc failed with err: {error}"
                ) from error

    def _granted(self, pod: Pod, container: Container) -> _Granted:
        responses = [
            ContainerAllocateResponse.FromString(holding.response)
            for holding in self._book.held(pod.uid, container.name)
        ]
        return _Granted(
            environment={name: value for response in responses for name, value in response.envs.items()},
            binds=[
                Bind(mount.host_path, mount.container_path, mount.read_only)
                for response in responses
                for mount in response.mounts
            ],
            device_nodes=[(d.host_path, d.container_path) for response in responses for d in response.devices],
            cdi_names=list(dict.fromkeys(name for response in responses for name in _cdi_names(response))),
        )

    async def _sources(self, pod: Pod) -> Sources:
        config_maps, secrets = referenced_names(pod)
        sources = Sources(config_maps={}, secrets={})
        for name in sorted(config_maps):
            try:
                sources.config_maps[name] = await self._kube.get_config_map(pod.metadata.namespace, name)
            except NotFound:
                continue
        for name in sorted(secrets):
            try:
                sources.secrets[name] = await self._kube.get_secret(pod.metadata.namespace, name)
            except NotFound:
                continue
        return sources

    def _edits(self, names: list[str]) -> ContainerEdits:
        edits = self._cdi.resolve(names)
        if isinstance(edits, Unresolvable):
            raise StartFault(
                "CreateContainerError",
                f"failed to inject CDI devices: unresolvable CDI devices {', '.join(edits.names)}",
            )
        return edits

    def _launch(
        self,
        pod: Pod,
        container: Container,
        *,
        argv: list[str],
        environment: dict[str, str],
        volumes: list[Bind],
        granted: _Granted,
        edits: ContainerEdits,
    ) -> Launch:
        nodes = [*granted.device_nodes, *((n.host_path or n.path, n.path) for n in edits.device_nodes)]
        for host_path, _ in nodes:
            if not is_simulated_node(host_path) and not Path(host_path).exists():
                raise StartFault("CreateContainerError", f"error gathering device information: {host_path}")
        binds = [
            *volumes,
            *granted.binds,
            *(Bind(m.host_path, m.container_path, "ro" in m.options) for m in edits.mounts),
        ]
        visible = visible_cards(
            environment,
            [path for _, path in nodes],
            [bind.target for bind in binds],
            nvidia_runtime=self._settings.nvidia_runtime,
        )
        driver = self._settings.driver
        binds = in_mount_order([*binds, *driver_binds(driver, visible)])
        missing = [bind.source for bind in binds if not Path(bind.source).exists()]
        if missing:
            raise StartFault("CreateContainerError", f"mount source {missing[0]} does not exist on the node")
        launch = Launch(
            argv,
            runtime_environment(environment, pod.metadata.name, self._settings.programs_dirs, visible, driver),
            container.working_dir or "/",
            binds,
        )
        return launch if self._mode == "namespace" else self._for_host(pod, launch)

    def _for_host(self, pod: Pod, launch: Launch) -> Launch:
        preload = preload_source(launch.binds)
        try:
            content = Path(preload).read_text() if preload else ""
            folders = list(library_folders(launch.binds, content))
            put_together(folders, launch.environment, self._pod_dir(pod.uid))
            for path, source in placeholders(launch.binds):
                if not Path(source).is_dir() and not Path(path).exists():
                    Path(path).touch()
        except (OSError, UnicodeDecodeError) as error:
            raise StartFault("CreateContainerError", str(error)) from error
        inside = {bind for folder in folders for bind in folder.inner}
        binds = [bind for bind in launch.binds if bind not in inside]
        return with_host_paths(msgspec.structs.replace(launch, binds=binds), content)


def _cdi_names(response: ContainerAllocateResponse) -> list[str]:
    """Runtimes take names from the field and from annotations of CDI's own prefix."""
    annotated = [value for key, value in response.annotations.items() if key.startswith("cdi.k8s.io/")]
    return [*(device.name for device in response.cdi_devices), *(n for value in annotated for n in value.split(","))]
