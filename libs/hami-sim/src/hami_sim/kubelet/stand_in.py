"""One simulated node's kubelet.

Speaks to device plugins, the API server and processes as kubelet does, and knows nothing of what the plugins mean.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from hami_chassis.clock import Clock, SystemClock
from hami_chassis.log import get_logger
from kubelet_api.constants import DEVICE_PLUGINS_FOLDER, POD_RESOURCES_FOLDER

from hami_sim.kubelet.admission import Admission, Refusal
from hami_sim.kubelet.admission_queue import AdmissionQueue
from hami_sim.kubelet.checkpoint_file import CheckpointFile
from hami_sim.kubelet.container_mode import choose_mode
from hami_sim.kubelet.container_starter import ContainerStarter
from hami_sim.kubelet.device_plugins import PluginRegistry
from hami_sim.kubelet.devices import Device, DeviceBook
from hami_sim.kubelet.log_server import LogServer
from hami_sim.kubelet.node_reporter import NodeReporter
from hami_sim.kubelet.objects import Pod
from hami_sim.kubelet.pod_resources import PodResourcesServer
from hami_sim.kubelet.pod_worker import PodWorker
from hami_sim.kubelet.ports import ImagePuller, KubeApi, NodeEndingError, PodEvents
from hami_sim.kubelet.processes import ContainerProcess, ContainerProcesses
from hami_sim.kubelet.settings import ContainerMode, KubeletSettings
from hami_sim.kubelet.shim_server import ShimServer

_log = get_logger("kubelet")


class KubeletStandIn:
    """Build it with `KubeletStandIn.create`, then `run` until cancelled.

    Containers outlive it; `end_containers` ends them. It may be created again on the same root folder: checkpoint and
    processes are taken over.
    """

    def __init__(
        self,
        settings: KubeletSettings,
        kube: KubeApi,
        *,
        mode: ContainerMode,
        events: PodEvents,
        log_server: LogServer,
        shims: ShimServer,
        pull: ImagePuller,
        rng: random.Random,
        clock: Clock,
    ) -> None:
        root = Path(settings.root_dir)
        self.settings = settings
        self.mode = mode
        self._kube = kube
        self._events = events
        self._log_server = log_server
        self._clock = clock
        self._shims = shims
        self._workers: dict[str, PodWorker] = {}
        self._book = DeviceBook()
        self._checkpoint = CheckpointFile(root / DEVICE_PLUGINS_FOLDER)
        self._plugins = PluginRegistry(root / DEVICE_PLUGINS_FOLDER, self._on_devices, self._on_plugin_gone, self.spawn)
        self._admission = Admission(self._book, self._plugins.find, lambda: self._checkpoint.save(self._book), rng)
        self._queue = AdmissionQueue(self._admit_now)
        self._processes = ContainerProcesses(root / "containers", shims)
        self._pod_resources = PodResourcesServer(root / POD_RESOURCES_FOLDER, self._book, self._active_pods)
        self._starter = ContainerStarter(
            settings,
            mode=mode,
            kube=kube,
            book=self._book,
            find_plugin=self._plugins.find,
            processes=self._processes,
            pull=pull,
        )
        self._feed = kube.pods_of(settings.node_name, self)
        self._reporter: NodeReporter | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self.ready = asyncio.Event()
        """Set when plugins can register, the Node is Ready and its pods are known."""

    @classmethod
    async def create(
        cls,
        settings: KubeletSettings,
        kube: KubeApi,
        *,
        events: PodEvents,
        log_server: LogServer,
        shims: ShimServer | None = None,
        pull: ImagePuller | None = None,
        rng: random.Random | None = None,
        clock: Clock | None = None,
    ) -> "KubeletStandIn":
        """Chooses the containers' mode. Raises ModeUnavailableError when the one asked for cannot be had.

        `shims` may serve many nodes: one process less for each.
        """
        shims = shims or ShimServer()
        return cls(
            settings,
            kube,
            mode=await choose_mode(settings.mode, Path(settings.root_dir), shims),
            events=events,
            log_server=log_server,
            shims=shims,
            pull=pull or _image_is_there,
            rng=rng or random.Random(),  # noqa: S311 (order of ids, no secret)
            clock=clock or SystemClock(),
        )

    async def run(self) -> None:
        """Until cancelled. Raises what makes going on impossible, such as a damaged checkpoint."""
        self._checkpoint.load(self._book)
        self._processes.give_up_unstarted()
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            stack.callback(self._workers.clear)
            stack.callback(self._shims.close)
            await self._plugins.start()
            stack.push_async_callback(self._plugins.stop)
            await self._pod_resources.start()
            stack.push_async_callback(self._pod_resources.stop)
            self._log_server.add(self._find_process)
            stack.callback(self._log_server.remove, self._find_process)
            self._reporter = reporter = self._new_reporter()
            self.spawn(reporter.run_status(), "node status")
            self.spawn(reporter.run_lease(), "lease")
            self.spawn(self._queue.run(), "admission")
            self.spawn(self._feed.run(), "pods")
            await self._feed.synced.wait()
            await self._end_orphans()
            await reporter.registered.wait()
            _log.info("kubelet-ready", node=self.settings.node_name, mode=self.mode)
            self.ready.set()

    def _new_reporter(self) -> NodeReporter:
        return NodeReporter(
            self.settings,
            self._kube,
            mode=self.mode,
            log_port=self._log_server.port,
            devices=self.device_counts,
            clock=self._clock,
        )

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> object:
        """A task of this node; its failure ends `run`."""
        if self._tasks is None:
            raise RuntimeError("the stand-in does not run")
        try:
            return self._tasks.create_task(work, name=name)
        except RuntimeError as error:  # a call that came in while the group ended
            work.close()
            raise NodeEndingError(f"{name}: {error}") from error

    @asynccontextmanager
    async def running(self) -> AsyncIterator["KubeletStandIn"]:
        """`run` in the background, entered when ready; a failure of it ends the block."""
        async with asyncio.TaskGroup() as tasks:
            work = tasks.create_task(self.run(), name=f"kubelet {self.settings.node_name}")
            await self.ready.wait()
            try:
                yield self
            finally:
                work.cancel()

    async def end_containers(self) -> None:
        """End every process of the node, also those of an earlier life; to be called when `run` is over."""
        await end_containers(Path(self.settings.root_dir))

    # ---- pods, as the feed tells them ----

    def added(self, new: Pod) -> None:
        worker = PodWorker(
            new,
            settings=self.settings,
            kube=self._kube,
            admit=self._queue.admit,
            starter=self._starter,
            processes=self._processes,
            events=self._events,
            clock=self._clock,
            spawn=self.spawn,
            on_done=self._forget,
        )
        self._workers[new.uid] = worker
        worker.begin()

    def modified(self, old: Pod, new: Pod) -> None:  # noqa: ARG002
        if new.uid in self._workers:
            self._workers[new.uid].update(new)

    def deleted(self, last: Pod) -> None:
        if last.uid in self._workers:
            self._workers[last.uid].object_gone()

    # ---- devices ----

    def _on_devices(self, resource: str, devices: list[Device]) -> None:
        self._book.advertise(resource, devices)
        # So the next kubelet knows the resource, and refuses pods that ask for it until its plugin is back.
        self._checkpoint.save(self._book)
        if self._reporter:
            self._reporter.devices_changed()

    def _on_plugin_gone(self, resource: str) -> None:
        _log.info("plugin-gone", node=self.settings.node_name, resource=resource)
        self._book.plugin_gone(resource)
        if self._reporter:
            self._reporter.devices_changed()

    def device_counts(self) -> dict[str, tuple[int, int]]:
        """By resource: how many there are, and how many of them are healthy."""
        return {
            resource: (self._book.capacity(resource), self._book.allocatable(resource))
            for resource in self._book.resources()
        }

    async def _admit_now(self, pod: Pod) -> Refusal | None:
        self._book.retain_pods({other.uid for other in self._active_pods()} | {pod.uid})
        worker = self._workers.get(pod.uid)
        return await self._admission.admit(pod, worker.running if worker is not None else ())

    # ---- small things ----

    def _active_pods(self) -> list[Pod]:
        return [worker.pod for worker in self._workers.values() if worker.active]

    def _forget(self, pod_uid: str) -> None:
        self._workers.pop(pod_uid, None)

    def _find_process(
        self,
        namespace: str,
        pod: str,
        container: str,
        previous: bool,
    ) -> ContainerProcess | None:
        for worker in self._workers.values():
            if worker.pod.key == f"{namespace}/{pod}":
                attempts = self._processes.attempts(worker.pod.uid, container)
                wanted = 2 if previous else 1
                return attempts[-wanted] if len(attempts) >= wanted else None
        return None

    async def _end_orphans(self) -> None:
        """Processes of pods that were removed while nobody looked."""
        for pod_uid in self._processes.pods():
            if pod_uid not in self._workers:
                await _end_pod(self._processes, pod_uid)


async def end_containers(root: Path) -> None:
    """End every process under a node's root folder; needs no stand-in, and none may run."""
    processes = ContainerProcesses(root / "containers", ShimServer())
    processes.give_up_unstarted()
    await asyncio.gather(*(_end_pod(processes, pod_uid) for pod_uid in processes.pods()))


async def _end_pod(processes: ContainerProcesses, pod_uid: str) -> None:
    running = [process for process in processes.all_of(pod_uid) if process.end() is None]
    await asyncio.gather(*(process.end_now() for process in running))
    processes.remove_pod(pod_uid)


async def _image_is_there(image: str) -> None:
    """Simulated images need no pull."""
    _ = image
