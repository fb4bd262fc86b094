"""The first process of the node: makes its mounts and network, runs a command, reaps orphans, ends with the command.

    first_process.py FOLDER COMMAND...

The node sees the machine's files, but for folders of its own where a kubelet and a container runtime write.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from node_places import ADDRESS, CDI_FOLDER, KUBELET_FOLDER, Folders

EMPTY_FOLDERS = ("/run", "/var/log")
"""Sockets, network namespaces, CDI specifications; logs of pods."""


def main() -> int:
    folders = Folders(Path(sys.argv[1]))
    folders.kubelet.mkdir()
    _run("mount", "--make-rprivate", "/")
    for path in EMPTY_FOLDERS:
        _run("mount", "-t", "tmpfs", "tmpfs", path)
    _run("mount", "--bind", str(folders.kubelet), str(KUBELET_FOLDER))
    _run("mount", "--make-rshared", "/")  # as on a node, where volumes appear in containers that run already
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "address", "add", f"{ADDRESS}/32", "dev", "lo")
    CDI_FOLDER.mkdir(parents=True)
    tests = subprocess.Popen(sys.argv[2:])
    while True:
        pid, status = os.wait()
        if pid == tests.pid:
            return os.waitstatus_to_exitcode(status)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main())
