"""Ops `fit` and `score_node`: HAMi's steps inside of a decision, asked of the engine as decisions about one node.

What a vector gives from outside is put where the engine looks: the order of the candidates into the cards' NUMA
numbers, with the policy `numa` before the pod's own; the usage into booked pods; cards that a container holds into
copies in a mode of its own, which is all it may use.
"""

from __future__ import annotations

from typing import Any

import hami_engine
import msgspec
from hami_model import kube, register, requests
from hami_model.cards import Card
from hami_model.device_config import DeviceConfig, VendorSettings
from hami_model.ids import CardId
from hami_scheduler.core import engine_values, inventory
from vectors import Row

NODE = "n1"
FLAG = "spread"
"""The card policy of pods whose annotations name none."""


def fit(settings: VendorSettings, given: Row) -> object:
    order = [CardId(card_id) for card_id in given["order"]]
    cards = _cards(settings, given["node"])
    cluster = _cluster(
        settings, [msgspec.structs.replace(cards[card_id], numa=place) for place, card_id in enumerate(order)]
    )
    for card_id, used in given["usage"].items():
        _book(cluster, settings, card_id, used)
    annotations = given["pod_annotations"]
    asked = given["request"]
    request = requests.CardRequest(
        vendor=settings.vendor.word,
        count=asked["nums"],
        memory_mib=asked["mem"],
        memory_percent=asked["mem_percent"] or None,
        cores_percent=asked["cores"],
        soft_split_mode=requests.soft_split_mode(annotations, settings),
    )
    found = cluster.what_if(
        engine_values.pod_ask(
            requests.PodRequest(
                uid="asks",
                namespace="n",
                name="asks",
                containers=(requests.ContainerRequest(name="c0", kind="app", cards=(request,)),),
                node_policy="binpack",
                card_policy=f"numa,{annotations.get('hami.io/gpu-scheduler-policy', FLAG)}",
                constraints={settings.vendor.word: requests.constraint(annotations, settings)},
            )
        ),
        [NODE],
    )
    if isinstance(found, hami_engine.Rejection):
        return {"fit": False, "cards": [], "reason": {**found.not_now(), **found.never()}[NODE]}
    (slices,) = engine_values.slots(found)
    return {
        "fit": True,
        "cards": [
            {
                "idx": cards[held.card_id].index,
                "uuid": held.card_id,
                "type": held.vendor,
                "mem": held.memory_mib,
                "cores": held.cores_percent,
            }
            for held in slices
        ],
        "reason": "",
    }


def score_node(settings: VendorSettings, given: Row) -> float:
    """What cards of one group add to the score of the idle node, which is 0 without them."""
    held = [[CardId(card_id) for card_id in container] for container in given["cards"]]
    cards = _cards(settings, given["node"])
    copies = [
        msgspec.structs.replace(cards[card_id], id=f"c{number}/{card_id}", mode=f"c{number}", healthy=True)
        for number, container in enumerate(held)
        for card_id in container
    ]
    # Which cards are chosen is given: a container gets all cards of its mode.
    placement = msgspec.structs.replace(settings.vendor.placement, selection="first")
    descriptor = msgspec.structs.replace(settings.vendor, placement=placement)
    cluster = _cluster(msgspec.structs.replace(settings, vendor=descriptor), [*cards.values(), *copies])
    word = descriptor.word
    found = cluster.what_if(
        hami_engine.PodAsk(
            uid="asks",
            namespace="n",
            name="asks",
            containers=[
                hami_engine.ContainerAsk(
                    name=f"c{number}",
                    kind="app",
                    asks=[hami_engine.Ask(vendor=word, count=len(container), memory_percent=100, mode=f"c{number}")]
                    if container
                    else [],
                )
                for number, container in enumerate(held)
            ],
            node_policy=given["node_policy"],
        ),
        [NODE],
    )
    assert isinstance(found, hami_engine.Placement), found
    # Under spread the lowest score wins, so the engine takes the gain off.
    return -found.score if given["node_policy"] == "spread" else found.score


def _cards(settings: VendorSettings, node: dict[str, Any]) -> dict[CardId, Card]:
    """By id, in the mode that the node gives them."""
    observed = kube.Node(metadata=kube.Metadata(name=NODE, annotations=node.get("annotations") or {}))
    text = observed.annotations[settings.vendor.register_key]
    found = register.decode(settings.vendor, text)
    return {card.id: card for card in inventory.in_mode(found, inventory.shared_mode(observed, settings))}


def _cluster(settings: VendorSettings, cards: list[Card]) -> hami_engine.Cluster:
    cluster = hami_engine.Cluster(families=engine_values.families(DeviceConfig(vendors=(settings,))))
    cluster.set_node(NODE, [engine_values.card(settings.vendor, card, cordoned=False) for card in cards])
    return cluster


def _book(cluster: hami_engine.Cluster, settings: VendorSettings, card_id: str, used: dict[str, int]) -> None:
    """One pod for the card: a container for each used slot, all memory and cores in the first."""
    shares = [(used["mem"], used["cores"]), *[(0, 0)] * (used["used"] - 1)]
    containers = [
        hami_engine.ContainerSlices(
            kind="app",
            slices=[
                hami_engine.Slice(
                    card_id=card_id, vendor=settings.vendor.word, memory_mib=memory_mib, cores_percent=cores_percent
                )
            ],
        )
        for memory_mib, cores_percent in shares
    ]
    cluster.charge(uid=card_id, namespace="n", node=NODE, containers=containers)
    (booked,) = (card for card in cluster.node_cards(NODE) if card.card_id == card_id)
    found = {"used": booked.used_slots, "mem": booked.used_memory_mib, "cores": booked.used_cores_percent}
    assert found == used, f"{card_id}: {found} booked instead of {used}"
