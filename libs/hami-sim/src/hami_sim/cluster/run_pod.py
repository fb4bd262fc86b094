"""Runs one pod to its end: waits with reasons, streams its output, returns its exit code, deletes it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import aiohttp

from hami_sim.cluster.errors import ClusterError
from hami_sim.cluster.local_cluster import LocalCluster
from hami_sim.cluster.workload_pod import CONTAINER
from hami_sim.controlplane import ApiError, RestClient

POLL_SECONDS = 0.2
STANDARD_OUTPUT = 1
JsonObject = dict[str, Any]


async def run_pod(
    cluster: LocalCluster,
    pod: JsonObject,
    namespace: str,
    *,
    say: Callable[[str], None],
    keep: bool = False,
    timeout_seconds: float | None = None,
) -> int:
    """The exit code of its container. Its output goes to this process's standard output.

    Raises ClusterError when the pod is refused, ends without its container having run, or is not over in time.
    """
    async with cluster.client() as client:
        path = f"/api/v1/namespaces/{namespace}/pods"
        try:
            created = await client.post(path, pod)
        except ApiError as error:
            raise ClusterError(error.message) from error
        own = f"{path}/{created['metadata']['name']}"
        try:
            async with asyncio.timeout(timeout_seconds):
                await _until_started(client, own, say)
                await _copy_output(client, own, say)
                return await _exit_code(client, own)
        except TimeoutError as error:
            raise ClusterError(f"{created['metadata']['name']} is not over after {timeout_seconds:g} s") from error
        finally:
            if not keep:
                await client.delete(own, gracePeriodSeconds="1")


async def _until_started(client: RestClient, path: str, say: Callable[[str], None]) -> None:
    said = ""
    while True:
        pod = await client.get(path)
        if _state(pod).keys() & {"running", "terminated"}:
            return
        if pod["status"].get("phase") == "Failed":
            raise ClusterError(f"{pod['status'].get('reason', 'Failed')}: {pod['status'].get('message', '')}")
        reason = _waiting_for(pod)
        if reason and reason != said:
            say(reason)
            said = reason
        await asyncio.sleep(POLL_SECONDS)


async def _copy_output(client: RestClient, path: str, say: Callable[[str], None]) -> None:
    """All that the container writes; the rest is asked for where an answer breaks off. Raises ApiError: no such pod."""
    copied = 0
    said = ""
    while True:
        try:
            async with client.stream(f"{path}/log", container=CONTAINER, follow="true") as chunks:
                passed = 0
                async for chunk in chunks:
                    fresh = chunk[max(0, copied - passed) :]
                    passed += len(chunk)
                    copied += len(fresh)
                    if not _print(fresh):
                        return
        except (ApiError, aiohttp.ClientError) as error:
            reason = error.message if isinstance(error, ApiError) else str(error) or type(error).__name__
        else:
            return
        await client.get(path)
        if reason != said:
            say(f"its output cannot be read now, and is asked for again: {reason}")
            said = reason
        await asyncio.sleep(POLL_SECONDS)


def _print(text: bytes) -> bool:
    """Past Python's buffer, which would keep what a closed pipe did not take. False: nobody reads any more."""
    left = memoryview(text)
    try:
        while left:
            left = left[os.write(STANDARD_OUTPUT, left) :]
    except BrokenPipeError:
        return False
    return True


async def _exit_code(client: RestClient, path: str) -> int:
    while True:
        ended = _state(await client.get(path)).get("terminated")
        if ended is not None:
            return int(ended["exitCode"])
        await asyncio.sleep(POLL_SECONDS)


def _state(pod: JsonObject) -> JsonObject:
    statuses = pod["status"].get("containerStatuses", [])
    return statuses[0].get("state", {}) if statuses else {}


def _waiting_for(pod: JsonObject) -> str:
    """Why the pod does not run yet, empty while all goes its way."""
    for condition in pod["status"].get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", ""))
    waiting = _state(pod).get("waiting", {})
    if waiting.get("reason") in (None, "ContainerCreating"):
        return ""
    return f"{waiting['reason']}: {waiting.get('message', '')}"
