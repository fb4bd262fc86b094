"""Starting, finding again, changing and ending one local control plane."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import msgspec

from hami_sim.binaries import Binaries
from hami_sim.controlplane import arguments, bootstrap
from hami_sim.controlplane.credentials import Credentials
from hami_sim.controlplane.layout import CertificateFiles, StateLayout, write_private
from hami_sim.controlplane.pki import Identity
from hami_sim.controlplane.probes import Probe, https_probe
from hami_sim.controlplane.record import (
    ClusterRecord,
    ControlPlaneError,
    choose_ports,
    exclusive_start,
    load_record,
    store_record,
)
from hami_sim.controlplane.rest import RestClient, tls_context
from hami_sim.controlplane.scheduler_config import scheduler_configuration
from hami_sim.controlplane.settings import ControlPlaneSettings
from hami_sim.processes import (
    Program,
    kill_program,
    load_program,
    start_program,
    stop_program,
    wait_until_ready,
)

ETCD = "etcd"
APISERVER = "kube-apiserver"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"
# Ended in this order: who writes first, the store last.
STOP_ORDER = (SCHEDULER, CONTROLLER_MANAGER, APISERVER, ETCD)
DEFAULT_TOKEN_SECONDS = 30 * 24 * 3600

Progress = Callable[[str], None]


class ControlPlane:
    """One local control plane: `start` makes it run, `attach` finds a running one, `stop` ends it.

    Its programs run on after the process that started them ended, until `stop`. As an async context manager it
    stops at the end of the block.
    """

    def __init__(self, layout: StateLayout, record: ClusterRecord) -> None:
        self.layout = layout
        self.settings = record.settings
        self.ports = record.ports
        self.binaries = record.binaries
        self.credentials = Credentials(layout, self.url)

    # ---- life ---------------------------------------------------------------------------------------------------

    @classmethod
    async def start(
        cls,
        state_directory: Path,
        binaries: Binaries,
        settings: ControlPlaneSettings | None = None,
        *,
        progress: Progress = lambda _line: None,
    ) -> Self:
        """Starts all programs and returns when pods can be created; on any error what was started is ended again.

        A directory of an earlier cluster goes on with its data, authorities and, where still free, its ports.
        Raises `ControlPlaneError`, `hami_sim.processes.ProcessError`.
        """
        layout = StateLayout(state_directory)
        layout.create_directories()
        with exclusive_start(layout):
            running = [program.name for program in _alive(layout)]
            if running:
                raise ControlPlaneError(f"{layout.root}: {', '.join(running)} still run; stop this cluster first")
            record = ClusterRecord(
                ports=choose_ports(layout), settings=settings or ControlPlaneSettings(), binaries=binaries
            )
            store_record(layout, record)
            control_plane = cls(layout, record)
            control_plane.credentials.write_all()
            try:
                await control_plane._start_programs(progress)
            except BaseException:
                await control_plane.stop()
                raise
        return control_plane

    @classmethod
    def attach(cls, state_directory: Path) -> Self:
        """The control plane that runs, or ran, in a state directory. Raises `ControlPlaneError` when there is none."""
        layout = StateLayout(state_directory)
        record = load_record(layout)
        if record is None:
            raise ControlPlaneError(f"{layout.root} holds no cluster; start one there first")
        return cls(layout, record)

    async def stop(self) -> None:
        """Ends all programs in order; those that are gone already are passed over. Data and credentials stay."""
        for name in STOP_ORDER:
            process_file = self.layout.process_file(name)
            program = load_program(process_file)
            if program is not None:
                await stop_program(program)
                process_file.unlink()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    # ---- what it is ---------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Address of the API server."""
        return self.ports.apiserver_url

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.layout.kubeconfig

    @property
    def ca_certificate(self) -> Path:
        """Certificate of the cluster's authority."""
        return self.layout.cluster_ca.certificate

    def programs(self) -> dict[str, Program]:
        """The programs that run now, by name."""
        return {program.name: program for program in _alive(self.layout)}

    # ---- clients ------------------------------------------------------------------------------------------------

    def client(self) -> RestClient:
        """Requests as the administrator: `async with control_plane.client() as client`."""
        return RestClient(self.url, self._admin_tls())

    def user_client(self, user: str, groups: tuple[str, ...] = ()) -> RestClient:
        """Requests as any user of any groups."""
        files = self.credentials.issue_client(user, Identity(user, groups))
        return RestClient(self.url, tls_context(self.layout.cluster_ca, files))

    def token_client(self, token: str) -> RestClient:
        """Requests with a bearer token."""
        return RestClient(self.url, tls_context(self.layout.cluster_ca), bearer_token=token)

    def write_user_kubeconfig(
        self, path: Path, user: str, groups: tuple[str, ...] = (), *, namespace: str = "default"
    ) -> Path:
        """Writes a kubeconfig with a fresh client certificate, such as `system:node:a` of group `system:nodes`."""
        self.credentials.write_user_kubeconfig(path, user, groups, namespace)
        return path

    async def write_service_account_kubeconfig(
        self, path: Path, namespace: str, name: str, *, expiration_seconds: int = DEFAULT_TOKEN_SECONDS
    ) -> Path:
        """Writes a kubeconfig of a service account that exists: whoever uses it has exactly its roles."""
        token = await self.service_account_token(namespace, name, expiration_seconds=expiration_seconds)
        self.credentials.write_token_kubeconfig(path, f"system:serviceaccount:{namespace}:{name}", token, namespace)
        return path

    async def service_account_token(
        self, namespace: str, name: str, *, expiration_seconds: int = DEFAULT_TOKEN_SECONDS
    ) -> str:
        """A token of a service account, by TokenRequest. Raises `ApiError` 404 when there is no such account."""
        request = {"spec": {"expirationSeconds": expiration_seconds}}
        async with self.client() as client:
            answer = await client.post(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", request)
        token: str = answer["status"]["token"]
        return token

    def issue_serving_certificate(self, name: str, alternative_names: tuple[str, ...]) -> CertificateFiles:
        """A serving certificate that the API server trusts, for a webhook or a kubelet at these names or addresses."""
        return self.credentials.issue_serving(name, alternative_names)

    async def create_namespace(self, name: str) -> None:
        """Creates a namespace and returns when pods can be created in it."""
        async with self.client() as client:
            await bootstrap.create_namespace(client, name)
            await self._prepare_namespace(client, name)

    # ---- changes ------------------------------------------------------------------------------------------------

    async def use_extender(self, url: str | None) -> None:
        """Restarts kube-scheduler with this extender address, None for no extender."""
        self.settings = msgspec.structs.replace(self.settings, extender_url=url)
        record = ClusterRecord(ports=self.ports, settings=self.settings, binaries=self.binaries)
        store_record(self.layout, record)
        await self.restart(SCHEDULER)

    async def kill(self, name: str) -> None:
        """Ends one program as a crash would."""
        program = load_program(self.layout.process_file(name))
        if program is not None:
            await kill_program(program)

    async def restart(self, name: str) -> None:
        """Ends one program if it runs, and starts it again."""
        program = load_program(self.layout.process_file(name))
        if program is not None:
            await stop_program(program)
        await self._wait(*self._launch(name))

    # ---- starting -----------------------------------------------------------------------------------------------

    async def _start_programs(self, progress: Progress) -> None:
        for name in (ETCD, APISERVER):
            progress(f"starting {name}")
            await self._wait(*self._launch(name))
        clients = (SCHEDULER, CONTROLLER_MANAGER) if self.settings.controllers else (SCHEDULER,)
        progress(f"starting {' and '.join(clients)}")
        for program, probe in [self._launch(name) for name in clients]:
            await self._wait(program, probe)
        progress("waiting until pods can be created")
        async with self.client() as client:
            await bootstrap.allow_kubelet_access(client)
            await self._prepare_namespace(client, "default")

    async def _prepare_namespace(self, client: RestClient, name: str) -> None:
        if not self.settings.controllers:
            await bootstrap.create_namespace_defaults(client, name, self.ca_certificate.read_text())
        await bootstrap.wait_for_namespace_defaults(client, name, self.settings.ready_timeout_seconds)

    def _launch(self, name: str) -> tuple[Program, Probe]:
        layout, ports, binaries = self.layout, self.ports, self.binaries
        cluster_tls = tls_context(layout.cluster_ca)
        match name:
            case "etcd":
                argv = arguments.etcd_arguments(binaries.etcd, layout, ports)
                etcd_tls = tls_context(layout.etcd_ca, layout.certificate("apiserver-etcd-client"))
                probe = https_probe(f"https://127.0.0.1:{ports.etcd_client}/health", etcd_tls)
            case "kube-apiserver":
                argv = arguments.apiserver_arguments(binaries.kube_apiserver, layout, ports, self.settings)
                probe = https_probe(f"{self.url}/readyz", self._admin_tls())
            case "kube-controller-manager":
                argv = arguments.controller_manager_arguments(
                    binaries.kube_controller_manager, layout, ports, self.settings
                )
                probe = https_probe(f"https://127.0.0.1:{ports.controller_manager}/healthz", cluster_tls)
            case "kube-scheduler":
                configuration = scheduler_configuration(
                    layout.component_kubeconfig(SCHEDULER), self.settings.extender_url
                )
                write_private(layout.scheduler_config, configuration)
                argv = arguments.scheduler_arguments(binaries.kube_scheduler, layout, ports)
                probe = https_probe(f"https://127.0.0.1:{ports.scheduler}/readyz", cluster_tls)
            case _:
                raise ControlPlaneError(f"{name} is no program of the control plane: {', '.join(STOP_ORDER)}")
        program = start_program(name, argv, log_path=layout.log(name), process_file=layout.process_file(name))
        return program, probe

    async def _wait(self, program: Program, probe: Probe) -> None:
        await wait_until_ready(program, probe, timeout_seconds=self.settings.ready_timeout_seconds)

    def _admin_tls(self) -> ssl.SSLContext:
        return tls_context(self.layout.cluster_ca, self.credentials.admin)


def _alive(layout: StateLayout) -> Iterator[Program]:
    for name in reversed(STOP_ORDER):
        program = load_program(layout.process_file(name))
        if program is not None and program.is_alive():
            yield program
