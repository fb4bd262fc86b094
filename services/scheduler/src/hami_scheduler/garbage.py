"""Keeps the long-lived objects of a large cluster out of the garbage collector's way."""

from __future__ import annotations

import gc


def keep_out_of_collections() -> None:
    """To be called when the state is complete: a full collection would stop the loop for all of it again and again."""
    gc.collect()
    gc.freeze()
