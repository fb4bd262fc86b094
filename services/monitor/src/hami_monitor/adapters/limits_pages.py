"""Reads the limits pages that the node-agent writes, one of each container that its library is mounted into."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from hami_chassis.log import get_logger
from hami_chassis.no_room import says_nothing_of_the_file
from hami_model import limits_page
from hami_model.limits_page import LimitsPage

from hami_monitor.adapters.untrusted_files import TRUSTED_FOLDER, opened
from hami_monitor.core.container_folder import FolderOwner, folder_name

PAGE: Final = "page"
_PAGE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MORE_THAN_A_PAGE: Final = 8192
_SEQUENCE_END: Final = 24
_TRIES: Final = 3
"""A change under way takes a moment."""

log = get_logger("limits-pages")


class LimitsPages:
    """A PageSource over `<hook path>/vgpu/limits`, which containers cannot write."""

    def __init__(self, limits: Path) -> None:
        self._limits = limits
        self._problems: dict[FolderOwner, str] = {}
        self._decoded: dict[FolderOwner, tuple[bytes, LimitsPage]] = {}

    def pages(self, owners: Iterable[FolderOwner]) -> dict[FolderOwner, LimitsPage]:
        """Of those that have one; a bad one is logged once, and is none. Raises OSError: nothing can be read now."""
        found: dict[FolderOwner, LimitsPage] = {}
        problems: dict[FolderOwner, str] = {}
        try:
            with opened(self._limits, TRUSTED_FOLDER) as limits:
                for owner in owners:
                    try:
                        found[owner] = self._page(limits, owner)
                    except FileNotFoundError:
                        continue
                    except limits_page.MalformedLimitsPage as error:
                        problems[owner] = str(error)
                    except OSError as error:
                        if says_nothing_of_the_file(error):
                            raise
                        problems[owner] = str(error)
        except FileNotFoundError:
            return {}
        for owner, problem in problems.items():
            if self._problems.get(owner) != problem:
                log.warning("limits-page-unreadable", pod_uid=owner.pod_uid, container=owner.container, problem=problem)
        self._problems = problems
        self._decoded = {owner: self._decoded[owner] for owner in found}
        return found

    def _page(self, limits: int, owner: FolderOwner) -> LimitsPage:
        # Read each time: the node-agent changes pages through mappings, which may leave a file's times as they are.
        with opened(f"{folder_name(owner)}/{PAGE}", _PAGE_FLAGS, limits) as file:
            data = _settled(file)
        known = self._decoded.get(owner)
        if known is not None and known[0] == data:
            return known[1]
        page = limits_page.decode(data)
        self._decoded[owner] = (data, page)
        return page


def _settled(file: int) -> bytes:
    for _ in range(_TRIES):
        data = os.pread(file, _MORE_THAN_A_PAGE, 0)
        if len(data) < _SEQUENCE_END or limits_page.sequence_of(data) % 2 == 0:
            break
    return data
