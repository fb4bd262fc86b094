"""The one rule by which everything here tries again: exponential, jittered, bounded."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from hami_chassis.errors import Transient


class Backoff(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Delay after failure n is `first_seconds * factor ** (n - 1)`, at most `limit_seconds`, less up to half of it."""

    first_seconds: float = 0.2
    factor: float = 2.0
    limit_seconds: float = 15.0

    def delay_seconds(self, failures: int, *, random_unit: Callable[[], float] = random.random) -> float:
        """Delay after that many failures in a row (1 for the first)."""
        exponent = min(max(failures - 1, 0), 64)  # 2**64 is beyond every limit and still a float
        full = min(self.limit_seconds, self.first_seconds * self.factor**exponent)
        return full * (1.0 - 0.5 * random_unit())


DEFAULT_BACKOFF = Backoff()


class Retries:
    """Counts failures in a row and answers the delay before the next try."""

    def __init__(self, backoff: Backoff, *, random_unit: Callable[[], float] = random.random) -> None:
        self._backoff = backoff
        self._random_unit = random_unit
        self.failures = 0

    def succeeded(self) -> None:
        """The next failure counts as the first."""
        self.failures = 0

    def delay_after(self, error: BaseException | None = None) -> float:
        """Counts one failure; never shorter than what the error itself asks for."""
        self.failures += 1
        delay = self._backoff.delay_seconds(self.failures, random_unit=self._random_unit)
        if isinstance(error, Transient) and error.retry_after_seconds is not None:
            return max(delay, error.retry_after_seconds)
        return delay
