"""One-shot init containers that run again, as after a reboot of the node, when what they held went to others.

Once a pod's one-shot init containers have ended, the scheduler gives away what only they needed. With a new sandbox
they run once more: they wait until that is free again, and nobody else loses a card for them. Of several pods in this
state each goes when there is room beside those that went before it, so they cannot block each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hami_model import kube
from hami_model.cards import Card
from hami_model.ids import CardId
from hami_model.usage import CardUsage

from hami_node_agent.core.entitlement import Claim, kubelet_uid, shortage


def is_one_shot_init(pod: kube.Pod, container: str) -> bool:
    return any(found.name == container and not found.is_sidecar for found in pod.init_containers)


def is_init_s_turn(pod: kube.Pod, containers: Collection[str]) -> bool:
    """Whether a one-shot init container may be starting: kubelet names none, and gives its ids to others as well.

    A status that shows the others at work is older than the question, and kubelet asks again when it is newer.
    """
    if not pod.one_shot_init_done or all(is_one_shot_init(pod, name) for name in containers):
        return True
    return any(
        status.name in containers and status.state is not None and status.state.running is not None
        for status in pod.status.container_statuses or []
    )


class RunningAgain:
    """Pods whose init containers were let through once more, until their status shows that these ended."""

    def __init__(self) -> None:
        self._since: dict[str, kube.Pod] = {}
        """By UID: the pod as it was known then."""

    def let_through(self, pod: kube.Pod) -> None:
        self._since.setdefault(kubelet_uid(pod), pod)

    def forget(self, uid: str) -> None:
        self._since.pop(uid, None)

    def among(self, pods: Iterable[kube.Pod]) -> frozenset[str]:
        """UIDs of those that need their larger part now."""
        found = set()
        for pod in pods:
            uid = kubelet_uid(pod)
            if uid in self._since and _is_over(pod, self._since[uid]):
                del self._since[uid]
            if uid in self._since or _init_runs(pod):
                found.add(uid)
        return frozenset(found)


def _is_over(pod: kube.Pod, before: kube.Pod) -> bool:
    """Whether the status is of the present sandbox, and past the init containers."""
    if not pod.one_shot_init_done or pod.metadata.resource_version == before.metadata.resource_version:
        return False
    apps = pod.status.container_statuses or []
    began = any(status.state is not None and status.state.running is not None for status in apps)
    return began or _init_ids(pod) != _init_ids(before)


def _init_ids(pod: kube.Pod) -> frozenset[tuple[str, str]]:
    return frozenset((status.name, status.container_id) for status in pod.status.init_container_statuses or [])


def _init_runs(pod: kube.Pod) -> bool:
    return any(
        status.state is not None and status.state.running is not None and is_one_shot_init(pod, status.name)
        for status in pod.status.init_container_statuses or []
    )


def no_room(
    uid: str,
    wanted: Mapping[CardId, CardUsage],
    others: Iterable[Claim],
    running_again: Collection[str],
    known_cards: Mapping[CardId, Card],
) -> str:
    """Why `wanted`, of the pod of that UID, must wait; empty where it fits beside what was handed to others.

    `running_again`: UIDs of pods whose init containers are at work again, and need their larger part now.
    """
    needed: dict[CardId, list[CardUsage]] = {}
    for other in others:
        if other.uid == uid or not other.handed_out:
            continue
        larger = other.with_init if other.uid in running_again else None
        for card_id, used in (larger or other.usage).items():
            needed.setdefault(card_id, []).append(used)
    for card_id, used in wanted.items():
        card = known_cards.get(card_id)
        lacking = shortage(card, sum(needed.get(card_id, ()), start=used)) if card is not None else ""
        if lacking:
            return (
                f"card {card_id} has {lacking} would be in use while init containers run again, as after a new "
                "sandbox of their pod; this one starts when there is room"
            )
    return ""
