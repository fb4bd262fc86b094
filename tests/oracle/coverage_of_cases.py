"""What random cases met, so that a run that meets too little fails."""

from __future__ import annotations

from collections import Counter
from typing import Any

Json = dict[str, Any]

REASONS = (
    "AllocatedCardsInsufficientRequest", "CardBlocked", "CardComputeUnitsExhausted", "CardCordoned",
    "CardInsufficientCore", "CardInsufficientMemory", "CardMigReservationUnclear", "CardMigTopologyInfeasible",
    "CardNotHealth", "CardTimeSlicingExhausted", "CardTypeMismatch",
    "CardUuidMismatch", "DeviceTypeNotFound", "ExclusiveDeviceAllocateConflict", "ModeNotFit",
    "NodeInsufficientDevice", "NodeUnregistered", "NumaNotFit", "ResourceQuotaNotFit",
)  # fmt: skip


class Coverage:
    """Counts of outcomes, reasons, policies and steps; each reason must be met."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.selections: dict[str, str] = {}

    def begin(self, case: Json) -> None:
        """The answers that follow are those to a case's steps."""
        self.selections = {family["word"]: family.get("selection", "first") for family in case["families"]}

    def observe(self, step: Json, answer: object) -> None:
        counts = self.counts
        counts[f"step {step['do']}"] += 1
        if not isinstance(answer, dict):
            return
        pod = step["pod"]
        fits = "node" in answer
        word = "fits" if fits else "fits nowhere"
        counts[word] += 1
        for name in self._strategies(pod):
            counts[f"selection {name} {word}"] += 1
        counts[f"policy {pod.get('card_policy', 'spread')!r} {word}"] += 1
        counts[f"node policy {pod.get('node_policy', 'binpack')!r} {word}"] += 1
        if pod.get("numa_bind"):
            counts[f"numa-bind {word}"] += 1
        for reason, _ in answer["tally"]:
            counts[f"reason {reason}"] += 1
        for note in answer.get("notes", ()):
            counts[f"note {note}"] += 1
        if not fits:
            counts["node never fits"] += len(answer["never"])
            counts["node does not fit now"] += len(answer["not_now"])
        elif len(answer["best"]) > 1 and answer["best"][0][1] == answer["best"][1][1]:
            counts["nodes tie for the best score"] += 1

    def _strategies(self, pod: Json) -> set[str]:
        """By which strategies the pod's several cards were chosen."""
        asks = [ask for container in pod["containers"] for ask in container["asks"]]
        return {self.selections.get(ask["vendor"], "first") for ask in asks if ask["count"] > 1}

    def missing(self) -> list[str]:
        wanted = [
            "fits",
            "fits nowhere",
            "node never fits",
            "node does not fit now",
            "nodes tie for the best score",
            "note PairScoresMissing",
            "policy 'fgd' fits",
            "node policy 'fgd' fits",
            *(f"selection {name} {word}" for name in ("groups", "pairs") for word in ("fits", "fits nowhere")),
        ]
        return [name for name in (*wanted, *(f"reason {reason}" for reason in REASONS)) if not self.counts[name]]
