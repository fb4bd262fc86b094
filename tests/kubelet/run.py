"""Runs the tests with a real kubelet and containerd: `run.py [options of pytest, such as -k]`.

The node is a set of namespaces (mounts, processes, network, IPC, host name) of its own on this machine; the control
plane and the tests run inside too. When its first process ends, the kernel ends every other one of it and drops its
mounts and network devices. What lies outside of namespaces (control groups, kernel settings, files) is put back here.

Exit status 77, with the reason as the last line, where this machine cannot be a node.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from hami_sim.binaries import BinariesUnavailableError, obtain_binaries
from hami_sim.binaries.cache import cache_root
from hami_sim.binaries.containerd import obtain_containerd
from hami_sim.debian_packages import PackageUnavailableError, install_missing
from machine import (
    NotANodeError,
    check_machine,
    end_control_groups,
    exclusive,
    make_control_groups,
    restore_kernel_settings,
    store_kernel_settings,
)
from node_places import FOLDER_VARIABLE, KUBELET_FOLDER

SKIPPED = 77
INTERRUPTED = 130
FOLDER_PREFIX = "hami-kubelet-"
HERE = Path(__file__).resolve().parent
PROGRAMS = {
    "runc": "runc",
    "ip": "iproute2",
    "unshare": "util-linux",
    "/bin/busybox": "busybox-static",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
}
"""What must be there, by name or path, and Debian's package of it."""
_PR_SET_PDEATHSIG = 1


def say(line: str) -> None:
    """One line of progress, with the time, so that it shows where time goes."""
    print(f"{time.strftime('%H:%M:%S')} kubelet: {line}", flush=True)


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        check_machine()
        with exclusive(cache_root(), say):
            install_missing(PROGRAMS, say)
            obtain_binaries(say)
            obtain_containerd(say)
            return run_tests(sys.argv[1:])
    except (NotANodeError, PackageUnavailableError, BinariesUnavailableError) as error:
        say("this machine cannot be a node")
        print(error, flush=True)
        return SKIPPED
    except KeyboardInterrupt:
        return INTERRUPTED


def run_tests(arguments: list[str]) -> int:
    """Makes the node, runs pytest in it, removes the node."""
    remembered = cache_root() / "kubelet-kernel-settings.json"
    # Of a run that was killed: nobody else has the node now.
    restore_kernel_settings(remembered)
    end_control_groups()
    for left in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        shutil.rmtree(left)
    made_mount_point = not KUBELET_FOLDER.exists() or not any(KUBELET_FOLDER.iterdir())
    KUBELET_FOLDER.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    store_kernel_settings(remembered)
    succeeded = False
    try:
        make_control_groups()
        say(f"a node of its own in {folder}")
        status = _inside(folder, arguments)
        succeeded = status == 0
        return status
    finally:
        say("removing the node")
        restore_kernel_settings(remembered)
        end_control_groups()
        if made_mount_point:
            KUBELET_FOLDER.rmdir()
        if not succeeded:
            _keep_logs(folder)
        shutil.rmtree(folder)


def _inside(folder: Path, arguments: list[str]) -> int:
    """pytest's exit status. The namespaces end with this process, however it ends."""
    command = ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"]
    first = [sys.executable, str(HERE / "first_process.py"), str(folder)]
    tests = [sys.executable, "-u", "-m", "pytest", "-v", "-s", "--tb=short", "--durations=0", str(HERE)]
    environment = os.environ | {FOLDER_VARIABLE: str(folder)}
    node = subprocess.Popen([*command, *first, *tests, *arguments], env=environment, preexec_fn=_end_with_parent)  # noqa: PLW1509
    try:
        return node.wait()
    finally:
        node.kill()  # and with it, by --kill-child, everything inside
        node.wait()


def _keep_logs(folder: Path) -> None:
    kept = HERE.parents[1] / "out" / "kubelet-logs"
    shutil.rmtree(kept, ignore_errors=True)
    if (folder / "s" / "logs").is_dir():
        shutil.copytree(folder / "s" / "logs", kept)
        say(f"the logs of its programs are kept in {kept}")


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
