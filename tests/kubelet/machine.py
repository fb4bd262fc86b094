"""What of this machine lies outside of the node's namespaces: whether it can be a node, and what is put back."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from node_places import CONTROL_GROUP

CONTROL_GROUPS = Path("/sys/fs/cgroup")
KERNEL_SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""Those that a kubelet sets."""
V2_CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
REMOVAL_SECONDS = 30.0
POLL_SECONDS = 0.2

Progress = Callable[[str], None]


class NotANodeError(Exception):
    """This machine cannot be a node; the message says why."""


def check_machine() -> None:
    """Raises NotANodeError."""
    if os.geteuid() != 0:
        raise NotANodeError("a kubelet needs root")
    tried = subprocess.run(
        ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--mount-proc", "true"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if tried.returncode != 0:
        raise NotANodeError(f"no namespaces can be made here (CAP_SYS_ADMIN): {tried.stderr.strip()}")
    if not os.access("/proc/sys/kernel/panic", os.W_OK) or os.statvfs("/proc/sys").f_flag & os.ST_RDONLY:
        raise NotANodeError("/proc/sys is read-only: a kubelet changes kernel settings")
    missing = [name for name in ("cpu", "memory", "pids") if not _has_controller(name)]
    if missing:
        raise NotANodeError(f"no control groups for {', '.join(missing)} in {CONTROL_GROUPS}")


@contextmanager
def exclusive(folder: Path, progress: Progress) -> Iterator[None]:
    """One kubelet on a machine: a second run waits for the first."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "kubelet-tests.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another run has the node; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# ---- kernel settings ----


def store_kernel_settings(file: Path) -> None:
    """Remembers them where a later run finds them, should this one be killed."""
    found = {name: _setting(name).read_text().strip() for name in KERNEL_SETTINGS if _setting(name).exists()}
    file.write_text(json.dumps(found))


def restore_kernel_settings(file: Path) -> None:
    """Puts them back, once."""
    if not file.exists():
        return
    for name, value in json.loads(file.read_text()).items():
        _setting(name).write_text(value)
    file.unlink()


def _setting(name: str) -> Path:
    return Path("/proc/sys") / name


# ---- control groups ----


def make_control_groups() -> None:
    """Our group in every hierarchy. Raises NotANodeError."""
    for hierarchy in _hierarchies():
        try:
            if (hierarchy / "cgroup.subtree_control").exists() and hierarchy == CONTROL_GROUPS:
                (hierarchy / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in V2_CONTROLLERS))
            (hierarchy / CONTROL_GROUP).mkdir(exist_ok=True)
        except OSError as error:
            raise NotANodeError(f"no control group can be made in {hierarchy}: {error.strerror}") from error


def end_control_groups() -> None:
    """Removes our groups, children first; their processes have ended or are ending."""
    deadline = time.monotonic() + REMOVAL_SECONDS
    for hierarchy in _hierarchies():
        ours = hierarchy / CONTROL_GROUP
        while ours.exists():
            try:
                for folder, _, _ in os.walk(ours, topdown=False):
                    Path(folder).rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_SECONDS)


def _hierarchies() -> list[Path]:
    if (CONTROL_GROUPS / "cgroup.controllers").exists():
        return [CONTROL_GROUPS]
    return sorted({path.resolve() for path in CONTROL_GROUPS.iterdir() if path.is_dir()})


def _has_controller(name: str) -> bool:
    unified = CONTROL_GROUPS / "cgroup.controllers"
    if unified.exists():
        return name in unified.read_text().split()
    return (CONTROL_GROUPS / name).is_dir()
