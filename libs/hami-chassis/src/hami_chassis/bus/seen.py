"""Remembers which ids were handled, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict


class SeenIds:
    """The last `limit` ids. Older ones are forgotten, so the handler behind it still tolerates a late repetition."""

    def __init__(self, limit: int = 65_536) -> None:
        if limit < 1:
            raise ValueError("limit must be at least 1")
        self._limit = limit
        self._ids: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, event_id: str) -> bool:
        return event_id in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, event_id: str) -> bool:
        """False when the id was there already. An empty id is never remembered."""
        if not event_id:
            return True
        if event_id in self._ids:
            self._ids.move_to_end(event_id)
            return False
        self._ids[event_id] = None
        if len(self._ids) > self._limit:
            self._ids.popitem(last=False)
        return True
