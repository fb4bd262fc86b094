"""Who waits, why, and what wakes whom; the sample pods; the commands that users type."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import jsonschema
import pytest
from hami_sim.cluster.artefacts import EXAMPLES
from hami_sim.cluster.driver_description import card_ids
from hami_sim.cluster.samples import apply_samples
from hami_sim.cluster.schemas import SCHEMAS
from hami_sim.controlplane import ApiError
from world import BIN, HOLD, PATIENCE_SECONDS, POLL_SECONDS, WORKLOAD, Json, World, container, held_cards

WHOLE = {"gpu": 1, "gpumem_percentage": 100, "gpucores": 100}


async def test_the_sample_pods_run(world: World):
    await apply_samples(world.cluster, EXAMPLES, namespace=world.namespace)
    assert [line["granted_mib"] for line in await world.output("memory-limit")] == [4000]
    assert "CardInsufficientMemory" in (await world.pod_status("pending")).reason
    assert [held.memory_promised_mib for held in (await world.pod_status("slice")).cards] == [3000]
    # The monitor may have looked before the process had all it asks for.
    await world.until_used_mib("slice", [2500])


async def test_a_pending_pod_says_why_in_an_event(world: World):
    await world.create_pod("huge", HOLD, gpu=1, gpumem=900_000)
    assert "CardInsufficientMemory" in await world.until_rejected("huge")
    event = await world.until_event("huge", "CardInsufficientMemory")
    assert event["type"] == "Warning"
    assert len(event["message"]) < 1024


async def test_explain_says_card_by_card_why_a_pod_waits(world: World):
    await world.create_pod("huge", HOLD, gpu=1, gpumem=900_000)
    await world.until_rejected("huge")
    command = ("explain", f"--server={world.cluster.nats_url}", f"{world.namespace}/huge")
    while True:
        explained = await asyncio.to_thread(world.command, *command, program="hami-scheduler")
        if "answer" not in explained.stderr:
            break
        await asyncio.sleep(POLL_SECONDS)  # no scheduler does: on a busy machine the leader may change, or be too late
    assert explained.returncode == 0, explained.stderr
    for word in ("sim-0", "sim-1", "CardInsufficientMemory", "asks 900,000"):
        assert word in explained.stdout


async def test_the_end_of_a_pod_frees_its_card_for_the_waiting_one(world: World):
    card = card_ids(world.cluster.plan("sim-1"))[2]
    await world.create_pod("first", HOLD, card=card, **WHOLE)
    await world.until_phase("first", "Running")
    await world.create_pod("waiting", HOLD, card=card, **WHOLE)
    await world.until_rejected("waiting")
    await world.delete_pod("first")
    await world.until_phase("waiting", "Running")
    assert held_cards(await world.pod_status("waiting")) == {card}


async def test_a_pod_that_has_done_its_work_frees_its_card_too(world: World):
    card = card_ids(world.cluster.plan("sim-1"))[3]
    await world.create_pod("first", HOLD, card=card, **WHOLE)
    await world.until_phase("first", "Running")
    await world.create_pod("waiting", HOLD, card=card, **WHOLE)
    await world.until_rejected("waiting")
    os.kill(await world.until_process_on("sim-1", card), signal.SIGTERM)
    await world.until_phase("first", "Succeeded")
    await world.until_phase("waiting", "Running")


async def test_a_deployment(world: World):
    labels = {"app": "web"}
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container(HOLD, gpu=1, gpumem=1500)]}
    path = f"/apis/apps/v1/namespaces/{world.namespace}/deployments"
    template = {"metadata": {"labels": labels}, "spec": spec}
    deployment = {"replicas": 3, "selector": {"matchLabels": labels}, "template": template}
    await world.kube.post(path, {"metadata": {"name": "web"}, "spec": deployment})

    def run_and_stay(pods: Json | None) -> set[str]:
        return {
            pod["metadata"]["name"]
            for pod in (pods or {"items": []})["items"]
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        }

    async def until_run(count: int, *, but_for: str = "") -> set[str]:
        # The Deployment's own status may be that of before.
        pods = await world.kube.wait_until(
            world.pods_path,
            lambda found: len(run_and_stay(found)) == count and but_for not in run_and_stay(found),
            timeout_seconds=PATIENCE_SECONDS,
        )
        return run_and_stay(pods)

    ended = min(await until_run(3))
    await world.delete_pod(ended)
    await until_run(3, but_for=ended)
    await world.kube.patch(f"{path}/web", {"spec": {"replicas": 1}}, content_type="application/merge-patch+json")
    await until_run(1)


async def is_refused_by_quota(world: World, *, gpumem: int) -> bool:
    body = {"metadata": {"name": "tried"}, "spec": {"containers": [container(HOLD, gpu=1, gpumem=gpumem)]}}
    try:
        await world.kube.post(world.pods_path, body, dryRun="All")
    except ApiError as error:
        return "quota" in error.message.lower()
    return False


async def test_a_namespaces_quota_holds_a_pod_back(world: World):
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"limits.nvidia.com/gpumem": "5000"}}}
    await world.kube.post(f"/api/v1/namespaces/{world.namespace}/resourcequotas", quota)
    while not await is_refused_by_quota(world, gpumem=6000):  # noqa: ASYNC110  # the webhook hears of it by its watch
        await asyncio.sleep(POLL_SECONDS)
    ran = await world.run("--mem-mib=6000", "--", WORKLOAD, "info")
    assert ran.returncode == 1
    assert "quota" in ran.stderr.lower()


class TestCommands:
    async def test_status_as_json_follows_its_schema(self, world: World):
        await world.create_pod("shown", HOLD, gpu=1, gpumem=1000)
        await world.until_phase("shown", "Running")
        while (printed := await asyncio.to_thread(world.command, "status", "--json")).returncode == 1:
            jsonschema.validate(json.loads(printed.stdout), json.loads((SCHEMAS / "status.json").read_text()))
            await asyncio.sleep(POLL_SECONDS)  # on a busy machine a service may answer too late to count as ready
        assert printed.returncode == 0, printed.stderr
        status = json.loads(printed.stdout)
        jsonschema.validate(status, json.loads((SCHEMAS / "status.json").read_text()))
        assert [service for service in status["services"] if service["state"] != "ready"] == []
        assert {pod["phase"] for pod in status["pods"] if pod["namespace"] == world.namespace} == {"Running"}
        assert [len([card for card in status["cards"] if card["node"] == node]) for node in ("sim-0", "sim-1")] == [
            4,
            4,
        ]

    async def test_run_gives_the_commands_output_and_exit_code(self, world: World):
        ran = await world.run("--mem-mib=1234", "--", WORKLOAD, "over-alloc")
        assert ran.returncode == 0
        assert json.loads(ran.stdout)["granted_mib"] == 1234
        assert (await world.run("--mem-mib=100", "--", "sh", "-c", "exit 7")).returncode == 7
        await world.until_no_pods()

    async def test_run_says_what_is_wrong_with_what_is_asked(self, world: World):
        ran = await world.run("--cards=1", "--mem-percent=50", "--cores=30", "--name=Not_A_Name", "--", "true")
        assert ran.returncode == 1
        assert "Not_A_Name" in ran.stderr

    async def test_kubectl_logs(self, world: World):
        await world.create_pod("writes", ("sh", "-c", "echo one; echo two"))
        await world.until_phase("writes", "Succeeded")
        printed = await asyncio.to_thread(world.command, "logs", f"--namespace={world.namespace}", "pod/writes")
        assert printed.stdout == "one\ntwo\n"

    @pytest.mark.parametrize("service", ["webhook", "node-agent-sim-1", "kube-apiserver"])
    async def test_logs_of_services(self, world: World, service: str):
        printed = await asyncio.to_thread(world.command, "logs", service)
        assert (printed.returncode, bool(printed.stdout)) == (0, True)

    async def test_apply_and_delete(self, world: World, tmp_path):
        file = tmp_path / "pod.json"
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container(HOLD)]}}
        file.write_text(json.dumps(body))
        here = f"--namespace={world.namespace}"
        assert (await asyncio.to_thread(world.command, "apply", here, "-f", str(file))).returncode == 0
        await world.until_phase("p", "Running")
        assert (await asyncio.to_thread(world.command, "delete", here, "pod/p")).returncode == 0
        await world.until_no_pods()

    async def test_events_are_followed_as_json_lines(self, world: World):
        state = f"--state={world.cluster.layout.root}"
        process = await asyncio.create_subprocess_exec(
            BIN / "hami-sim", "events", state, "--json", stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            await process.stdout.readline()  # it listens: the monitors say something every second
            await world.create_pod("followed", HOLD, gpu=1, gpumem=1000)
            phases: set[str] = set()
            while not {"reserved", "allocating", "allocated"} <= phases:
                line = json.loads(await process.stdout.readline())
                if line["subject"].startswith(f"hami.v1.allocation.{world.namespace}."):
                    assert line["headers"]["Nats-Msg-Id"] == line["headers"]["ce-id"] == line["payload"]["id"]
                    phases.add(line["subject"].rpartition(".")[2])
        finally:
            process.terminate()
            await process.wait()
