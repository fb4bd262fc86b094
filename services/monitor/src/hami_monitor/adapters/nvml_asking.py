"""Asking the driver: a query that fails is counted, and costs its own value only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

import pynvml

_NO_FAILURE: Final = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NOT_FOUND,
)
"""What the card or an older driver does not have, and that no process ran."""

Found = TypeVar("Found")


class Asking:
    """The queries of one reading."""

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        """By query."""

    def __call__(self, query: str, ask: Callable[[], Found]) -> Found | None:
        """None where the driver does not answer."""
        try:
            return ask()
        except pynvml.NVMLError as error:
            self.count(query, error)
            return None

    def count(self, query: str, error: pynvml.NVMLError) -> None:
        if error.value not in _NO_FAILURE:
            self.failures[query] += 1


def text(answer: str | bytes) -> str:
    """Older bindings answer with bytes."""
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer
