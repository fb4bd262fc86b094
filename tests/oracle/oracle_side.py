"""Runs the steps of a case on the oracle. Answers are plain values, comparable with those of `engine_side`."""

from __future__ import annotations

from typing import Any

from oracle_model.cluster import Answer, Cluster, Verdict
from oracle_model.usage import Amount, effective_usage, plus
from oracle_model.values import Ask, Family, Json, Shape, read_charge, read_node, read_pod


class OracleSide:
    """One case's cluster."""

    def __init__(self, families: list[Json]) -> None:
        self.cluster = Cluster(Family(**family) for family in families)

    def do(self, step: Json) -> object:
        return getattr(self, f"_{step['do']}")(step)

    def _set_node(self, step: Json) -> None:
        self.cluster.nodes[step["node"]] = read_node(step)

    def _remove_node(self, step: Json) -> bool:
        return self.cluster.nodes.pop(step["node"], None) is not None

    def _set_card_health(self, step: Json) -> bool:
        return self.cluster.set_card_health(step["node"], step["card_id"], healthy=step["healthy"])

    def _set_quota(self, step: Json) -> None:
        limits = (step.get("memory_mib"), step.get("cores_percent"))
        self.cluster.limits[step["namespace"], step["vendor"]] = limits

    def _set_workload(self, step: Json) -> None:
        shapes = step["shapes"]
        self.cluster.workload = shapes and [Shape(shape["weight"], Ask(**shape["ask"])) for shape in shapes]

    def _charge(self, step: Json) -> None:
        booking = read_charge(step)
        self.cluster.bookings[booking.uid] = booking

    def _confirm(self, step: Json) -> bool:
        return self.cluster.confirm(step["uid"])

    def _release(self, step: Json) -> bool:
        return self.cluster.bookings.pop(step["uid"], None) is not None

    def _reserve(self, step: Json) -> object:
        return _answer(self.cluster.reserve(read_pod(step["pod"]), step.get("candidates")))

    def _what_if(self, step: Json) -> object:
        return _answer(self.cluster.what_if(read_pod(step["pod"]), step.get("candidates")))

    def _explain(self, step: Json) -> object:
        return [_verdict(found) for found in self.cluster.explain(read_pod(step["pod"]), step.get("candidates"))]

    def state(self) -> Json:
        """Everything the cluster holds."""
        cluster = self.cluster
        nodes = {}
        for name, (cards, _) in cluster.nodes.items():
            used, blocked = cluster.used(name), cluster.blocked(name) | cluster.unclear(name)
            nodes[name] = [
                (card.id, card.healthy, card.cordoned, card.id in blocked, tuple(used.get(card.id, Amount())))
                for card in cards
            ]
        pods = {}
        for uid, booking in cluster.bookings.items():
            usage = effective_usage(booking.containers, init_done=booking.init_done)
            pods[uid] = (booking.node, booking.namespace, booking.state, _by_card(usage))
        keys = {(b.namespace, share.vendor) for b in cluster.bookings.values() for _, s in b.containers for share in s}
        quotas = {f"{space}/{vendor}": cluster.quota_used(space, vendor)[:2] for space, vendor in keys}
        return {"nodes": nodes, "pods": pods, "quotas": quotas, "faults": []}


def _by_card(usage: dict[tuple[str, str], Amount]) -> list[tuple[str, tuple[int, ...]]]:
    held: dict[str, Amount] = {}
    for (card_id, _), amount in usage.items():
        held[card_id] = plus(held.get(card_id, Amount()), amount)
    return sorted((card_id, tuple(amount)) for card_id, amount in held.items())


def _answer(found: Answer) -> Json:
    answer: dict[str, Any] = {"tally": sorted(found.tally.items()), "candidates": found.candidates}
    if found.node is None:
        return {**answer, "not_now": found.not_now, "never": found.never}
    return {
        **answer,
        "node": found.node,
        "score": found.score,
        "shares": [[tuple(share) for share in shares] for shares in found.shares],
        "scores": found.scores,
        "best": found.best,
        "failed": found.not_now,
        "notes": sorted(found.notes),
    }


def _verdict(found: Verdict) -> Json:
    outcome = found.outcome
    if outcome is None:
        return {"node": found.node, "fits": False, "never": False, "score": None, "container": None,
                "reason": "node unregistered", "cards": [], "notes": []}  # fmt: skip
    fits = outcome.text is None
    return {
        "node": found.node,
        "fits": fits,
        "never": found.never,
        "score": found.score if fits else None,
        "container": outcome.container,
        "reason": outcome.text or "",
        "cards": list(outcome.looks),
        "notes": sorted(outcome.notes),
    }
