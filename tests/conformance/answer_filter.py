"""Filter calls over a pod store in memory, with what `--annotate-at=filter` would write."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
from answer_families import TIME_KEYS, configuration
from hami_model import additions, device_config, kube
from hami_model.ids import AllocationId
from hami_model.requests import Policies
from hami_scheduler.core import extender, simulation
from hami_scheduler.core.filter import filter_pod
from hami_scheduler.core.ledger import Ledger
from oracle_check import WitnessedCluster
from vectors import Row

NOW = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
"""A minute after the time that the running pods of the vectors carry."""
ALLOCATION = AllocationId("00000000-0000-7000-8000-000000000000")


def answer(row: Row) -> dict[str, Any]:
    ledger = _ledger(row)
    witness = ledger.cluster = WitnessedCluster(ledger.cluster)
    _deliver_objects(ledger, row)
    if row["config"].get("api") == "nodes":
        return _simulate(ledger, row)
    _register_nodes(ledger, row)
    for earlier in row.get("earlier", []):
        placed = msgspec.convert(earlier, kube.Pod)
        filter_pod(ledger, placed, row["node_names"], allocation_id=ALLOCATION, now=NOW)
    body = json.dumps({"Pod": row["pod"], "Nodes": None, "NodeNames": row["node_names"]})
    arguments = extender.decode_filter(body.encode())
    pod = arguments.pod
    found = filter_pod(ledger, pod, arguments.node_names or [], allocation_id=ALLOCATION, now=NOW)
    result = json.loads(extender.encode(extender.filter_result(found)))
    failed = {**(result["FailedNodes"] or {}), **(result["FailedAndUnresolvableNodes"] or {})}
    booked = ledger.cluster.booked(pod.uid)
    return {
        "node": found.reservation.node if found.reservation is not None else None,
        "node_names": result["NodeNames"],
        "annotations": _changed(found.annotations, pod.annotations),
        "time_annotations": sorted(TIME_KEYS & found.annotations.keys()),
        "labels": _changed(found.labels, pod.labels),
        "failed_nodes": failed,
        "error": result["Error"] or None,
        "scores": found.scores,
        "node_reasons": found.placement.failed_nodes() if found.placement is not None else failed,
        "booked": {
            card_id: {"mem": memory, "cores": cores, "slots": slots}
            for card_id, (memory, cores, slots) in booked.items()
        }
        or None,
        "oracle_questions": witness.questions,
        "oracle_differences": witness.differences,
    }


def _simulate(ledger: Ledger, row: Row) -> dict[str, Any]:
    """A call that carries the nodes themselves. The ledger knows them too, with their pods: that must not matter."""
    _register_nodes(ledger, row)
    nodes = {node["name"]: msgspec.to_builtins(_node(node)) for node in row["nodes"]}
    items = [nodes[name] for name in row["node_names"]]
    body = json.dumps({"Pod": row["pod"], "Nodes": {"metadata": {}, "items": items}, "NodeNames": None})
    arguments = extender.decode_filter(body.encode())
    assert arguments.nodes is not None
    maker = simulation.ClusterMaker(ledger.config, ledger.node_selector)
    found = simulation.begin(ledger, maker, arguments.pod).answer(extender.decode_nodes(arguments.nodes))
    result = json.loads(extender.encode(extender.simulation_result(found, arguments.nodes, row["node_names"])))
    fitting = [node["metadata"]["name"] for node in result["Nodes"]["items"]] if result["Nodes"] else None
    failed = {**(result["FailedNodes"] or {}), **(result["FailedAndUnresolvableNodes"] or {})}
    return {
        "node": fitting[0] if fitting else None,
        "node_names": fitting,
        "annotations": {},
        "labels": {},
        "failed_nodes": failed,
        "error": result["Error"] or None,
        "scores": {},
        "node_reasons": failed,
        "booked": None,
    }


def _changed(written: dict[str, str], before: dict[str, str]) -> dict[str, str]:
    """Without the time, which differs from run to run, and what we add to HAMi's wire."""
    left_out = additions.names("pod-annotation") | TIME_KEYS
    return {key: value for key, value in written.items() if before.get(key) != value and key not in left_out}


def _ledger(row: Row) -> Ledger:
    config = row["config"]
    text = config.get("device_config_yaml")
    selector = config.get("node_label_selector")
    if isinstance(selector, str):
        selector = dict(part.split("=", 1) for part in selector.split(",") if part)
    return Ledger(
        _configuration(row, text),
        Policies(node=config["node_policy"], card=config["gpu_policy"]),
        node_selector=selector,
    )


def _configuration(row: Row, text: str | None) -> device_config.DeviceConfig:
    if "family" in row:
        return configuration(text)
    return device_config.default_config() if text is None else device_config.parse(text)


def _deliver_objects(ledger: Ledger, row: Row) -> None:
    for quota in row["quotas"]:
        ledger.upsert_quota(msgspec.convert(quota, kube.ResourceQuota))
    for pod in row["scheduled"]:
        ledger.upsert_pod(msgspec.convert(pod, kube.Pod), NOW)
    ledger.adopting = False
    for event in row.get("events", []):
        kind, changed = event["type"].split("_")
        if kind == "pod":
            pod = msgspec.convert(event["object"], kube.Pod)
            if changed == "delete":
                ledger.remove_pod(pod.uid)
            else:
                ledger.upsert_pod(pod, NOW)
        elif kind == "quota":
            for gone in [event["object"]] if changed == "delete" else [event["old"]] if changed == "update" else []:
                ledger.remove_quota(gone["metadata"]["namespace"], gone["metadata"]["name"])
            if changed != "delete":
                ledger.upsert_quota(msgspec.convert(event["object"], kube.ResourceQuota))


def _register_nodes(ledger: Ledger, row: Row) -> None:
    """Register passes, then node events with one more pass each. The leader stamps handshakes as passes ask for it."""
    nodes = {node["name"]: node for node in row["nodes"]}
    for _ in range(row["config"].get("register_passes", 1)):
        _pass(ledger, nodes)
    for event in row.get("events", []):
        if not event["type"].startswith("node"):
            continue
        name = event["object"]["name"]
        if event["type"] == "node_delete":
            nodes.pop(name, None)
            ledger.remove_node(name)
            _pass(ledger, nodes)
        else:
            before = nodes.get(name, {}).get("annotations") or {}
            stamps = {key: value for key, value in before.items() if key.startswith("hami.io/node-handshake")}
            updated = {**event["object"], "annotations": {**stamps, **(event["object"].get("annotations") or {})}}
            nodes[name] = updated
            _pass(ledger, nodes)


def _pass(ledger: Ledger, nodes: dict[str, dict[str, Any]]) -> None:
    for name, node in nodes.items():
        change = ledger.upsert_node(_node(node), NOW)
        if change.stamps:
            nodes[name] = {**node, "annotations": {**(node.get("annotations") or {}), **change.stamps}}


def _node(node: dict[str, Any]) -> kube.Node:
    return kube.Node(
        metadata=kube.Metadata(
            name=node["name"], labels=node.get("labels") or {}, annotations=node.get("annotations") or {}
        ),
        status=kube.NodeStatus(allocatable=node.get("allocatable") or {}),
    )
