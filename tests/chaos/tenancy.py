"""Pods of the run: each is created, served, left alone for a while, and deleted; what it saw of its cards is kept.

Whoever owns a pod in a real cluster makes it anew when it failed, so a pod that kubelet refused, as it does while a
plugin is not back yet, is made again under the same name.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from hami_sim.controlplane import ApiError, RestClient
from plan import Tenant, TenantContainer

Json = dict[str, Any]
Answer = TypeVar("Answer")

POLL_SECONDS = 0.3
TELL_SECONDS = 15.0
RETRY_SECONDS = 1.0
SERVER_ERROR = 500
TOO_MANY = 429
NOT_FOUND = 404
CONFLICT = 409
SETTLE_SECONDS = 60.0
"""Who refuses a pod says so before kubelet has written why it failed."""
TRIES_MAX = 60
"""A pod that was made so often and never served is not being served."""

SCRIPTS = {
    "init": "",
    "sidecar": "exec vgpu-workload alloc --mib 8 --hold-until-signal",
    "app": "exec vgpu-workload alloc --mib 8 --hold-until-signal",
    "job": "exec vgpu-workload alloc --mib 8 --hold-seconds 1",
}


async def persistently(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """The call's answer, whatever is away meanwhile: the API server, or the webhook behind it."""
    while True:
        try:
            return await call()
        except ApiError as error:
            if error.status < SERVER_ERROR and error.status != TOO_MANY:
                raise
        except (aiohttp.ClientError, TimeoutError):
            pass
        await asyncio.sleep(RETRY_SECONDS)


@dataclass
class Sightings:
    """Files in which every container that starts writes what it sees. One per pod UID."""

    folder: Path

    def of(self, uid: str) -> dict[str, list[Json]]:
        """By container: what `vgpu-workload info` said of its cards at each start."""
        file = self.folder / uid
        found: dict[str, list[Json]] = {}
        text = file.read_text() if file.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # a line may be read while it is written
        for line in whole.splitlines():
            name, _, said = line.partition(" ")
            found.setdefault(name, []).append({"lines": [json.loads(part) for part in said.split("\t") if part]})
        return found


def faults_of(tenant: Tenant, uid: str, seen: dict[str, list[Json]]) -> list[str]:
    """What containers saw that is not their own."""
    wanted = {container.name: container for container in tenant.containers}
    return [
        f"pod {tenant.name} ({uid}) container {name}: promised {wanted[name].gpus} x {wanted[name].memory_mib} MiB, "
        f"saw {sight['lines']}"
        for name, sights in seen.items()
        for sight in sights
        if [line.get("memory_total_bytes") for line in sight["lines"] if line["event"] != "process"]
        != [wanted[name].memory_mib << 20] * wanted[name].gpus
    ]


def manifest(tenant: Tenant, seen: Path) -> Json:
    apps = [_container(one, seen) for one in tenant.containers if one.role in ("app", "job")]
    inits = [_container(one, seen) for one in tenant.containers if one.role in ("init", "sidecar")]
    return {
        "metadata": {"name": tenant.name},
        "spec": {
            "restartPolicy": tenant.restart,
            "terminationGracePeriodSeconds": 2,
            "initContainers": inits,
            "containers": apps,
            "volumes": [{"name": "seen", "hostPath": {"path": str(seen)}}],
            **({"nodeSelector": {"kubernetes.io/hostname": tenant.node}} if tenant.node else {}),
        },
    }


def _container(wanted: TenantContainer, seen: Path) -> Json:
    look = f'printf "%s %s\\n" {wanted.name} "$(vgpu-workload info | tr "\\n" "\\t")" >> {seen}/$POD_UID'
    script = "; ".join(filter(None, (look, SCRIPTS[wanted.role])))
    asked = {"nvidia.com/gpu": str(wanted.gpus), "nvidia.com/gpumem": str(wanted.memory_mib)}
    return {
        "name": wanted.name,
        "image": "hami/workloads:local",
        "command": ["/bin/sh", "-c", script],
        "env": [{"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
        "volumeMounts": [{"name": "seen", "mountPath": str(seen)}],
        "resources": {"limits": asked},
        **({"restartPolicy": "Always"} if wanted.role == "sidecar" else {}),
    }


@dataclass
class Tenancy:
    """Keeps some pods of the plan alive at a time until all had their turn."""

    kube: RestClient
    namespace: str
    sightings: Sightings
    progress: Callable[[str], None]
    until_disturbed: Callable[[int], Awaitable[None]]
    served: int = 0
    made: dict[str, Tenant] = field(default_factory=dict)
    """All pods that ever were, by UID."""
    waiting: dict[str, str] = field(default_factory=dict)
    """What pods that are not served wait for, by name."""
    ends: list[str] = field(default_factory=list)
    """Why pods had to be made again."""

    async def run(self, plan: tuple[Tenant, ...], at_a_time: int) -> None:
        waiting = iter(plan)
        names: dict[str, asyncio.Lock] = {}

        async def worker() -> None:
            for tenant in waiting:
                async with names.setdefault(tenant.name, asyncio.Lock()):
                    await self._live(tenant)
                self.served += 1
                self.progress(f"{self.served} pods served and gone")

        telling = asyncio.create_task(self._tell())
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(at_a_time):
                    workers.create_task(worker())
        finally:
            telling.cancel()

    async def _tell(self) -> None:
        """Says now and then what is waited for: who looks at a run that hangs wants to know."""
        while True:
            await asyncio.sleep(TELL_SECONDS)
            for name, why in sorted(self.waiting.items()):
                self.progress(f"{name} waits, {why}")

    async def _live(self, tenant: Tenant) -> None:
        for number in itertools.count(1):
            uid = await self._create(tenant)
            self.made[uid] = tenant
            end = await self._until_served(tenant, uid)
            if not end:
                await self.until_disturbed(tenant.outlasts)
                await self._delete(tenant.name)
                return
            self.ends.append(f"{tenant.name}: {end}")
            self.progress(f"to be made again: {self.ends[-1]}")
            assert number < TRIES_MAX, f"{tenant.name} was made {number} times: {self.ends[-1]}"
            await self._delete(tenant.name)
            await asyncio.sleep(RETRY_SECONDS)

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    async def _create(self, tenant: Tenant) -> str:
        body = manifest(tenant, self.sightings.folder)
        try:
            found = await persistently(lambda: self.kube.post(self._pods, body))
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            # An earlier try was answered too late.
            found = await persistently(lambda: self.kube.get(f"{self._pods}/{tenant.name}"))
        return str(found["metadata"]["uid"])

    async def _until_served(self, tenant: Tenant, uid: str) -> str:
        """Returns when every container saw its cards and the pod is as it should be; else why it never will."""
        self.waiting[tenant.name] = "just made"
        loop = asyncio.get_running_loop()
        refused_at: float | None = None
        while True:
            pod = await persistently(lambda: self.kube.get(f"{self._pods}/{tenant.name}"))
            phase = pod["status"].get("phase")
            outcome = pod["metadata"].get("annotations", {}).get("hami.io/bind-phase")
            if outcome == "failed":
                refused_at = refused_at or loop.time()
            if phase == "Failed" or (refused_at is not None and loop.time() - refused_at > SETTLE_SECONDS):
                del self.waiting[tenant.name]
                return f"{pod['status'].get('reason', '')}: {pod['status'].get('message', '')} {_why(pod)}"
            seen = self.sightings.of(uid)
            everybody = all(container.name in seen for container in tenant.containers)
            if everybody and outcome == "success" and phase == ("Succeeded" if tenant.is_job else "Running"):
                del self.waiting[tenant.name]
                return ""
            self.waiting[tenant.name] = f"{phase} on {pod['spec'].get('nodeName', 'no node')}: {_why(pod)}"
            await asyncio.sleep(POLL_SECONDS)

    async def _delete(self, name: str) -> None:
        path = f"{self._pods}/{name}"
        try:
            await persistently(lambda: self.kube.delete(path))
            while True:
                await persistently(lambda: self.kube.get(path))
                await asyncio.sleep(POLL_SECONDS)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise


def _why(pod: Json) -> str:
    status = pod["status"]
    states = [
        (one["name"], one.get("state", {}).get("waiting"))
        for one in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    ]
    said = [f"{name} {state.get('reason')} {state.get('message', '')}" for name, state in states if state]
    conditions = [c.get("message") for c in status.get("conditions", []) if c["status"] == "False" and c.get("message")]
    return "; ".join([*said, *conditions])[:300]
