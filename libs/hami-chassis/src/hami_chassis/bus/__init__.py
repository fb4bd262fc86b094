"""NATS: publish through an outbox, subscribe, consume durably, answer queries.

Nothing here blocks the caller or ends the process because NATS is away, at start or later.
"""

from hami_chassis.bus.connection import Bus
from hami_chassis.bus.consumers import DurableConsumer
from hami_chassis.bus.messages import Message, Reply
from hami_chassis.bus.outbox import Outbox, Outgoing
from hami_chassis.bus.queries import Endpoint, MicroService, Serving
from hami_chassis.bus.seen import SeenIds
from hami_chassis.bus.settings import BusSettings
from hami_chassis.bus.streams import Stream

__all__ = [
    "Bus",
    "BusSettings",
    "DurableConsumer",
    "Endpoint",
    "Message",
    "MicroService",
    "Outbox",
    "Outgoing",
    "Reply",
    "SeenIds",
    "Serving",
    "Stream",
]
