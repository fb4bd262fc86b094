"""The open watches of the fake, and what tests do to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from hami_sim.fake_kube.refusals import Refusal
from hami_sim.fake_kube.store import Change, Stored

Admits = Callable[[dict[str, Any]], bool]


class Watch:
    """One client that watches. `None` in the queue ends the stream."""

    def __init__(self, resource: str, admits: Admits, *, bookmarks: bool) -> None:
        self.resource = resource
        self.bookmarks = bookmarks
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._admits = admits
        self.last_line: bytes | None = None

    def offer(self, change: Change) -> None:
        """Queues what the selection of this watch makes of a change."""
        line = self.line_of(change)
        if line is not None:
            self.last_line = line
            self.queue.put_nowait(line)

    def line_of(self, change: Change) -> bytes | None:
        admits_now = change.type != "DELETED" and self._admits(change.now.value)
        admitted_before = change.before is not None and self._admits(change.before.value)
        if admits_now:
            return line("MODIFIED" if admitted_before else "ADDED", change.now)
        if admitted_before:
            return line("DELETED", change.now)
        return None


class Watches:
    """All open watches."""

    def __init__(self) -> None:
        self._open: list[Watch] = []
        self._paused: dict[str, list[Change]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, watch: Watch) -> None:
        self._open.append(watch)

    def discard(self, watch: Watch) -> None:
        if watch in self._open:
            self._open.remove(watch)

    def of(self, resource: str | None) -> list[Watch]:
        return [watch for watch in self._open if resource in {None, watch.resource}]

    def offer(self, resource: str, change: Change) -> None:
        """Hands a change to those who watch."""
        if resource in self._paused:
            self._paused[resource].append(change)
            return
        for watch in self.of(resource):
            watch.offer(change)

    def pause(self, resource: str) -> None:
        """Changes are held back until `resume`."""
        self._paused.setdefault(resource, [])

    def resume(self, resource: str) -> None:
        """Hands out what was held back, in order."""
        for change in self._paused.pop(resource, []):
            self.offer(resource, change)

    def end(self, resource: str | None) -> None:
        """Ends streams as a server does that shuts down or times out."""
        for watch in self.of(resource):
            watch.queue.put_nowait(None)
            self.discard(watch)

    def refuse(self, resource: str | None, refusal: Refusal) -> None:
        """Sends an ERROR line and ends the streams."""
        for watch in self.of(resource):
            watch.queue.put_nowait(msgspec.json.encode({"type": "ERROR", "object": refusal.status}) + b"\n")
        self.end(resource)

    def bookmark(self, resource: str, version: int, *, kind: str, api_version: str) -> None:
        """Tells how far the stream has come."""
        for watch in self.of(resource):
            if watch.bookmarks:
                watch.queue.put_nowait(bookmark_line(version, kind, api_version))

    def repeat_last(self, resource: str) -> None:
        """Sends the last line of each stream once more."""
        for watch in self.of(resource):
            if watch.last_line is not None:
                watch.queue.put_nowait(watch.last_line)

    def send_raw(self, resource: str, raw: bytes) -> None:
        """Sends any bytes as a line."""
        for watch in self.of(resource):
            watch.queue.put_nowait(raw + b"\n")


def bookmark_line(version: int, kind: str, api_version: str) -> bytes:
    """A line that says only how far the stream has come."""
    marker = {"kind": kind, "apiVersion": api_version, "metadata": {"resourceVersion": str(version)}}
    return msgspec.json.encode({"type": "BOOKMARK", "object": marker}) + b"\n"


def line(kind: str, stored: Stored) -> bytes:
    """One line of a watch."""
    return b'{"type":"' + kind.encode() + b'","object":' + stored.raw + b"}\n"
