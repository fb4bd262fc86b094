"""A real Prometheus on loopback that scrapes the services of a local cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from hami_sim.cluster import LocalCluster
from hami_sim.loopback_ports import LOOPBACK, choose_free_ports

FOLDER_VARIABLE = "HAMI_PROMETHEUS_FOLDER"
"""Where the package is unpacked."""
SCRAPE_SECONDS = 2
POLL_SECONDS = 0.5

Json = dict[str, Any]


def program(name: str) -> str:
    """`prometheus` or `promtool`."""
    return str(Path(os.environ[FOLDER_VARIABLE]) / "usr/bin" / name)


def targets(cluster: LocalCluster) -> list[Json]:
    """One of each service that has metrics; labelled as by k8s/dashboards/podmonitors.yaml."""
    found = []
    for spec in cluster.specs.values():
        if spec.name.startswith(("scheduler", "webhook", "node-agent", "monitor")):
            ports = cluster.record.ports
            port = ports.get(f"{spec.name}-observation") or ports[spec.name]
            labels = {"service": spec.name, **({"node": spec.node} if spec.node else {})}
            found.append({"targets": [f"{LOOPBACK}:{port}"], "labels": labels})
    return found


class Prometheus:
    """The running one, asked over its HTTP API."""

    def __init__(self, url: str, client: aiohttp.ClientSession) -> None:
        self.url = url
        self._client = client

    async def ask(self, path: str, **parameters: str) -> Any:
        """What `data` holds. Raises AssertionError with Prometheus' own words."""
        async with self._client.get(f"{self.url}/api/v1/{path}", params=parameters) as response:
            answer = await response.json()
        assert answer["status"] == "success", f"{parameters}: {answer.get('error')}"
        return answer["data"]

    async def values(self, query: str) -> list[float]:
        """Of its series now; those that are not a number are no data."""
        found = (await self.ask("query", query=query))["result"]
        return [value for each in found if (value := float(each["value"][1])) == value]

    async def until_scraped(self) -> None:
        """Every target has answered."""
        while True:
            states = [target["health"] for target in (await self.ask("targets"))["activeTargets"]]
            if states and all(state == "up" for state in states):
                return
            await asyncio.sleep(POLL_SECONDS)

    async def until_all_have_data(self, queries: dict[str, str]) -> None:
        """Names of queries that have none are told when the test's own time is over."""
        waiting = dict(queries)
        while waiting:
            for name, query in list(waiting.items()):
                if await self.values(query):
                    del waiting[name]
            print(f"without data: {sorted(waiting)}", flush=True)
            await asyncio.sleep(POLL_SECONDS)

    async def health_of_rules(self) -> set[str]:
        """Of all of them, once each was evaluated."""
        while True:
            groups = (await self.ask("rules"))["groups"]
            found = {str(rule["health"]) for group in groups for rule in group["rules"]}
            if "unknown" not in found:
                return found
            await asyncio.sleep(POLL_SECONDS)

    async def until_firing(self, alert: str) -> None:
        while True:
            alerts = (await self.ask("alerts"))["alerts"]
            if any(each["labels"]["alertname"] == alert and each["state"] == "firing" for each in alerts):
                return
            await asyncio.sleep(POLL_SECONDS)


@asynccontextmanager
async def running_prometheus(cluster: LocalCluster, folder: Path, rules: Json) -> AsyncIterator[Prometheus]:
    """Ends with the block; its log is `prometheus.log` in the folder."""
    (port,) = choose_free_ports(1)
    (folder / "rules.yml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    settings = {
        "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": f"{SCRAPE_SECONDS}s"},
        "rule_files": [str(folder / "rules.yml")],
        "scrape_configs": [{"job_name": "hami", "honor_labels": True, "static_configs": targets(cluster)}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program("prometheus"),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={LOOPBACK}:{port}",
            stdout=log,
            stderr=asyncio.subprocess.STDOUT,
        )
    try:
        async with aiohttp.ClientSession() as client:
            found = Prometheus(f"http://{LOOPBACK}:{port}", client)
            await _ready(found, client, process)
            yield found
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _ready(found: Prometheus, client: aiohttp.ClientSession, process: asyncio.subprocess.Process) -> None:
    while True:
        assert process.returncode is None, "prometheus ended at once; its log is beside its data"
        try:
            async with client.get(f"{found.url}/-/ready") as response:
                if response.status == 200:
                    return
        except aiohttp.ClientConnectionError:
            pass
        await asyncio.sleep(POLL_SECONDS)
