"""The book on disk, before anything that it says reaches a container. Hand-overs of one moment share one write."""

from __future__ import annotations

import asyncio

from hami_node_agent.core.handed_out import HandedOut
from hami_node_agent.ports import OwnCheckpoint


class BookSaving:
    def __init__(self, book: HandedOut, own: OwnCheckpoint) -> None:
        self._book = book
        self._own = own
        self._changes = 0
        """Of the book, since the start."""
        self._saved = 0
        self._saving = asyncio.Lock()

    def changed(self) -> None:
        """The book says something that is not on disk."""
        self._changes += 1

    async def settle(self) -> None:
        """Returns when all that was changed before is on disk. Raises Transient."""
        wanted = self._changes
        async with self._saving:
            if self._saved < wanted:
                changes = self._changes
                await self._own.write(self._book)
                self._saved = changes
