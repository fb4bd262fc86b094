"""What the monitor writes back into the regions of containers that share cards.

HAMi's monitor lets go as soon as nobody launched since the last tick, so nothing is held beyond that here.
"""

from __future__ import annotations

import struct
from typing import Any

from hami_monitor.core.container_folder import owner_of
from hami_monitor.core.feedback import Activity, Contender, changes, decide
from hami_monitor.core.region_layouts import MAGIC, UUID_BYTES, V0, V1, Layout
from hami_monitor.core.region_words import RegionWords, read_words

LAYOUTS: dict[str, tuple[Layout, tuple[int, int] | None]] = {
    "v0": (V0, None),
    "v1.1": (V1, (1, 1)),
    "v1.2": (V1, (1, 2)),
}


class Container:
    """One region, and its owner's part: launching."""

    def __init__(self, row: dict[str, Any]) -> None:
        owner = owner_of(row["dir"])
        assert owner is not None
        self.name, self.owner = row["dir"], owner
        self.layout, version = LAYOUTS[row["layout"]]
        self.content = bytearray(self.layout.size_bytes + 1)
        struct.pack_into("<i", self.content, 0, MAGIC)
        if version is not None:
            struct.pack_into("<II", self.content, 4, *version)
        for index, uuid in enumerate(row["uuids"]):
            struct.pack_into(f"{UUID_BYTES}s", self.content, self.layout.uuids + index * UUID_BYTES, uuid.encode())
        self.write(self.layout.priority, row["priority"])
        self.write(self.layout.recent_kernel, row["recent_kernel"])
        self.write(self.layout.utilisation_switch, row["utilization_switch"])

    def write(self, offset: int, value: int) -> None:
        struct.pack_into("<i", self.content, offset, value)

    def words(self) -> RegionWords:
        return read_words(len(self.content), lambda offset, length: bytes(self.content[offset : offset + length]))

    def launch(self) -> None:
        if self.words().recent_kernel >= 0:
            self.write(self.layout.recent_kernel, 2)


def answer(row: dict[str, Any]) -> dict[str, Any]:
    containers = [Container(found) for found in row["containers"]]
    activities: dict[Any, Activity] = {}
    ticks = []
    for tick in range(row["ticks"]):
        for container in containers:
            if tick < len(row["launch"]) and container.name in row["launch"][tick]:
                container.launch()
        words = {container.owner: container.words() for container in containers}
        found = decide(
            activities,
            [
                Contender(owner=owner, card_ids=read.card_ids, priority=read.priority, words=read)
                for owner, read in words.items()
            ],
            hold_ticks=0,
        )
        activities = found.activities
        for container, verdict in zip(containers, found.verdicts, strict=True):
            for change in changes(words[container.owner], verdict):
                container.write(change.offset, change.value)
        after = {container.name: container.words() for container in containers}
        ticks.append(
            {
                name: {"recent_kernel": read.recent_kernel, "utilization_switch": read.utilisation_switch}
                for name, read in after.items()
            }
        )
    return {"ticks": ticks}
