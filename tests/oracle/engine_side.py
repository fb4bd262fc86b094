"""Runs the steps of a case on the engine. Answers are plain values, comparable with those of `oracle_side`."""

from __future__ import annotations

from typing import Any

import hami_engine as engine

Json = dict[str, Any]


class EngineSide:
    """One case's cluster."""

    def __init__(self, families: list[Json]) -> None:
        self.cluster = engine.Cluster(families=[engine.Family(**family) for family in families])
        self._uids: dict[str, None] = {}
        self._quota_keys: set[tuple[str, str]] = set()

    def do(self, step: Json) -> object:
        return getattr(self, f"_{step['do']}")(step)

    def _set_node(self, step: Json) -> None:
        cards = [_card(card) for card in step["cards"]]
        self.cluster.set_node(step["node"], cards, pair_scores=step.get("pair_scores", {}))

    def _remove_node(self, step: Json) -> bool:
        return self.cluster.remove_node(step["node"])

    def _set_card_health(self, step: Json) -> bool:
        return self.cluster.set_card_health(step["node"], step["card_id"], step["healthy"])

    def _set_quota(self, step: Json) -> None:
        self.cluster.set_quota(
            step["namespace"],
            step["vendor"],
            memory_mib=step.get("memory_mib"),
            cores_percent=step.get("cores_percent"),
        )

    def _set_workload(self, step: Json) -> None:
        shapes = step["shapes"]
        self.cluster.set_workload(
            shapes
            and [engine.WorkloadShape(weight=shape["weight"], ask=engine.Ask(**shape["ask"])) for shape in shapes]
        )

    def _charge(self, step: Json) -> None:
        self._uids[step["uid"]] = None
        for container in step["containers"]:
            self._quota_keys.update((step["namespace"], share["vendor"]) for share in container["slices"])
        self.cluster.charge(
            uid=step["uid"],
            namespace=step["namespace"],
            node=step["node"],
            containers=[
                engine.ContainerSlices(kind=container["kind"], slices=[_slice(share) for share in container["slices"]])
                for container in step["containers"]
            ],
            init_done=step.get("init_done", False),
            blocked_cards=step.get("blocked_cards", []),
            claims=[engine.MigClaim(**_with_place(claim)) for claim in step.get("claims", [])],
        )

    def _confirm(self, step: Json) -> bool:
        return self.cluster.confirm(step["uid"])

    def _release(self, step: Json) -> bool:
        return self.cluster.release(step["uid"])

    def _reserve(self, step: Json) -> object:
        pod = step["pod"]
        self._uids[pod["uid"]] = None
        for container in pod["containers"]:
            self._quota_keys.update((pod["namespace"], ask["vendor"]) for ask in container["asks"])
        return placement_of(self.cluster.reserve(pod_ask(pod), step.get("candidates")))

    def _what_if(self, step: Json) -> object:
        return placement_of(self.cluster.what_if(pod_ask(step["pod"]), step.get("candidates")))

    def _explain(self, step: Json) -> object:
        told = self.cluster.explain(pod_ask(step["pod"]), step.get("candidates"), searched=0)
        return [_verdict(found) for found in sorted(told.nodes, key=lambda found: found.node)]

    def state(self) -> Json:
        """Everything the cluster holds, and what it finds wrong with itself."""
        cluster = self.cluster
        nodes = {
            name: [
                (
                    card.card_id,
                    card.healthy,
                    card.cordoned,
                    card.blocked,
                    (card.used_memory_mib, card.used_cores_percent, card.used_slots),
                )
                for card in cluster.node_cards(name)
            ]
            for name in cluster.nodes()
        }
        pods = {}
        for uid in self._uids:
            booking = cluster.booking(uid)
            if booking is not None:
                held = cluster.booked(uid)
                pods[uid] = (booking.node, booking.namespace, booking.state, sorted(held.items()))
        quotas = {f"{key[0]}/{key[1]}": cluster.quota_used(*key) for key in self._quota_keys}
        return {"nodes": nodes, "pods": pods, "quotas": quotas, "faults": cluster.check_invariants()}


def _card(card: Json) -> engine.Card:
    if "mig_profiles" not in card:
        return engine.Card(**card)
    profiles = [
        engine.MigProfile(**{**profile, "placements": [tuple(place) for place in profile["placements"]]})
        for profile in card["mig_profiles"]
    ]
    return engine.Card(**{**card, "mig_profiles": profiles})


def _with_place(found: Json) -> Json:
    place = found.get("placement")
    return found if place is None else {**found, "placement": tuple(place)}


def _slice(share: Json) -> engine.Slice:
    return engine.Slice(**_with_place(share))


def pod_ask(pod: Json) -> engine.PodAsk:
    return engine.PodAsk(
        uid=pod["uid"],
        namespace=pod["namespace"],
        name=pod["uid"],
        containers=[
            engine.ContainerAsk(
                name=container["name"],
                kind=container["kind"],
                asks=[engine.Ask(**ask) for ask in container["asks"]],
            )
            for container in pod["containers"]
        ],
        node_policy=pod.get("node_policy", "binpack"),
        card_policy=pod.get("card_policy", "spread"),
        numa_bind=pod.get("numa_bind", False),
        constraints={vendor: engine.CardConstraint(**rule) for vendor, rule in pod.get("constraints", {}).items()},
        weights=tuple(pod.get("weights", (1, 1, 1))),
    )


def placement_of(found: engine.Placement | engine.Rejection) -> Json:
    """An answer as plain values."""
    answer: dict[str, Any] = {"tally": found.tally(), "candidates": found.candidate_nodes}
    if isinstance(found, engine.Rejection):
        return {**answer, "not_now": found.not_now(), "never": found.never()}
    return {
        **answer,
        "node": found.node,
        "score": found.score,
        "shares": [
            [(s.card_id, s.vendor, s.memory_mib, s.cores_percent, s.profile, s.placement) for s in shares]
            for shares in found.containers
        ],
        "scores": found.node_scores(),
        "best": found.best_scores,
        "failed": found.failed_nodes(),
        "notes": sorted(found.notes),
    }


def _verdict(found: engine.NodeVerdict) -> Json:
    return {
        "node": found.node,
        "fits": found.fits,
        "never": found.never,
        "score": found.score,
        "container": found.container,
        "reason": found.reason,
        "cards": [(card.card_id, card.code) for card in found.cards if card.looked_at],
        "notes": sorted(found.notes),
    }
