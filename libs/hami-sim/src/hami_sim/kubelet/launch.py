"""What a container's process is started with, once its environment, mounts and command are known. Pure."""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

import msgspec

from hami_sim.kubelet.settings import DriverSettings

_PRELOAD_FILE = "/etc/ld.so.preload"
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Bind(msgspec.Struct, frozen=True):
    """A host path that the container sees at `target`."""

    source: str
    target: str
    read_only: bool = False


class Launch(msgspec.Struct, frozen=True):
    """A process to start."""

    argv: list[str]
    environment: dict[str, str]
    working_dir: str
    binds: list[Bind]
    """In the order in which they are made: outer paths before inner ones."""


def runtime_environment(
    wanted: Mapping[str, str],
    hostname: str,
    programs_dirs: tuple[str, ...],
    visible: str | None,
    driver: DriverSettings | None,
) -> dict[str, str]:
    """Add what image and runtime bring: program folders, and the driver where cards are visible."""
    environment = {"PATH": _DEFAULT_PATH, "HOSTNAME": hostname, "HOME": "/root", **wanted}
    environment["PATH"] = ":".join([*programs_dirs, environment["PATH"]])
    if driver is None or visible is None:
        return environment
    libraries = [driver.library_dir, *filter(None, [environment.get("LD_LIBRARY_PATH")])]
    return {
        **environment,
        "LD_LIBRARY_PATH": ":".join(libraries),
        **driver.environment,
        driver.visible_variable: visible,
    }


def driver_binds(driver: DriverSettings | None, visible: str | None) -> list[Bind]:
    """Paths that the driver shares between containers of the node."""
    if driver is None or visible is None:
        return []
    return [Bind(path, path) for path in driver.shared_paths]


def in_mount_order(binds: list[Bind]) -> list[Bind]:
    """Outer targets first, as runtimes mount them; otherwise the given order."""
    return sorted(binds, key=lambda bind: len(PurePosixPath(bind.target).parts))


def with_host_paths(launch: Launch, preload_file: str) -> Launch:
    """The same launch for a process without a mount namespace.

    Container paths in environment values, arguments and the working directory become host paths; libraries named in
    a mounted /etc/ld.so.preload (its content is `preload_file`) go into LD_PRELOAD.
    """
    environment = {name: host_paths(value, launch.binds) for name, value in launch.environment.items()}
    libraries = [host_paths(path, launch.binds) for path in re.split(r"[\s:]+", preload_file) if path]
    if libraries:
        own = environment.get("LD_PRELOAD")
        environment["LD_PRELOAD"] = ":".join([*libraries, *filter(None, [own])])
    return Launch(
        argv=[host_paths(word, launch.binds) for word in launch.argv],
        environment=environment,
        working_dir=host_paths(launch.working_dir, launch.binds),
        binds=[],
    )


def preload_source(binds: list[Bind]) -> str | None:
    """Host path of the file that is mounted as /etc/ld.so.preload."""
    return next((bind.source for bind in reversed(binds) if bind.target == _PRELOAD_FILE), None)


def host_paths(text: str, binds: list[Bind]) -> str:
    """Replace every container path under a bind's target by its host path, the innermost bind winning."""
    sources = {bind.target.rstrip("/"): bind.source for bind in binds if bind.target.rstrip("/")}
    if not sources:
        return text
    longest_first = sorted(sources, key=len, reverse=True)
    pattern = r"(?<![A-Za-z0-9_.\-/])(" + "|".join(re.escape(t) for t in longest_first) + r")(?=$|[/\s:;,'\")])"
    return re.sub(pattern, lambda match: sources[match[1]], text)


def placeholders(binds: list[Bind]) -> list[tuple[str, str]]:
    """(host path, source) of mount points that lie inside another bind: a runtime creates them on the host."""
    found = []
    for inner in binds:
        outers = [
            outer for outer in binds if outer is not inner and inner.target.startswith(outer.target.rstrip("/") + "/")
        ]
        if outers:
            outer = max(outers, key=lambda bind: len(bind.target))
            relative = inner.target.removeprefix(outer.target.rstrip("/") + "/")
            found.append((f"{outer.source.rstrip('/')}/{relative}", inner.source))
    return found
