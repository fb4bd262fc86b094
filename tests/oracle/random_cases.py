"""Random cases: small clusters, small numbers, short histories, so that boundaries and ties are met often.

A case is the JSON `{"families": [{"word": ..., ...}], "steps": [{"do": ..., ...}, ...]}`. The same seed and number give
the same case.
"""

from __future__ import annotations

from random import Random
from typing import Any

Json = dict[str, Any]

NODES = ("n1", "n2", "n3", "n4")
NAMESPACES = ("red", "blue")
NVIDIA = "NVIDIA"
NVIDIA_FAMILY = {"word": NVIDIA, "model_contains": "nvidia", "partitioned_mode": "mig", "has_pair_scores": True}
DCU = "DCU"
MODELS = ("NVIDIA A100",) * 6 + ("NVIDIA T4",) * 3 + ("nvidia a10", "NVIDIA", "NVIDIA", "Tesla", "DCU")
MODES = ("hami-core",) * 5 + ("mps", "")
CARD_POLICIES = (
    "binpack", "spread", "mutex", "numa", "binpack,numa", "numa,binpack", "spread,numa", "numa,spread,binpack",
    "mutex,binpack", " spread , mutex", "binpack,spread", "", ",", "mutex,numa", "Binpack", "topology-aware",
    "topology-aware", "topology-aware", "binpack,topology-aware", "topology-aware,mutex", "topology-aware,numa",
)  # fmt: skip
PROFILES = (
    ("1g.a", 2, 15, 1, 1, (0, 1, 2, 3)),
    ("2g.b", 4, 29, 2, 2, (0, 2)),
    ("3g.c", 5, 43, 3, 2, (0, 2)),
    ("4g.d", 8, 100, 4, 4, (0,)),
)
"""Name, memory, cores, compute slices, memory slices and starts: a small card of four memory slices."""
GROUPS = ("0", "0", "1", "1", "10", "9", "b", "a")
FEW = (1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 4, 0)
MANY = (1, 2, 2, 2, 3, 4, 4)
"""Cards of one ask."""
NODE_POLICIES = ("binpack", "spread", "", "Spread")
PERCENTS = (0, 1, 33, 34, 50, 67, 99, 100)
CORES = (0, 0, 10, 30, 50, 50, 100, 100, 101, 120)
TOTAL_CORES = (100,) * 6 + (200, 50, 30, 0)


def random_case(seed: int, number: int) -> Json:
    return _Maker(Random(seed * 0x1_0000_0000 + number)).case()  # noqa: S311  # repeatable, not secret


class _Maker:
    """One case in the making."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.nodes: dict[str, list[Json]] = {}
        self.uids: list[str] = []
        self.has_quota = random.random() < 0.3
        self.has_init = random.random() < 0.35
        self.families = self._families()
        self.has_groups = self.families[1].get("selection", "first") != "first"
        self.has_dcu = random.random() < (0.9 if self.has_groups else 0.1)
        self.has_mig = random.random() < 0.15
        self.has_fgd = not self.has_mig and random.random() < 0.15
        self.pod_kind = self._pod_kind()

    def _pod_kind(self) -> set[str]:
        """What this case's pods have besides amounts; few at a time, so that each comes through on its own."""
        kinds = ("policy", "numa", "constraint", "weights", "many", "unknown", "mode")
        chances = (0.6, 0.3, 0.3, 0.15, 0.35, 0.02, 0.1)
        seldom = 0.5 if self.has_groups else 1.0  # several cards of one group are rare enough
        return {kind for kind, chance in zip(kinds, chances, strict=True) if self.random.random() < chance * seldom}

    def _families(self) -> list[Json]:
        """NVIDIA's rules, and another family with any."""
        random = self.random
        other: Json = {"word": DCU}
        if random.random() < 0.3:
            other["whole_card_is_exclusive"] = False
        if random.random() < 0.3:
            other["zero_cores_need_free_cores"] = False
        if random.random() < 0.3:
            other["most_cores_percent"] = random.choice((50, 100, 120))
        if random.random() < 0.3:
            other["model_contains"] = random.choice(("T4", "dcu"))
        if random.random() < 0.2:
            other["selection"] = random.choice(("groups", "groups", "pairs"))
            other.pop("model_contains", None)
            other["group_weight"] = random.choice((0, 10, 10, 1, 0.3))
        return [NVIDIA_FAMILY, other]

    def _vendor(self) -> str:
        return DCU if self.random.random() < self._dcu_part() else NVIDIA

    def _dcu_part(self) -> float:
        if self.has_groups:
            return 0.9
        return 0.4 if self.has_dcu else 0.01

    def case(self) -> Json:
        random = self.random
        steps = [self._set_node(name) for name in NODES[: random.choice((1, 1, 2, 2, 3, 4))]]
        if self.has_quota:
            steps += [self._set_quota() for _ in range(random.choice((1, 1, 2)))]
        if self.has_fgd and random.random() < 0.7:
            steps.append(self._set_workload())
        steps += [self._charge() for _ in range(random.choice((0, 1, 1, 2, 3)))]
        makers = (
            (self._reserve, 8), (self._what_if, 2), (self._explain, 3), (self._charge, 2), (self._release, 2),
            (self._confirm, 1), (self._health, 1), (self._set_node_again, 1), (self._remove_node, 0.5),
            (self._set_quota, 1 if self.has_quota else 0.1), (self._set_workload, 1 if self.has_fgd else 0.0),
        )  # fmt: skip
        for make in random.choices([m for m, _ in makers], [w for _, w in makers], k=random.randint(1, 5)):
            steps.append(make())
        steps.append(self._explain() if random.random() < 0.3 else self._reserve())
        return {"families": self.families, "steps": steps}

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def _set_node(self, name: str) -> Json:
        random = self.random
        count = random.choice((1, 2, 2, 3, 3, 4, 4, 4, 5, 6)) if random.random() < 0.98 else 0
        if self.has_groups:
            count = random.choice((2, 4, 4, 6, 6, 8))
        alike = random.random() < 0.6
        model = random.choice(MODELS)
        memory, cores, slots = self._totals()
        cards = []
        for number in range(count):
            if not alike:
                model = random.choice(MODELS)
                memory, cores, slots = self._totals()
            cards.append(
                {
                    "id": f"{name}-{number}",
                    "vendor": self._vendor(),
                    "model": model,
                    "index": number if random.random() < 0.9 else random.randint(0, 3),
                    "slots": slots,
                    "memory_mib": memory,
                    "cores_percent": cores,
                    "numa": random.choice((0, 0, 1, number % 2, -1)) if random.random() < 0.9 else 0,
                    "mode": random.choice(MODES),
                    "healthy": random.random() < 0.93,
                    "cordoned": random.random() < 0.05,
                }
            )
        if self.has_groups:
            names = random.choice((GROUPS, GROUPS, GROUPS, GROUPS[:2], (*GROUPS, "", ""), (*GROUPS, None)))
            cards = [{**card, "group": random.choice(names)} for card in cards]
        if self.has_mig:
            cards = [self._mig_card(card) if random.random() < 0.6 else card for card in cards]
        if random.random() < 0.2:
            random.shuffle(cards)
        self.nodes[name] = cards
        return {"do": "set_node", "node": name, "cards": cards, **self._pair_scores(cards)}

    def _mig_card(self, card: Json) -> Json:
        random = self.random
        offered = PROFILES if random.random() < 0.7 else random.sample(PROFILES, random.randint(0, 3))
        profiles = [
            {
                "name": name, "memory_mib": memory, "cores_percent": cores, "slice_count": slices,
                "placements": [[start, size] for start in starts],
            }
            for name, memory, cores, slices, size, starts in offered
        ]  # fmt: skip
        memory = random.choice((8, 8, 8, 10, 7))
        return {**card, "mode": "mig", "memory_mib": memory, "slots": random.choice((4, 4, 7, 2)),
                "cores_percent": 100, "mig_profiles": profiles}  # fmt: skip

    def _pair_scores(self, cards: list[Json]) -> Json:
        random = self.random
        if "policy" not in self.pod_kind or random.random() < 0.3:
            return {}
        ids = [card["id"] for card in cards]
        complete = random.random() < 0.5
        scores = {
            card: {
                peer: random.choice((0, 1, 1, 2, 5, 100, -1))
                for peer in ids
                if peer != card and (complete or random.random() < 0.8)
            }
            for card in ids
            if complete or random.random() < 0.9
        }
        return {"pair_scores": scores}

    def _totals(self) -> tuple[int, int, int]:
        random = self.random
        memory = random.choice((7, 8, 10, 10, 15, 33, 100) if random.random() < 0.97 else (0, 2**31, -5))
        return (
            memory,
            random.choice(TOTAL_CORES),
            random.choice((1, 2, 2, 3, 4, 4, 10, 10, 10)) if random.random() < 0.97 else 0,
        )

    def _set_node_again(self) -> Json:
        name = self.random.choice(NODES)
        cards = self.nodes.get(name)
        if cards and self.random.random() < 0.6:
            kept = [{**card, "cordoned": self.random.random() < 0.3} for card in cards]
            if self.random.random() < 0.5:
                self.random.shuffle(kept)
            self.nodes[name] = kept[: self.random.randint(1, len(kept))]
            return {"do": "set_node", "node": name, "cards": self.nodes[name], **self._pair_scores(cards)}
        return self._set_node(name)

    def _remove_node(self) -> Json:
        return {"do": "remove_node", "node": self.random.choice(NODES)}

    def _health(self) -> Json:
        node = self._some_node()
        return {
            "do": "set_card_health",
            "node": node,
            "card_id": self._some_card(node),
            "healthy": self.random.random() < 0.5,
        }

    def _some_node(self) -> str:
        return self.random.choice(list(self.nodes)) if self.random.random() < 0.97 else "n9"

    def _some_card(self, node: str) -> str:
        cards = self.nodes.get(node)
        if cards and self.random.random() < 0.95:
            return str(self.random.choice(cards)["id"])
        return f"{node}-9"

    # ---- quotas and what is booked ---------------------------------------------------------------------------------

    def _set_quota(self) -> Json:
        random = self.random
        step: Json = {"do": "set_quota", "namespace": random.choice(NAMESPACES), "vendor": self._vendor()}
        if random.random() < 0.8:
            step["memory_mib"] = random.choice((0, 3, 5, 8, 10, 12, 15, 20, 40))
        if random.random() < 0.5:
            step["cores_percent"] = random.choice((0, 30, 50, 60, 100, 150, 200))
        return step

    def _set_workload(self) -> Json:
        if self.random.random() < 0.2:
            return {"do": "set_workload", "shapes": None}
        shapes = []
        for _ in range(self.random.choice((1, 2, 3, 3))):
            ask = self._ask(self._vendor())
            shapes.append(
                {"weight": self.random.choice((0, 1, 1, 2, 5, 17)), "ask": {**ask, "count": ask["count"] or 1}}
            )
        return {"do": "set_workload", "shapes": shapes}

    def _charge(self) -> Json:
        random = self.random
        node = self._some_node()
        containers = []
        for kind in self._kinds():
            count = random.choice((0, 1, 1, 1, 2))
            containers.append({"kind": kind, "slices": [self._slice(node) for _ in range(count)]})
        step = {
            "do": "charge",
            "uid": self._uid(new=0.85),
            "namespace": random.choice(NAMESPACES),
            "node": node,
            "containers": containers,
        }
        if random.random() < 0.15:
            step["init_done"] = True
        if random.random() < 0.08:
            step["blocked_cards"] = [self._some_card(node) for _ in range(random.choice((1, 1, 2)))]
        if random.random() < (0.1 if self.has_mig else 0.01):
            claim: Json = {"card_id": self._some_card(node)}
            if random.random() < 0.7:
                claim |= {"profile": "1g.a", "placement": [random.randint(0, 3), 1]}
            step["claims"] = [claim]
        return step

    def _slice(self, node: str) -> Json:
        share = {
            "card_id": self._some_card(node),
            "vendor": self._vendor(),
            "memory_mib": self.random.choice((0, 1, 2, 3, 4, 5, 8, 10)),
            "cores_percent": self.random.choice((0, 0, 10, 20, 50, 70, 100)),
        }
        if not self._is_cut(node, share["card_id"]) if self.random.random() < 0.95 else True:
            return share
        name, memory, cores, _, size, starts = self.random.choice(PROFILES)
        return {**share, "memory_mib": memory, "cores_percent": cores, "profile": name,
                "placement": [self.random.choice(starts), size]}  # fmt: skip

    def _is_cut(self, node: str, card_id: str) -> bool:
        return any(card["id"] == card_id and card["mode"] == "mig" for card in self.nodes.get(node, ()))

    def _uid(self, new: float) -> str:
        if not self.uids or self.random.random() < new:
            self.uids.append(f"p{len(self.uids)}")
            return self.uids[-1]
        return self.random.choice(self.uids)

    def _confirm(self) -> Json:
        return {"do": "confirm", "uid": self._known_uid()}

    def _release(self) -> Json:
        return {"do": "release", "uid": self._known_uid()}

    def _known_uid(self) -> str:
        return self.random.choice(self.uids) if self.uids and self.random.random() < 0.95 else "p99"

    # ---- pods to place ---------------------------------------------------------------------------------------------

    def _reserve(self) -> Json:
        return {"do": "reserve", **self._question(0.85)}

    def _what_if(self) -> Json:
        return {"do": "what_if", **self._question(0.7)}

    def _explain(self) -> Json:
        return {"do": "explain", **self._question(0.7)}

    def _question(self, new: float) -> Json:
        random = self.random
        question: Json = {"pod": self._pod(new)}
        if random.random() < 0.3:
            question["candidates"] = [random.choice((*NODES, "n9")) for _ in range(random.choice((0, 2, 3, 4, 6)))]
        return question

    def _kinds(self) -> list[str]:
        random = self.random
        init = [random.choice(("init", "sidecar")) for _ in range(random.choice((0, 1, 1, 2, 3)))] * self.has_init
        apps = random.choice((1, 1, 2, 3)) if "many" in self.pod_kind else 1
        return [*init, *["app"] * (apps if random.random() < 0.95 else 0)]

    def _pod(self, new: float) -> Json:
        random = self.random
        kind = self.pod_kind
        pod: Json = {
            "uid": self._uid(new),
            "namespace": random.choice(NAMESPACES),
            "containers": [
                {"name": f"c{number}", "kind": found, "asks": self._asks()}
                for number, found in enumerate(self._kinds())
            ],
        }
        if random.random() < 0.6:
            pod["node_policy"] = random.choice(NODE_POLICIES)
        if self.has_fgd and random.random() < 0.6:
            pod["node_policy"] = "fgd"
        if "policy" in kind:
            pod["card_policy"] = random.choice(CARD_POLICIES)
        if self.has_fgd and random.random() < 0.7:
            pod["card_policy"] = random.choice(
                ("fgd", "fgd", "numa,fgd", "fgd,binpack", "fgd,mutex", "fgd,topology-aware")
            )
        if "numa" in kind:
            pod["numa_bind"] = True
        if "constraint" in kind:
            pod["constraints"] = {NVIDIA: self._constraint()}
            if self.has_dcu and random.random() < 0.5:
                pod["constraints"][DCU] = self._constraint()
        if "weights" in kind:
            weights = [random.choice((0, 1, 2, 3, 7, 100)) for _ in range(3)]
            pod["weights"] = weights if any(weights) else [0, 1, 0]
        return pod

    def _asks(self) -> list[Json]:
        random = self.random
        if random.random() < 0.1:
            return []
        vendor = "Nobody" if "unknown" in self.pod_kind and random.random() < 0.5 else self._vendor()
        asks = [self._ask(vendor)]
        if self.has_dcu and random.random() < 0.3:
            asks.append(self._ask(NVIDIA if vendor == DCU else DCU))
        return asks

    def _ask(self, vendor: str) -> Json:
        random = self.random
        ask: Json = {"vendor": vendor, "count": random.choice(MANY if self.has_groups and vendor == DCU else FEW)}
        if random.random() < 0.7:
            ask["memory_mib"] = random.choice((0, 1, 2, 2, 3, 4, 5, 7, 8, 10, 11))
        if random.random() < 0.4:
            ask["memory_percent"] = random.choice(PERCENTS)
        if random.random() < 0.6:
            ask["cores_percent"] = random.choice(CORES)
        if "mode" in self.pod_kind and random.random() < 0.6:
            ask["mode"] = random.choice(MODES)
        return ask

    def _constraint(self) -> Json:
        random = self.random
        rule: Json = {}
        models = ("A100", "t4", "nvidia", "Tesla", "H100", "")
        cards = [card["id"] for cards in self.nodes.values() for card in cards] or ["x"]
        for key, choices, most in (
            ("use_models", models, 2), ("avoid_models", models[:5], 1),
            ("use_ids", cards, 4), ("avoid_ids", cards, 3),
        ):  # fmt: skip
            if random.random() < 0.3:
                rule[key] = [random.choice(choices) for _ in range(random.randint(0, most))]
        if random.random() < 0.2:
            rule["modes"] = random.choice(("hami-core", "mps", "mig,hami-core", "mig", ""))
        return rule
