"""What the webhook needs from outside, as it needs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hami_webhook.core.quota import NamespaceQuota


class QuotaSource(Protocol):
    """The account of a namespace."""

    def view(self, namespace: str) -> NamespaceQuota | None:
        """As last seen; None while it is not known."""
        ...

    async def look(self, namespace: str) -> NamespaceQuota | None:
        """As the API server says now; None where it does not say in time."""
        ...


class EventSink(Protocol):
    """Takes events for the bus. Never waits and never fails: what cannot be kept is counted by the sink."""

    def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None: ...
