"""What one container is given: which cards, which limits, which files. The same for every hand-off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from hami_model import env
from hami_model.cards import Slice
from hami_model.limits_page import LimitsPage
from hami_model.limits_page import layout as page_layout

PRELOAD_LIST: Final = "/etc/ld.so.preload"
LICENSE: Final = "/tmp/license"  # noqa: S108  # where the validator looks for it in the container
VALIDATOR: Final = "/usr/bin/vgpuvalidator"
LIBRARY_NAME: Final = "libvgpu.so"


class HostLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Where things lie on the host; containers see them at the same paths."""

    hook_path: str = "/usr/local"
    lock_dir: str = "/tmp/vgpulock"  # noqa: S108  # of older libraries; theirs to name

    @property
    def folder(self) -> str:
        return f"{self.hook_path.rstrip('/')}/vgpu"

    @property
    def library(self) -> str:
        """Path in the container, and of a library without version on the host."""
        return f"{self.folder}/{LIBRARY_NAME}"

    @property
    def preload_list(self) -> str:
        return f"{self.folder}/ld.so.preload"

    @property
    def license(self) -> str:
        return f"{self.folder}/license"

    @property
    def validator(self) -> str:
        return f"{self.folder}/vgpuvalidator"

    @property
    def containers(self) -> str:
        return f"{self.folder}/containers"

    def versioned_library(self, version: str) -> str:
        return f"{self.library}.{version}"

    def container_dir(self, pod_uid: str, container: str) -> str:
        return f"{self.containers}/{pod_uid}_{container}"

    @property
    def limits(self) -> str:
        """Folder of the folders with limits pages."""
        return f"{self.folder}/{page_layout.DIRECTORY}"

    @property
    def limits_mount(self) -> str:
        """Path in the container of the folder with its page: beside the library, which looks for it there."""
        return self.limits

    def limits_dir(self, pod_uid: str, container: str) -> str:
        return f"{self.limits}/{pod_uid}_{container}"

    def region_file(self, name: str) -> str:
        """Path in the container of a region file of that name, `<uuid>.cache`."""
        return f"{self.folder}/{name}"


class HostState(msgspec.Struct, frozen=True, kw_only=True):
    """What was found on the host when the hand-over was planned."""

    library: str
    """Path of the library to mount."""
    has_license: bool = False


class LimitPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What every container of the node is told beside its own limits."""

    oversubscribed: bool = False
    """More memory is promised than the cards have."""
    library_log_level: str = ""
    disable_core_limit: bool = False


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    container_path: str
    host_path: str
    read_only: bool


class ContainerFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The folders of one container: one that it writes in, and one with its limits page."""

    pod_uid: str
    container: str
    page: LimitsPage
    library: str = ""
    """File of the host that is mounted as its library."""
    owner: tuple[int, int] | None = None
    """User and group of the container's processes, where the specification names the user."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The hand-over of one container, complete."""

    card_ids: tuple[str, ...] = ()
    """What the container is to see, in the order in which the limits are numbered."""
    environment: dict[str, str] = {}
    """Limits and settings; which cards are shown is the hand-off's part."""
    mounts: tuple[Mount, ...] = ()
    files: ContainerFiles | None = None
    """What must lie on the host before the container starts."""


def in_limit_order(slices: Sequence[Slice], card_indexes: Mapping[str, int]) -> tuple[Slice, ...]:
    """Slices in the order in which limits are numbered.

    Limits are numbered while containers see cards by index, so unequal shares go by index. Equal shares stay as
    annotated: there the order means nothing.
    """
    shares = {(piece.memory_mib, piece.cores_percent) for piece in slices}
    if len(shares) <= 1:
        return tuple(slices)
    return tuple(sorted(slices, key=lambda piece: card_indexes.get(piece.card_id, len(card_indexes))))


def limits(slices: Sequence[Slice], region_file: str, policy: LimitPolicy) -> dict[str, str]:
    """The environment that the library reads. `slices` are in limit order and not empty."""
    found = {env.memory_limit_of(number): f"{piece.memory_mib}m" for number, piece in enumerate(slices)}
    found[env.CORES_LIMIT] = str(slices[0].cores_percent)
    if len({piece.cores_percent for piece in slices}) > 1:
        # A share of 0 is written as 100, the whole: 0 would fall back to the first card's.
        found |= {env.cores_limit_of(number): str(piece.cores_percent or 100) for number, piece in enumerate(slices)}
    found[env.REGION_FILE] = region_file
    if policy.oversubscribed:
        found[env.OVERSUBSCRIBE] = "true"
    if policy.library_log_level:
        found[env.LOG_LEVEL] = policy.library_log_level
    if policy.disable_core_limit:
        found[env.CORE_POLICY] = env.CORE_POLICY_DISABLE
    return found


def mounts(
    layout: HostLayout, host: HostState, pod_uid: str, container: str, *, with_preload: bool
) -> tuple[Mount, ...]:
    """Library, region folder, limits page, lock folder, preload list, and the licence where there is one."""
    limits_dir = layout.limits_dir(pod_uid, container)
    found = [
        Mount(container_path=layout.library, host_path=host.library, read_only=True),
        Mount(container_path=layout.folder, host_path=layout.container_dir(pod_uid, container), read_only=False),
        Mount(container_path=layout.limits_mount, host_path=limits_dir, read_only=True),
        Mount(container_path=layout.lock_dir, host_path=layout.lock_dir, read_only=False),
    ]
    if with_preload:
        found.append(Mount(container_path=PRELOAD_LIST, host_path=layout.preload_list, read_only=True))
    if host.has_license:
        found.append(Mount(container_path=LICENSE, host_path=layout.license, read_only=True))
        found.append(Mount(container_path=VALIDATOR, host_path=layout.validator, read_only=True))
    return tuple(found)
