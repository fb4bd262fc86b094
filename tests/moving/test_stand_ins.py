"""The stand-ins for HAMi's programs do what recordings of HAMi show. The other tests here rest on that."""

from __future__ import annotations

import itertools
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import their_agent
import their_monitor
import their_scheduler
from region_store import content, lay_out
from vectors import Row, rows

VECTORS = Path(__file__).parents[1] / "data/vectors"
LAYOUTS = {
    "v0a": (804681, their_monitor.V0),
    "v0": (1197897, their_monitor.V0),
    "v1.1": (2008953, their_monitor.V1),
    "v1.1-bis": (2008985, their_monitor.V1),
    "v1.2": (2008953, their_monitor.V1),
}
"""Size of the file, and how HAMi reads it."""


def of(name: str) -> list[Row]:
    return list(rows(VECTORS / f"{name}.jsonl.xz"))


# ---- the node agent ----------------------------------------------------------------------------------------------


def is_plain(row: Row) -> bool:
    """Lock and annotations alone decide: no injected fault, and no kind of device that other rules are for."""
    special = {"fault", "node-missing", "mig-dynamic", "static-mig", "invalid", "hook-path"}
    return row["op"] == "allocate" and not special & set(row["tags"]) and row["expect"].get("start_error") is None


PLAIN = [row for row in of("node-allocate") if is_plain(row) and not row["expect"].get("panic")]


def test_there_are_recordings_to_hold_it_against() -> None:
    assert len(PLAIN) > 150


@pytest.mark.parametrize("row", PLAIN, ids=lambda row: row["id"])
def test_the_agent_leaves_what_hami_s_leaves(row: Row) -> None:
    node = row["node"]
    lock = (node["annotations"] or {}).get(their_agent.LOCK)
    pods = sorted(row["pods"], key=lambda pod: (pod["metadata"].get("namespace", ""), pod["metadata"]["name"]))
    requests = [request["devicesIDs"] for request in row["request"]["container_requests"]]
    found = their_agent.allocate(row["config"]["env"]["NODE_NAME"], lock, pods, requests)
    assert (found.error != "") == (row["expect"]["error"] is not None), found.error
    after = {f"{namespace}/{name}": annotations for (namespace, name), annotations in found.pods.items()}
    assert after == row["expect"]["pod_annotations_after"]
    assert found.lock == row["expect"]["lock_after"]


# ---- the scheduler -----------------------------------------------------------------------------------------------

DECODED = [row for row in of("wire") if row["op"] == "decode_node_json" and "null]" not in row["input"]["text"]]
"""A list with an element that is null stops HAMi's scheduler, later than here."""


@pytest.mark.parametrize("row", DECODED, ids=lambda row: row["id"])
def test_the_scheduler_reads_the_register_annotation_as_hami_s(row: Row) -> None:
    expect = row["expect"]
    try:
        found = their_scheduler.devices(row["input"]["text"])
    except their_scheduler.UnreadableError:
        assert not expect["ok"]
        return
    assert expect["ok"]
    assert found == their_scheduler.devices(json.dumps(expect["value"]))


# ---- the monitor -------------------------------------------------------------------------------------------------


def described(region: their_monitor.Region) -> dict[str, Any]:
    """In the words of the vectors."""
    cards = []
    for card in range(their_monitor.CARDS):
        uuid = region.uuid(card)
        one: dict[str, Any] = {
            "index": card,
            "limit": region.limit(card),
            "sm_util": region.sm_utilisation(card),
            "uuid_valid": uuid[0] != 0,
            **region.used(card),
        }
        label = uuid[: their_monitor.LABEL_BYTES]
        if one["uuid_valid"]:
            try:
                one["uuid_label"] = label.decode()
            except UnicodeDecodeError:
                one["uuid_label_hex"] = label.hex()
        cards.append(one)
    return {
        "device_max": their_monitor.CARDS,
        "device_num": region.device_count,
        "devices": cards,
        "last_kernel_time": region.last_kernel,
        "priority": region.priority,
        "recent_kernel": region.recent,
        "utilization_switch": region.switch,
    }


REGIONS = list(rows(VECTORS / "node-region"))


@pytest.mark.parametrize("row", REGIONS, ids=lambda row: row["id"])
def test_the_monitor_reads_regions_as_hami_s(row: Row) -> None:
    data = content(str(VECTORS), row["id"])
    try:
        region = their_monitor.Region(data, len(data))
    except their_monitor.NotLoadedError:
        assert "error" in row["expect"]
        return
    assert row["expect"] == {"parser": region.layout.parser, "read": described(region)}


@pytest.mark.parametrize("row", list(rows(VECTORS / "node-region/dirs.jsonl")), ids=lambda row: row["id"])
def test_the_monitor_takes_the_file_that_hami_s_takes(row: Row, tmp_path: Path) -> None:
    lay_out(tmp_path / "uid_name", row["files"], str(VECTORS))
    expect = row["expect"]
    try:
        file = their_monitor.file_of(tmp_path / "uid_name")
        if file is not None:
            their_monitor.Region.map(file)
    except (their_monitor.NotLoadedError, IsADirectoryError):
        assert "error" in expect
        return
    regions = {each["name"]: each.get("region") for each in row["files"]}
    assert (regions[file.name] if file is not None else None) == expect.get("loaded_region")


@pytest.mark.parametrize("row", of("node-feedback"), ids=lambda row: row["id"])
def test_the_monitor_writes_the_words_that_hami_s_writes(row: Row) -> None:
    regions = {container["dir"]: made(container) for container in row["containers"]}
    for launches, expected in itertools.zip_longest(row["launch"], row["expect"]["ticks"], fillvalue=[]):
        for name in launches:
            if regions[name].recent >= 0:
                regions[name].recent = 2
        their_monitor.tick(regions.values())
        assert {
            name: {"recent_kernel": region.recent, "utilization_switch": region.switch}
            for name, region in regions.items()
        } == expected


def made(container: dict[str, Any]) -> their_monitor.Region:
    """A region with the words of a vector and no process."""
    size, layout = LAYOUTS[container["layout"]]
    data = bytearray(size)
    struct.pack_into("<iII", data, 0, their_monitor.MAGIC, *((1, 2) if layout is their_monitor.V1 else (0, 0)))
    struct.pack_into("<Q", data, layout.device_count, len(container["uuids"]))
    for card, uuid in enumerate(container["uuids"]):
        struct.pack_into("96s", data, layout.uuids + 96 * card, uuid.encode())
    struct.pack_into("<i", data, layout.priority, container["priority"])
    region = their_monitor.Region(data, size)
    region.recent, region.switch = container["recent_kernel"], container["utilization_switch"]
    return region
