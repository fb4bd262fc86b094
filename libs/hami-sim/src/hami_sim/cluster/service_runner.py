"""Starts, finds and ends single programs of the table."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp

from hami_sim.cluster.errors import ClusterError
from hami_sim.cluster.layout import ClusterLayout
from hami_sim.cluster.service_spec import ServiceSpec
from hami_sim.cluster.settings_files import edited_since, put_settings
from hami_sim.controlplane import ApiError, RestClient
from hami_sim.processes import Program, kill_program, load_program, start_program, stop_program, wait_until_ready

READY_TIMEOUT_SECONDS = 300.0
"""Generous, as a laptop that also compiles is slow."""
OUR_VARIABLES = "HAMI_"
"""Settings of services can be set by variables; those of the user's shell are not meant for this cluster."""

_PROBE_TIMEOUT = aiohttp.ClientTimeout(total=5)
_OK = 200
_ANSWER_SHOWN = 200

Probe = Callable[[], Awaitable[str | None]]


class ServiceRunner:
    """Programs of one state directory."""

    def __init__(self, layout: ClusterLayout) -> None:
        self._layout = layout

    def program(self, name: str) -> Program | None:
        """The program as it was last started, None when it never was or was stopped."""
        return load_program(self._layout.process_file(name))

    def is_alive(self, name: str) -> bool:
        """Whether it runs now."""
        program = self.program(name)
        return program is not None and program.is_alive()

    def launch(self, spec: ServiceSpec, progress: Callable[[str], None] = lambda _line: None) -> Program:
        """Starts it and returns at once. Raises ProgramNotStartedError, ClusterError."""
        argv = list(spec.argv)
        if spec.settings is not None:
            file = self._layout.settings_file(spec.name)
            if edited := put_settings(file, spec.settings):
                progress(f"{file}: what was edited stays: {', '.join(edited)}")
            argv += ["--config", str(file)]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(OUR_VARIABLES)}
        return start_program(
            spec.name,
            argv,
            log_path=self._layout.log(spec.name),
            process_file=self._layout.process_file(spec.name),
            environment={**inherited, **spec.environment},
        )

    def edited_while_running(self, spec: ServiceSpec) -> str:
        """What is to be said of settings that were edited since the service that runs was started; empty: nothing."""
        if spec.settings is None:
            return ""
        file = self._layout.settings_file(spec.name)
        try:
            edited = edited_since(file)
        except ClusterError as error:
            return f"{spec.name} runs on with the settings that it was started with: {error}"
        program = self.program(spec.name)
        if not edited or program is None:
            return ""
        return (
            f"{spec.name} runs on with the settings that it was started with; to have what was edited since in {file} "
            f"({', '.join(edited)}): kill {program.pid}, then `hami-sim up` again"
        )

    async def wait_ready(self, spec: ServiceSpec, client: RestClient) -> None:
        """Returns when it is ready. Raises ProgramEndedError, ProgramNotReadyError with the end of its log."""
        program = self.program(spec.name)
        if program is not None:
            await wait_until_ready(program, self.probe(spec, client), timeout_seconds=READY_TIMEOUT_SECONDS)

    async def stop(self, name: str) -> None:
        """Ends it, if it runs, and forgets it."""
        program = self.program(name)
        if program is not None:
            await stop_program(program, grace_seconds=20.0)
            self._layout.process_file(name).unlink(missing_ok=True)

    async def kill(self, name: str) -> None:
        """Ends it as a crash would."""
        program = self.program(name)
        if program is not None:
            await kill_program(program)

    def probe(self, spec: ServiceSpec, client: RestClient) -> Probe:
        """A function that says what is missing, None when it is ready."""
        if spec.ready_nodes:
            return lambda: _nodes_missing(client, spec.ready_nodes)
        return lambda: _url_missing(spec.ready_url)


async def _url_missing(url: str, *, any_status: bool = False) -> str | None:
    try:
        # What answers is asked for, not who: certificates are of the cluster's own authority.
        async with aiohttp.ClientSession(timeout=_PROBE_TIMEOUT) as session, session.get(url, ssl=False) as response:
            if any_status or response.status == _OK:
                return None
            return f"{url} answers {response.status}: {(await response.text())[:_ANSWER_SHOWN]}"
    except (aiohttp.ClientError, TimeoutError) as error:
        return f"{url}: {error or type(error).__name__}"


async def _nodes_missing(client: RestClient, wanted: tuple[str, ...]) -> str | None:
    try:
        found = (await client.get("/api/v1/nodes"))["items"]
    except (ApiError, aiohttp.ClientError, TimeoutError) as error:
        return f"nodes cannot be read: {str(error) or type(error).__name__}"
    ready = {
        node["metadata"]["name"]: node["status"]
        for node in found
        for condition in node.get("status", {}).get("conditions", [])
        if condition["type"] == "Ready" and condition["status"] == "True"
    }
    missing = [name for name in wanted if name not in ready]
    if missing:
        return f"nodes not Ready: {', '.join(missing)}"
    # The condition may be that of a kubelet which ended since; where it served, nobody answers then.
    # Any answer will do: a real kubelet tells its health only to whom it knows.
    urls = sorted({_kubelet_url(ready[name]) for name in wanted})
    answers = [await _url_missing(url, any_status=True) for url in urls]
    return next((answer for answer in answers if answer is not None), None)


def _kubelet_url(status: Mapping[str, Any]) -> str:
    """Where a node's status says that its kubelet serves."""
    address = next(one["address"] for one in status["addresses"] if one["type"] == "InternalIP")
    return f"https://{address}:{status['daemonEndpoints']['kubeletEndpoint']['Port']}/healthz"
