"""The cluster of compose.yaml: `images`, `up`, `down`, `test`. Makes what a bare machine lacks.

An engine that `images` or `up` started runs on.

test   brings the cluster up, runs the pods of k8s/examples, takes it down and leaves nothing running that it started.
       Exit status 77, with the reason as the last line, where this machine cannot run containers.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from base_image import OFFICIAL, VARIABLE, base_image
from compose_plugin import compose_command
from control_plane_programs import ROOT, gather
from engine import UnavailableError, running_engine
from examples import ExampleFailedError, run_examples
from hami_sim.binaries.cache import cache_root
from hami_sim.loopback_ports import choose_free_ports

SKIPPED = 77
PROJECT = "hami"
READY_SECONDS = "1200"
BUILD_LOG = ROOT / "out" / "images.log"
LOG_LINES = 40


def say(line: str) -> None:
    """One line of progress, with the time, so that it shows where time goes."""
    print(f"{time.strftime('%H:%M:%S')} compose: {line}", flush=True)


class Compose:
    """The compose command for one project."""

    def __init__(self, command: Sequence[str], project: str, base: str) -> None:
        self.project = project
        self._command = [*command, "--project-name", project, "--project-directory", str(ROOT)]
        self.environment = os.environ | {VARIABLE: base}

    @property
    def command_line(self) -> str:
        """For users to put their own words behind."""
        return shlex.join(self._command)

    def run(self, *arguments: str) -> None:
        """Raises CalledProcessError."""
        subprocess.run([*self._command, *arguments], env=self.environment, check=True)

    def build(self) -> None:
        """Builds the images, minutes the first time. Raises CalledProcessError with the last lines."""
        # One service for each image; the others share them.
        command = [*self._command, "--progress=plain", "build", "webhook", "node", "etcd"]
        with BUILD_LOG.open("w+", encoding="utf-8", errors="replace") as log:
            done = subprocess.run(command, env=self.environment, stdout=log, stderr=subprocess.STDOUT, check=False)
            log.seek(0)
            if done.returncode != 0:
                last = "".join(log.readlines()[-LOG_LINES:])
                raise subprocess.CalledProcessError(done.returncode, command, stderr=f"the end of {BUILD_LOG}:\n{last}")

    def output(self, *arguments: str, text: str | None = None) -> str:
        """What the command prints. Raises CalledProcessError, whose text is in `stderr`."""
        done = subprocess.run(
            [*self._command, *arguments], env=self.environment, input=text, capture_output=True, text=True, check=True
        )
        return done.stdout


def prepared(project: str) -> Compose:
    """Base image, programs, compose command, images. Raises UnavailableError, CalledProcessError."""
    base = base_image(say)
    command = compose_command(say)
    say("gathering the programs of the control plane")
    gather(say)
    compose = Compose(command, project, base)
    say("building images")
    compose.build()
    return compose


def up() -> None:
    """Detached; an engine that this starts runs on."""
    compose = prepared(PROJECT)
    compose.run("up", "--detach", "--no-build", "--wait", "--wait-timeout", READY_SECONDS)
    say(f"the cluster runs: {compose.command_line} exec kube-apiserver kubectl get nodes")


def down() -> None:
    """Volumes too. Raises UnavailableError, CalledProcessError."""
    # Nothing is built, so that any name of a base does.
    compose = Compose(compose_command(say), PROJECT, OFFICIAL)
    compose.run("down", "--volumes", "--remove-orphans")


def test() -> None:
    """Raises ExampleFailedError, UnavailableError, CalledProcessError."""
    project = f"hami-test-{os.getpid()}"
    compose = prepared(project)
    ports = choose_free_ports(2)
    compose.environment |= {"HAMI_APISERVER_PORT": str(ports[0]), "HAMI_NATS_PORT": str(ports[1])}
    try:
        say("bringing the cluster up")
        compose.run("--progress=quiet", "up", "--detach", "--no-build", "--wait", "--wait-timeout", READY_SECONDS)
        run_examples(compose, say)
    except (ExampleFailedError, subprocess.CalledProcessError):
        compose.run("ps", "--all")
        compose.run("logs", "--no-color", "--tail=40")
        raise
    finally:
        say("taking the cluster down")
        compose.run("--progress=quiet", "down", "--volumes", "--remove-orphans")
    left = [
        line
        for kind in ("container", "volume", "network")
        for line in _listed(kind, project)
    ]  # fmt: skip
    if left:
        raise ExampleFailedError(f"left behind: {', '.join(left)}")
    say("the pods of all examples did what they should, and nothing is left")


def _listed(kind: str, project: str) -> list[str]:
    everything = ["--all"] if kind == "container" else []
    names = "{{.Names}}" if kind == "container" else "{{.Name}}"
    listed = subprocess.run(
        [
            "docker",
            kind,
            "ls",
            *everything,
            f"--filter=label=com.docker.compose.project={project}",
            f"--format={names}",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.split()


def main() -> int:
    """Runs one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("images", "up", "down", "test"))
    command = parser.parse_args().command
    # So that what was started is ended then too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    log = cache_root() / "compose" / "dockerd.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with running_engine(log, say, keep=command in {"images", "up"}):
            match command:
                case "images":
                    prepared(PROJECT)
                case "up":
                    up()
                case "down":
                    down()
                case "test":
                    test()
    except UnavailableError as error:
        print(f"compose: {error}")
        return SKIPPED
    except (ExampleFailedError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or ""
        print(f"compose: {error}\n{said}".rstrip(), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
