"""What end-to-end tests do with the cluster, in their words."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
from hami_model import events
from hami_model.events import subjects
from hami_sim.cluster import LocalCluster
from hami_sim.cluster.cards_arrived import wait_for_cards
from hami_sim.cluster.observe import observe
from hami_sim.cluster.status import ClusterStatus, PodStatus
from hami_sim.controlplane import RestClient

Json = dict[str, Any]
WORKLOAD = "vgpu-workload"
HOLD = (WORKLOAD, "alloc", "--mib", "100", "--hold-until-signal")
USE_CARDS = "nvidia.com/use-gpuuuid"
LOCK = "hami.io/mutex.lock"
HOST_LABEL = "kubernetes.io/hostname"
BIN = Path(sys.executable).parent
POLL_SECONDS = 0.1
PATIENCE_SECONDS = 400
"""Of one wait, below the limit of a test, so that what is missing is said; a machine of CI may be slow."""


def container(command: tuple[str, ...], name: str = "main", env: dict[str, str] | None = None, **limits: int) -> Json:
    """`limits`: gpu, gpumem, gpucores, gpumem_percentage."""
    resources = {f"nvidia.com/{key.replace('_', '-')}": str(amount) for key, amount in limits.items()}
    variables = [{"name": key, "value": value} for key, value in (env or {}).items()]
    return {
        "name": name,
        "image": "hami/workloads:local",
        "command": list(command),
        "env": variables,
        "resources": {"limits": resources},
    }


class World:
    """The cluster, seen from one namespace."""

    def __init__(self, cluster: LocalCluster, kube: RestClient, namespace: str) -> None:
        self.cluster = cluster
        self.kube = kube
        self.namespace = namespace

    @property
    def pods_path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    # ---- pods ----

    async def create_pod(
        self,
        name: str,
        command: tuple[str, ...] = HOLD,
        *,
        node: str = "",
        card: str = "",
        restart: str = "Never",
        env: dict[str, str] | None = None,
        **limits: int,
    ) -> Json:
        """One container; `node` and `card` narrow down where it may go."""
        annotations = {USE_CARDS: card} if card else {}
        spec: Json = {
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": 2,
            "containers": [container(command, env=env, **limits)],
        }
        if node:
            spec["nodeSelector"] = {HOST_LABEL: node}
        body = {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
        return await self.kube.post(self.pods_path, body)

    async def pod(self, name: str) -> Json:
        return await self.kube.get(f"{self.pods_path}/{name}")

    async def until_pod(self, name: str, condition: Callable[[Json], bool]) -> Json:
        """The pod once the condition holds; the test's own time limit bounds it."""
        while True:
            found = await self.pod(name)
            if condition(found):
                return found
            await asyncio.sleep(POLL_SECONDS)

    async def until_phase(self, name: str, phase: str) -> Json:
        found = await self.until_pod(name, lambda pod: pod["status"].get("phase") in (phase, *ENDS))
        assert found["status"]["phase"] == phase, found["status"]
        return found

    async def until_rejected(self, name: str) -> str:
        """Why the scheduler does not place it."""
        found = await self.until_pod(name, lambda pod: bool(_unscheduled(pod)))
        return _unscheduled(found)

    async def delete_pod(self, name: str, *, grace_seconds: int = 1) -> None:
        path = f"{self.pods_path}/{name}"
        await self.kube.delete(path, gracePeriodSeconds=str(grace_seconds))
        await self.kube.wait_until(path, lambda found: found is None, timeout_seconds=PATIENCE_SECONDS)

    async def output(self, name: str, **query: str) -> list[Json]:
        """The JSON lines that its container wrote."""
        text = await self.kube.get_text(f"{self.pods_path}/{name}/log", **query)
        whole = text[: text.rfind("\n") + 1]  # a line may be read while it is written
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    async def granted_mib(self, name: str) -> int:
        """What an over-alloc workload got before it was refused."""
        await self.until_phase(name, "Succeeded")
        (said,) = [line for line in await self.output(name) if line["event"] == "refused"]
        return int(said["granted_mib"])

    # ---- the whole ----

    async def status(self) -> ClusterStatus:
        return await observe(self.cluster)

    async def until_all_ready(self) -> None:
        """Returns when every service answers so and cards can be asked for; says what is missing when time is over."""
        wanting: list[str] = []

        async def look() -> None:
            while not (found := await self.status()).running:
                wanting[:] = [
                    f"{one.name} {one.state}: {one.problem}" for one in found.services if one.state != "ready"
                ]
                await asyncio.sleep(POLL_SECONDS)

        try:
            await asyncio.wait_for(look(), PATIENCE_SECONDS)
        except TimeoutError as error:
            raise AssertionError("; ".join(wanting)) from error
        missing = await wait_for_cards(
            self.kube, self.cluster.nats_url, self.cluster.plans, timeout_seconds=PATIENCE_SECONDS
        )
        assert missing is None, missing

    async def pod_status(self, name: str) -> PodStatus:
        """Of a pod that is there, once the status has it: where the API server does not answer in time it has none."""
        while True:
            for found in (await self.status()).pods:
                if (found.namespace, found.name) == (self.namespace, name):
                    return found
            await asyncio.sleep(POLL_SECONDS)

    async def until_used_mib(self, name: str, wanted: list[int]) -> None:
        """Returns when the pod is shown to use so much of its cards."""
        while True:
            if [held.memory_used_mib for held in (await self.pod_status(name)).cards] == wanted:
                return
            await asyncio.sleep(POLL_SECONDS)

    def command(self, *arguments: str, program: str = "hami-sim") -> subprocess.CompletedProcess[str]:
        """One of our commands as a user runs it; for hami-sim on this cluster."""
        state = (f"--state={self.cluster.layout.root}",) if program == "hami-sim" else ()
        argv = [str(BIN / program), arguments[0], *state, *arguments[1:]]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)

    async def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`hami-sim run` in this namespace."""
        return await asyncio.to_thread(self.command, "run", f"--namespace={self.namespace}", *arguments)

    async def kubernetes_events(self, name: str) -> list[Json]:
        path = f"/api/v1/namespaces/{self.namespace}/events"
        found = await self.kube.get(path, fieldSelector=f"involvedObject.name={name}")
        items: list[Json] = found["items"]
        return items

    async def until_event(self, name: str, said: str) -> Json:
        """A Kubernetes Event of the pod whose message contains the words."""
        while True:
            for found in await self.kubernetes_events(name):
                if said in found.get("message", ""):
                    return found
            await asyncio.sleep(POLL_SECONDS)

    async def allocation_events(self, pod_uid: str) -> list[events.AllocationEvent]:
        """All that the stream holds of one pod's allocations, duplicates included."""
        subject = subjects.allocation(subjects.ANY, subjects.ANY, pod_uid, subjects.ANY)
        found = await self._kept("HAMI_ALLOCATION", subject)
        return [event for event in found if isinstance(event, events.AllocationEvent)]

    async def until_not_enforced(self, pod_uid: str) -> events.SliceNotEnforced:
        """What the monitor says of a process that the library does not hold."""
        while True:
            for event in await self._kept("HAMI_USAGE", subjects.not_enforced(subjects.ANY, subjects.ANY, pod_uid)):
                if isinstance(event, events.SliceNotEnforced):
                    return event
            await asyncio.sleep(POLL_SECONDS)

    async def not_enforced(self) -> set[str]:
        """Names of the namespace's pods of which the monitor said so."""
        found = await self._kept("HAMI_USAGE", subjects.not_enforced(self.namespace, subjects.ANY, subjects.ANY))
        return {event.pod.name for event in found if isinstance(event, events.SliceNotEnforced)}

    async def kept_out_of_band(self, node: str) -> list[events.OutOfBandUser]:
        """What the monitor said of processes on the node's cards that have no slice of them."""
        found = await self._kept("HAMI_USAGE", subjects.out_of_band(node))
        return [event for event in found if isinstance(event, events.OutOfBandUser)]

    async def _kept(self, stream: str, subject: str) -> list[events.Event | events.UnknownEvent]:
        client = await nats.connect(self.cluster.nats_url)
        try:
            subscription = await client.jetstream(timeout=60).pull_subscribe(subject, stream=stream)
            pending = (await subscription.consumer_info()).num_pending or 0
            found: list[Any] = []
            while pending > len(found):
                found += await subscription.fetch(pending - len(found), timeout=60)
            await subscription.unsubscribe()
        finally:
            await client.close()
        return [events.decode(message.data) for message in found]

    async def until_allocation_phases(self, pod_uid: str, *phases: str) -> list[events.AllocationEvent]:
        """The pod's allocation events once all of these phases are among them."""
        while True:
            found = await self.allocation_events(pod_uid)
            if set(phases) <= {str(event.phase) for event in found}:
                return found
            await asyncio.sleep(POLL_SECONDS)

    @asynccontextmanager
    async def node_annotations(self) -> AsyncIterator[list[set[str]]]:
        """Annotation keys of every version of every node while the block ran; to be read after it."""
        keys: list[set[str]] = []
        async with self.kube.versions("/api/v1/nodes") as seen:
            yield keys
        keys += [set(node["metadata"].get("annotations", {})) for node in seen]

    def books(self, node: str) -> Json:
        """What the simulated driver has booked."""
        place = self.cluster.node_layout(node)
        environment = {"HAMI_SIM_DRIVER": str(place.driver), "HAMI_SIM_STATE": str(place.driver_state)}
        tool = Path(self.cluster.specs["kubelets"].settings["nodes"][0]["programs_dirs"][0]) / "sim-driver"
        printed = subprocess.run([tool, "books"], env=environment, capture_output=True, check=True)
        found: Json = json.loads(printed.stdout)
        return found

    async def until_booked(self, node: str, card: str, *, at_least_mib: int) -> None:
        """Returns when the driver has booked so much of a card."""
        while True:
            used = {booked["uuid"]: booked["used_bytes"] for booked in self.books(node)["cards"]}
            if used[card] >= at_least_mib << 20:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def until_process_on(self, node: str, card: str) -> int:
        """Pid of the one process that holds memory of a card, once there is one."""
        while True:
            (processes,) = [booked["processes"] for booked in self.books(node)["cards"] if booked["uuid"] == card]
            holding = [process["pid"] for process in processes if process["used_bytes"]]
            if holding:
                (pid,) = holding
                return int(pid)
            await asyncio.sleep(POLL_SECONDS)

    async def clear(self) -> None:
        """Ends all pods of the namespace and waits until they are gone."""
        await self.kube.delete(f"/apis/apps/v1/namespaces/{self.namespace}/deployments")
        await self.kube.delete(f"/apis/apps/v1/namespaces/{self.namespace}/replicasets")
        await self.kube.delete(self.pods_path, gracePeriodSeconds="1")
        await self.until_no_pods()

    async def until_no_pods(self) -> None:
        """Returns when the namespace has none."""
        await self.kube.wait_until(
            self.pods_path, lambda found: found is not None and not found["items"], timeout_seconds=PATIENCE_SECONDS
        )


ENDS = ("Succeeded", "Failed")


def _unscheduled(pod: Json) -> str:
    for condition in pod["status"].get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", ""))
    return ""


def held_cards(status: PodStatus) -> set[str]:
    """Ids of the cards that a pod holds slices of."""
    return {held.card_id for held in status.cards}
