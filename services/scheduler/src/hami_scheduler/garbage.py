"""Keeps the long-lived objects of a large cluster out of the garbage collector's way."""

from __future__ import annotations

import gc


def collect_rarely() -> None:
    """For a process that fills a large state at its start: little of that is garbage, and looking for it costs."""
    gc.set_threshold(50_000, 20, 50)


def keep_out_of_collections() -> None:
    """To be called when the state is complete: a full collection would stop the loop for all of it again and again."""
    gc.collect()
    gc.freeze()
