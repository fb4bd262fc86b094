"""The limits page as a table for readers: offsets, types, meanings. ARCHITECTURE.md holds it."""

from __future__ import annotations

from collections.abc import Iterator

from hami_model.limits_page import layout


def render() -> str:
    """A markdown table; a card's fields stand below `cards`, by their offset in the card."""
    return "\n".join(["| offset | type | field | meaning |", "|---|---|---|---|", *_rows(layout.PAGE, "")]) + "\n"


def _rows(record: layout.Record, prefix: str) -> Iterator[str]:
    for field in record.fields:
        kind = f"{field.kind}[{field.count}]" if field.count > 1 else field.kind
        live = " (live)" if field.live else ""
        yield f"| {prefix}{field.offset} | {kind} | `{field.name}`{live} | {field.doc} |"
        if field.kind == layout.CARD.name:
            yield from _rows(layout.CARD, "+ ")
