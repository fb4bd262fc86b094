"""Which cards the leading scheduler has in its book, asked over NATS."""

from __future__ import annotations

import msgspec
import nats.errors
from hami_model.events import subjects

from hami_sim.cluster.usage_samples import connect

NODES_PER_PAGE = 100
ANSWER_SECONDS = 5.0


class SchedulerSilentError(Exception):
    """No scheduler answers."""


class _Card(msgspec.Struct, frozen=True):
    card_id: str
    healthy: bool


class _Node(msgspec.Struct, frozen=True):
    node: str
    cards: list[_Card]


class _Page(msgspec.Struct, frozen=True):
    nodes: list[_Node]
    more: bool


async def cards_in_book(url: str) -> set[str]:
    """Ids of the cards that pods can be given. Raises SchedulerSilentError."""
    found: set[str] = set()
    try:
        client = await connect(url)
        try:
            after, more = "", True
            while more:
                question = msgspec.json.encode({"after": after, "limit": NODES_PER_PAGE})
                reply = await client.request(subjects.query("state"), question, timeout=ANSWER_SECONDS)
                page = msgspec.json.decode(reply.data, type=_Page)
                found |= {card.card_id for node in page.nodes for card in node.cards if card.healthy}
                after, more = (page.nodes[-1].node if page.nodes else ""), page.more and bool(page.nodes)
        finally:
            await client.close()
    except (nats.errors.Error, OSError, TimeoutError) as error:
        raise SchedulerSilentError(f"{url}: {str(error) or type(error).__name__}") from error
    except msgspec.DecodeError as error:
        raise SchedulerSilentError(f"{url}: the scheduler's answer is not understood ({error})") from error
    return found
