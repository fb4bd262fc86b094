"""Identities that must not be mixed up."""

from __future__ import annotations

from typing import NewType

PodUid = NewType("PodUid", str)
NodeName = NewType("NodeName", str)
CardId = NewType("CardId", str)
AllocationId = NewType("AllocationId", str)
"""UUIDv7 of one reservation and all that follows from it."""
