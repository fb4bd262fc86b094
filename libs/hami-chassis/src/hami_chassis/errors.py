"""What an error tells its reader to do.

    ChassisError
      Transient      try again, not before `retry_after_seconds`
        OutcomeUnknown   a write may or may not have happened: read the truth before trying again
      Permanent      trying the same again cannot succeed; the message says what to change

Anything else that is raised is a defect of ours and ends the process.
"""

from __future__ import annotations


class ChassisError(Exception):
    """Breakage outside of this process."""


class Transient(ChassisError):  # noqa: N818  # named by what the reader does about it
    """Trying again later may succeed."""

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class OutcomeUnknown(Transient):
    """A write was sent and no answer came: it may have happened."""


class Permanent(ChassisError):  # noqa: N818
    """Trying the same again cannot succeed."""
