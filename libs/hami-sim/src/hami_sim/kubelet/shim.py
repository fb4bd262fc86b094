"""Parent of one container's process: starts it, waits for it, writes down how it ended, and outlives the stand-in.

Run as a script (`python -I -S shim.py CHANNEL`), so it uses the standard library only and nothing of ours. The script
is a server that forks a shim for every folder it is sent over CHANNEL, a SOCK_SEQPACKET socket; it ends with the
stand-in, the shims do not. The folder holds `spec.json`; the shim writes there `shim.json` (it exists), `state.json`
(the process runs) and `exit.json` (it ended, or never started). A line on the descriptor that came with the folder
tells the stand-in at once; it may be gone.
"""

# pathlib would double the start-up time of a process that is started for every container.
# ruff: noqa: PTH102, PTH103, PTH105, PTH110, PTH112, PTH118, PTH120, PTH123, S606

import contextlib
import ctypes
import gc
import json
import os
import signal
import socket
import sys
import time
import traceback
from typing import Any

CLONE_NEWNS = 0x00020000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
PR_SET_CHILD_SUBREAPER = 36
START_FAILED = 128

libc = ctypes.CDLL(None, use_errno=True)


def start_ticks(pid: int) -> int:
    """When the process started, in clock ticks since boot; with the pid it names a process for good."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def write(folder: str, name: str, value: dict[str, Any]) -> None:
    """Put a whole file into the folder."""
    aside = os.path.join(folder, name + ".new")
    with open(aside, "w") as file:
        json.dump(value, file)
    os.replace(aside, os.path.join(folder, name))


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2)."""
    words = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    if libc.mount(words[0], words[1], words[2], flags, words[3]) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} on {target}: {os.strerror(number)}")


def other_mounts(scratch: str) -> list[str]:
    """Mount points that a copy of / lacks, without those inside another one of them."""
    points: list[str] = []
    with open("/proc/self/mountinfo") as file:
        for line in file:
            point = line.split()[4].encode().decode("unicode_escape")
            inside = any(point == outer or point.startswith(outer + "/") for outer in points)
            if point != "/" and not inside and not (point + "/").startswith(scratch + "/"):
                points.append(point)
    return points


def enter_root(scratch: str, binds: list[dict[str, Any]]) -> None:
    """A root of the container's own: the machine's files under a layer in memory, and the binds on top."""
    if libc.unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare of the mount namespace")
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", scratch, "tmpfs", 0)
    os.chdir(scratch)
    for folder in ("upper", "work", "root"):
        os.mkdir(folder)
    mount("overlay", "root", "overlay", 0, "lowerdir=/,upperdir=upper,workdir=work")
    root = os.path.join(scratch, "root")
    for point in other_mounts(scratch):
        if os.path.exists(root + point):
            mount(point, root + point, None, MS_BIND | MS_REC)
    for bind in binds:
        target = root + bind["target"]
        if os.path.isdir(bind["source"]):
            os.makedirs(target, exist_ok=True)
        elif not os.path.lexists(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        mount(bind["source"], target, None, MS_BIND | MS_REC)
        if bind["read_only"]:
            mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY)
    os.chroot(root)
    os.chdir("/")


def become(spec: dict[str, Any], log: int) -> None:
    """In the child: turn into the container's process."""
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if spec["scratch"]:
        enter_root(spec["scratch"], spec["binds"])
        os.makedirs(spec["working_dir"], exist_ok=True)
    os.umask(0o022)
    os.chdir(spec["working_dir"])
    os.execvpe(spec["argv"][0], spec["argv"], spec["environment"])


def start(spec: dict[str, Any], log: int) -> tuple[int | None, str]:
    """Returns the pid of the running process, or None and why it does not run."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become(spec, log)
        except (OSError, ValueError, TypeError, KeyError) as error:
            os.write(write_end, f"{type(error).__name__}: {error}".encode()[:4000])
        finally:
            os._exit(START_FAILED)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        fault = pipe.read().decode(errors="replace")
    if fault:
        os.waitpid(pid, 0)
        return None, fault
    return pid, ""


def children() -> list[int]:
    """Of this process; what the container left behind was handed to it. Empty where the kernel does not tell."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(word) for word in file.read().split()]
    except FileNotFoundError:
        return []


def reap_all(main: int) -> int:
    """Wait for the process, then end whatever it left behind, as the end of a container does."""
    status: int | None = None
    while status is None:
        pid, ended = os.wait()
        if pid == main:
            status = ended
    with contextlib.suppress(ProcessLookupError):
        os.killpg(main, signal.SIGKILL)
    while left := children():
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.wait()
    return status


def run(folder: str, notify: int) -> None:
    """The shim's life."""
    write(folder, "claim", {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())})
    # Fails when a stand-in that was started again has given this start up.
    os.link(os.path.join(folder, "claim"), os.path.join(folder, "shim.json"))
    with open(os.path.join(folder, "spec.json")) as file:
        spec = json.load(file)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    log = os.open(os.path.join(folder, "log"), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    started_at = time.time()
    pid, fault = start(spec, log)
    os.close(log)
    if pid is None:
        write(folder, "exit.json", {"fault": fault, "started_at": started_at, "finished_at": time.time()})
        tell(notify, "failed")
        return
    write(folder, "state.json", {"pid": pid, "start_ticks": start_ticks_of(pid), "started_at": started_at})
    tell(notify, "started")
    status = reap_all(pid)
    ended: dict[str, Any] = {"started_at": started_at, "finished_at": time.time()}
    if os.WIFSIGNALED(status):
        ended["signal"] = os.WTERMSIG(status)
    else:
        ended["code"] = os.WEXITSTATUS(status)
    write(folder, "exit.json", ended)


def start_ticks_of(pid: int) -> int:
    """Of a child that may be over already: then nothing can take its pid before it is waited for."""
    try:
        return start_ticks(pid)
    except FileNotFoundError:
        return 0


def tell(notify: int, word: str) -> None:
    """To the stand-in, if it still listens."""
    with contextlib.suppress(BrokenPipeError):
        os.write(notify, word.encode() + b"\n")
    os.close(notify)


def shim(folder: str, notify: int) -> None:
    """In the forked child: never returns."""
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.set_inheritable(notify, False)
        own_log = os.open(os.path.join(folder, "shim.log"), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        os.dup2(own_log, 1)
        os.dup2(own_log, 2)
        os.close(own_log)
        run(folder, notify)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(0)


def serve(channel: int) -> None:
    """Until the other end of the channel is closed."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # shims are reaped by nobody's wait
    gc.freeze()
    requests = socket.socket(fileno=channel)
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 4096, 1)
        if not message:
            return
        if os.fork() == 0:
            requests.close()
            shim(os.fsdecode(message), descriptors[0])
        os.close(descriptors[0])


if __name__ == "__main__":
    serve(int(sys.argv[1]))
