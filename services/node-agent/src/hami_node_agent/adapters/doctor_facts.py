"""Looks at a machine as the node-agent would find it. Reads only: nothing is made, registered or written."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Final

import grpc
import msgspec
from hami_chassis.clock import SystemClock
from hami_chassis.errors import Permanent, Transient
from hami_chassis.kube import KubeClient, KubeSettings, ObjectMeta
from hami_chassis.kube.resources import NODES, PODS
from hami_chassis.metrics import ChassisMetrics
from hami_model import kube
from kubelet_api import podresources_v1_pb2 as pb
from kubelet_api.constants import KUBELET_SOCKET
from kubelet_api.podresources_v1_pb2_grpc import PodResourcesListerStub
from prometheus_client import CollectorRegistry

from hami_node_agent.adapters.kubelet_files import KubeletCheckpointFile
from hami_node_agent.adapters.machine_files import driver_root
from hami_node_agent.adapters.nvml import Nvml
from hami_node_agent.adapters.nvml_library import DriverError, find_library
from hami_node_agent.config import FileSettings, NodeAgentSettings
from hami_node_agent.core import handed_out
from hami_node_agent.core.doctor import Folder, KubernetesView, MachineFacts, OtherPod, Wishes
from hami_node_agent.core.grant import HostLayout

BOOK_FILE: Final = "handed-out.json"
_COMPONENT_LABEL: Final = "app.kubernetes.io/component"
_ELF: Final = b"\x7fELF"
_SECONDS: Final = 15.0  # a machine that is busy answers late


class _Container(msgspec.Struct, frozen=True, kw_only=True):
    image: str = ""


class _PodSpec(msgspec.Struct, frozen=True, kw_only=True):
    containers: tuple[_Container, ...] = ()


class _Pod(msgspec.Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _PodSpec = _PodSpec()


def wishes(settings: NodeAgentSettings) -> Wishes:
    return Wishes(
        handoff=settings.handoff.mode,
        runtime_cdi=settings.handoff.runtime_cdi,
        library_file=settings.files.library_file,
        needs_driver=settings.nvml.required,
    )


async def gather(settings: NodeAgentSettings) -> MachineFacts:
    """Everything that is looked at, whatever fails on the way."""
    layout = HostLayout(hook_path=settings.files.hook_path, lock_dir=settings.files.lock_dir)
    plugins = Path(settings.kubelet.plugins_dir)
    view = await _kubernetes(settings.kube, settings.node.name)
    driver_problem, card_ids = await _driver(settings)
    return MachineFacts(
        kubernetes=view,
        plugins=_folder(plugins),
        kubelet_answers=await _silent(plugins / KUBELET_SOCKET),
        checkpoint_problem=KubeletCheckpointFile(plugins).problem(),
        pod_resources_problem=await _pod_resources(settings.kubelet.pod_resources_socket),
        driver_problem=driver_problem,
        card_ids=card_ids,
        library_problem=_library(settings.files, layout) if _needs_library(settings) else "",
        hook=_folder_or_its_place(layout.folder),
        limits=_folder(Path(layout.limits)),
        cdi=_folder_or_its_place(settings.files.cdi_dir),
        state=_folder_or_its_place(settings.files.state_dir),
        book_problem=_book(Path(settings.files.state_dir) / BOOK_FILE),
    )


async def _kubernetes(settings: KubeSettings, name: str) -> KubernetesView:
    try:
        client = await KubeClient.connect(
            settings,
            metrics=ChassisMetrics(CollectorRegistry()),
            clock=SystemClock(),
            user_agent="hami-node-agent-doctor",
        )
    except (Transient, Permanent) as error:
        return KubernetesView(problem=str(error))
    try:
        node = await client.get(NODES, name, into=kube.Node, timeout_seconds=_SECONDS)
        pods = (await client.list_all(PODS, into=_Pod, field_selector=f"spec.nodeName={name}")).items
    except (Transient, Permanent) as error:
        return KubernetesView(problem=str(error))
    finally:
        await client.close()
    info = node.status.node_info or kube.NodeInfo()
    return KubernetesView(
        kubelet_version=info.kubelet_version,
        runtime_version=info.container_runtime_version,
        pods=tuple(
            OtherPod(
                name=f"{pod.metadata.namespace}/{pod.metadata.name}",
                images=tuple(container.image for container in pod.spec.containers),
                component=pod.metadata.labels.get(_COMPONENT_LABEL, ""),
            )
            for pod in pods
        ),
    )


async def _silent(socket: Path) -> str:
    """Why nobody answers there; empty where somebody does. The connection is closed without a word."""
    try:
        async with asyncio.timeout(_SECONDS):
            _, writer = await asyncio.open_unix_connection(socket)
    except TimeoutError:
        return f"{socket}: no answer"
    except OSError as error:
        return f"{socket}: {error.strerror or error}"
    writer.close()
    return ""


async def _pod_resources(socket: str) -> str:
    if not socket:
        return "kubelet.pod_resources_socket is empty"
    problem = await _silent(Path(socket))
    if problem:
        return problem
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        try:
            await PodResourcesListerStub(channel).List(pb.ListPodResourcesRequest(), timeout=_SECONDS)
        except grpc.aio.AioRpcError as error:
            return f"{socket}: {error.details() or error.code()}"
    return ""


async def _driver(settings: NodeAgentSettings) -> tuple[str, tuple[str, ...]]:
    nvml = Nvml(lambda: find_library(settings.nvml.library_file, driver_root(settings.nvml)))
    try:
        await nvml.start()
        found = await nvml.discover()
    except DriverError as error:
        return str(error), ()
    finally:
        await nvml.close()
    return "", tuple(card.uuid for card in found.cards)


def _needs_library(settings: NodeAgentSettings) -> bool:
    """Where nothing is held by the library, and none is named, there need be none."""
    held_by = {settings.enforcement.cards, *settings.enforcement.by_card.values()}
    return bool(settings.files.library_file) or "preload" in held_by


def _library(files: FileSettings, layout: HostLayout) -> str:
    name = files.library_file or (
        layout.versioned_library(files.library_version) if files.library_version else layout.library
    )
    try:
        with Path(name).open("rb") as file:
            is_library = file.read(len(_ELF)) == _ELF
    except OSError as error:
        return f"{name}: {error.strerror}"
    return "" if is_library else f"{name} is no shared library"


def _folder_or_its_place(name: str) -> Folder:
    """The folder, or what is said of it by the one in which it would be made."""
    path = Path(name)
    nearest = next((folder for folder in (path, *path.parents) if folder.exists()), path)
    return msgspec.structs.replace(_folder(nearest), path=name, to_be_made=nearest != path)


def _folder(path: Path) -> Folder:
    try:
        status, system = path.stat(), os.statvfs(path)
    except OSError:
        return Folder(path=str(path))
    return Folder(
        path=str(path),
        is_there=stat.S_ISDIR(status.st_mode),
        is_writable=os.access(path, os.W_OK | os.X_OK) and not system.f_flag & os.ST_RDONLY,
        no_exec=bool(system.f_flag & os.ST_NOEXEC),
        mode=stat.S_IMODE(status.st_mode),
    )


def _book(file: Path) -> str:
    try:
        handed_out.decode(file.read_bytes())
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{file}: {error.strerror}"
    except (handed_out.MalformedCheckpointError, handed_out.NewerCheckpointError) as error:
        return f"{file}: {error}"
    return ""
