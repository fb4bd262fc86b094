"""Errors of a machine, or a process, without room: they say nothing of the file that was to be opened."""

from __future__ import annotations

import errno
from typing import Final

_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def says_nothing_of_the_file(error: OSError) -> bool:
    """Whether nothing can be opened at all now: what could not be read must not count as absent, bad or unused."""
    return error.errno in _NO_ROOM
