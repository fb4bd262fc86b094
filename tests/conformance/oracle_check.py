"""Asks the oracle (tests/oracle) what the engine was asked, so that rows which HAMi's answer does not decide are
checked too. It takes the state from a snapshot of the engine and computes everything else anew."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import hami_engine as engine

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "oracle"))

from comparing import Difference  # modules beside each other, no package
from engine_side import placement_of
from oracle_side import OracleSide

Json = dict[str, Any]


class WitnessedCluster:
    """The ledger's cluster; what it answers to `reserve` is compared with the oracle's answer."""

    def __init__(self, cluster: engine.Cluster) -> None:
        self._cluster = cluster
        self.questions = 0
        self.differences: list[str] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._cluster, name)

    def reserve(
        self, pod: engine.PodAsk, candidates: Sequence[str] | None = None
    ) -> engine.Placement | engine.Rejection:
        state = json.loads(self._cluster.snapshot(questions=[(pod, candidates)]))
        found = self._cluster.reserve(pod, candidates)
        expected = oracle_answer(state)
        if expected is not None:
            self.questions += 1
            if expected != (got := placement_of(found)):
                self.differences.append(str(Difference(0, expected, got)))
        return found


def oracle_answer(snapshot: Json) -> object:
    """To the last question of a snapshot. None: it looks at what the oracle does not model."""
    oracle = OracleSide(snapshot["families"])
    for node in snapshot["nodes"]:
        pair_scores = node.get("pair_scores", {})
        oracle.do({"do": "set_node", "node": node["name"], "cards": node["cards"], "pair_scores": pair_scores})
    for quota in snapshot["quotas"]:
        oracle.do({"do": "set_quota", **quota})
    for booking in snapshot["bookings"]:
        oracle.do(_charge(booking))
    question = snapshot["operations"][-1]["what_if"]
    pod = question["pod"]
    weights = pod["weights"]
    asked = {
        **pod,
        "constraints": dict(pod["constraints"]),
        "weights": (weights["slots"], weights["cores"], weights["memory"]),
    }
    return oracle.do({"do": "reserve", "pod": asked, "candidates": question["candidates"]})


def _without(values: Json, *names: str) -> Json:
    return {name: value for name, value in values.items() if name not in names}


def _charge(booking: Json) -> Json:
    containers = [
        {"kind": kind, "slices": [_placed(_without(share, "container", "kind")) for share in shares]}
        for (_, kind), shares in groupby(booking["shares"], lambda share: (share["container"], share["kind"]))
    ]
    claims = [_placed(claim) for claim in booking.get("claims", [])]
    return {
        "do": "charge",
        **_without(booking, "shares", "state", "claims"),
        "containers": containers,
        "claims": claims,
    }


def _placed(share: Json) -> Json:
    instance = share.get("instance") or {}
    return {**_without(share, "instance"), **_without(instance)}
