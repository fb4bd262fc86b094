"""What would have placed a rejected pod: the smallest change, as one sentence for events."""

from __future__ import annotations

from typing import Final

import hami_engine as engine
import msgspec
from hami_model.requests import PodRequest

from hami_scheduler.core import engine_values, explanations
from hami_scheduler.core.ledger import Ledger

SENTENCE_MAX: Final = 900
"""Characters: a Kubernetes Event holds 1,024."""
_SEARCHED: Final = 8


class Looked(msgspec.Struct, frozen=True):
    """What was found for one pod."""

    told: engine.Explanation

    def sentence(self, ledger: Ledger) -> str:
        """Empty where the pod fits by now."""
        if self.told.fitting_nodes:
            return ""
        changes = [found for node in self.told.nodes for found in node.changes]
        pods = {uid for found in changes for uid in found.pods}
        names = explanations.names_of(explanations.named_pod(ledger, uid) for uid in pods)
        text = self.told.sentence(names)
        return text if len(text) <= SENTENCE_MAX else f"{text[: SENTENCE_MAX - 1]}…"


class Case(msgspec.Struct, frozen=True):
    """A pod that was rejected."""

    request: PodRequest
    candidates: tuple[str, ...]

    def look(self, cluster: engine.Cluster) -> Looked:
        """May run in any thread."""
        ask = engine_values.pod_ask(self.request)
        return Looked(cluster.explain(ask, list(self.candidates), limit=1, searched=_SEARCHED))
