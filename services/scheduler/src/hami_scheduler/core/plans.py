"""Where pods would go: placed one after another on a copy of the state, on which some pods may have ended before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import hami_engine as engine
import msgspec
from hami_model import kube, requests
from hami_model.errors import HamiError

from hami_scheduler.core import engine_values, explanations
from hami_scheduler.core.ledger import Ledger
from hami_scheduler.core.queries import PODS_MAX, HeldSlice, Question

EXPLAINED_MAX: Final = 10
_SEARCHED: Final = 8


class WhatIfQuestion(Question, frozen=True):
    pods: list[kube.Pod]
    """To be placed in this order, on a copy of the present state; at most 500."""
    nodes: list[str] | None = None
    """Only on these nodes; null: on all."""
    remove: tuple[str, ...] = ()
    """UIDs of pods that end before."""


class WhatIfPlacement(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    node: str = ""
    """Empty: it fits nowhere."""
    slices: list[HeldSlice] = []
    reasons: dict[str, int] = {}
    problem: str = ""
    """The request itself is invalid."""
    sentence: str = ""
    """Why it fits nowhere and what would help; for the first ten such pods."""


class WhatIfAnswer(msgspec.Struct, frozen=True, kw_only=True):
    pods: list[WhatIfPlacement]
    removed: list[str] = []
    """Of the UIDs to remove, those that held something."""


def what_if(ledger: Ledger, asked: WhatIfQuestion) -> WhatIfAnswer:
    """Tries out; the present state stays as it is."""
    copy = ledger.cluster.copy()
    removed = [uid for uid in asked.remove if copy.release(uid)]
    return WhatIfAnswer(pods=list(_placements(copy, ledger, asked)), removed=removed)


def _placements(copy: engine.Cluster, ledger: Ledger, asked: WhatIfQuestion) -> Iterable[WhatIfPlacement]:
    explained = 0
    planned: dict[str, str] = {}
    for position, pod in enumerate(asked.pods[:PODS_MAX]):
        named = WhatIfPlacement(namespace=pod.metadata.namespace, name=pod.metadata.name)
        try:
            request = requests.pod_request(pod, ledger.config, ledger.policies)
        except HamiError as error:
            yield msgspec.structs.replace(named, problem=str(error))
            continue
        request = msgspec.structs.replace(request, uid=request.uid or f"what-if-{position}")
        ask = engine_values.pod_ask(request)
        placed = copy.reserve(ask, asked.nodes)
        if isinstance(placed, engine.Rejection):
            sentence = _sentence(copy, ledger, asked, ask, planned) if explained < EXPLAINED_MAX else ""
            explained += 1
            yield msgspec.structs.replace(named, reasons=dict(placed.tally()), sentence=sentence)
            continue
        planned[request.uid] = pod.key
        yield msgspec.structs.replace(
            named,
            node=placed.node,
            slices=[
                HeldSlice(
                    container=container.name,
                    card_id=given.card_id,
                    vendor=given.vendor,
                    memory_mib=given.memory_mib,
                    cores_percent=given.cores_percent,
                    profile=given.profile,
                    placement=given.placement,
                )
                for container, slot in zip(request.containers, engine_values.slots(placed), strict=True)
                for given in slot
            ],
        )


def _sentence(
    copy: engine.Cluster, ledger: Ledger, asked: WhatIfQuestion, ask: engine.PodAsk, planned: dict[str, str]
) -> str:
    told = copy.explain(ask, asked.nodes, limit=1, searched=_SEARCHED)
    uids = {uid for node in told.nodes for found in node.changes for uid in found.pods}
    known = explanations.names_of(explanations.named_pod(ledger, uid) for uid in uids)
    return told.sentence({**known, **planned})
