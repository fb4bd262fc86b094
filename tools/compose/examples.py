"""Runs the pods of k8s/examples on the cluster of compose.yaml and checks what came of them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from engine import Progress

EXAMPLES = Path(__file__).resolve().parents[2] / "k8s" / "examples"
EXPECT = "example.hami.io/expect"
SELECTOR = f"--selector={EXPECT}"
WAIT_SECONDS = 900.0
POLL_SECONDS = 1.0
MEMORY_LIMIT_MIB = 4000
PENDING_REASON = "CardInsufficientMemory"
OUR_USER = "10001:10001"
SERVICES = ("scheduler-0", "scheduler-1", "webhook", "forwarder", "node")
# Who shows no certificate gets no answer: an alert, or the end of the connection, be it before the question is sent.
UNKNOWN_CALLER = """
import socket, ssl
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
try:
    with context.wrap_socket(socket.create_connection(("scheduler-0", 9398), 60)) as connection:
        connection.sendall(b"POST /bind HTTP/1.0\\r\\n\\r\\n")
        print("answer", connection.recv(100))
except (ssl.SSLError, ConnectionError) as error:
    print("alert", error)
"""
STREAMS = """
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:8222/jsz?streams=1", timeout=60).read().decode())
"""

JsonObject = dict[str, Any]


class ExampleFailedError(Exception):
    """Something did not come out as it should."""


class Compose(Protocol):
    """The cluster."""

    project: str

    def output(self, *arguments: str, text: str | None = None) -> str:
        """What a compose command prints."""


def run_examples(compose: Compose, progress: Progress) -> None:
    """Raises ExampleFailedError, CalledProcessError."""
    progress("applying the examples")
    documents = "\n---\n".join(file.read_text(encoding="utf-8") for file in sorted(EXAMPLES.glob("*.yaml")))
    _kubectl(compose, "apply", "--filename=-", text=documents)
    _wait(lambda: _unfinished(compose))
    progress("checking what came of them")
    for check in (_limit_held, _strangers_refused, _nothing_forbidden, _little_power):
        check(compose)
    progress("ending them")
    _kubectl(compose, "delete", "--filename=-", "--wait", "--timeout=600s", text=documents)


def _kubectl(compose: Compose, *arguments: str, text: str | None = None) -> str:
    return compose.output("exec", "-T", "kube-apiserver", "kubectl", *arguments, text=text)


def _wait(unfinished: Callable[[], list[str]]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        left = unfinished()
        if not left:
            return
        if time.monotonic() > deadline:
            raise ExampleFailedError(f"after {WAIT_SECONDS:.0f} s: {'; '.join(left)}")
        time.sleep(POLL_SECONDS)


def _unfinished(compose: Compose) -> list[str]:
    pods: list[JsonObject] = json.loads(_kubectl(compose, "get", "pods", SELECTOR, "--output=json"))["items"]
    left = list(_otherwise(pods))
    replicas = json.loads(_kubectl(compose, "get", "deployments", "--output=json"))["items"]
    left += [
        f"deployment {each['metadata']['name']} is not available"
        for each in replicas
        if each["status"].get("availableReplicas", 0) != each["spec"]["replicas"]
    ]
    fields = "--field-selector=involvedObject.name=pending,reason=FilteringFailed"
    told = _kubectl(compose, "get", "events", fields, "--output=jsonpath={.items[*].message}")
    if PENDING_REASON not in told:
        left.append(f"no Event says that the pending pod waits for {PENDING_REASON}: {told!r}")
    return [*left, *_empty_streams(compose)]


def _otherwise(pods: list[JsonObject]) -> Iterator[str]:
    for pod in pods:
        wanted, phase = pod["metadata"]["labels"][EXPECT], pod["status"].get("phase")
        if phase != wanted:
            yield f"{pod['metadata']['name']} is {phase}, not {wanted}"


def _limit_held(compose: Compose) -> None:
    """The logs also show that the API server reaches the kubelet stand-ins."""
    lines = _kubectl(compose, "logs", "memory-limit").splitlines()
    refused = json.loads(lines[-1]) if lines else {}
    if refused.get("event") != "refused" or refused.get("granted_mib") != MEMORY_LIMIT_MIB:
        raise ExampleFailedError(f"memory-limit was not held to {MEMORY_LIMIT_MIB} MiB: {lines}")


def _empty_streams(compose: Compose) -> list[str]:
    server = json.loads(compose.output("exec", "-T", "nats", "python3", "-c", STREAMS))
    kept = {
        stream["name"]: stream["state"]["messages"]
        for account in server.get("account_details", [])
        for stream in account.get("stream_detail", [])
    }
    wanted = ("HAMI_ALLOCATION", "HAMI_INVENTORY", "HAMI_USAGE")
    return [f"NATS has no events in {name}" for name in wanted if not kept.get(name)]


def _strangers_refused(compose: Compose) -> None:
    answered = compose.output("exec", "-T", "webhook", "python3", "-c", UNKNOWN_CALLER).strip()
    if not answered.startswith("alert") and answered != "answer b''":
        raise ExampleFailedError(f"the extender answers callers without a certificate: {answered}")


def _nothing_forbidden(compose: Compose) -> None:
    """The services act under their own accounts: what a role lacks would be refused and logged."""
    lines = compose.output("logs", "--no-color", "--no-log-prefix", *SERVICES).splitlines()
    forbidden = [line for line in lines if "is forbidden" in line or ("cannot " in line and " in API group" in line)]
    if forbidden:
        raise ExampleFailedError(f"refused by the API server: {forbidden[0]}")


def _little_power(compose: Compose) -> None:
    identities = compose.output("ps", "--all", "--quiet").split()
    inspected = subprocess.run(["docker", "inspect", *identities], capture_output=True, text=True, check=True)
    for container in json.loads(inspected.stdout):
        host = container["HostConfig"]
        if (
            host["Privileged"]
            or host["CapAdd"]
            or host["CapDrop"] != ["ALL"]
            or container["Config"]["User"] != OUR_USER
        ):
            raise ExampleFailedError(f"{container['Name']} has more power than it needs")
        published = [each["HostIp"] for bindings in (host["PortBindings"] or {}).values() for each in bindings]
        if set(published) - {"127.0.0.1"}:
            raise ExampleFailedError(f"{container['Name']} can be reached from outside: {published}")
