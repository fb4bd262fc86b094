"""Slices that hardware cuts: a card is given whole, or as one of a few templates."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """One size in which a card can be cut."""

    name: str
    memory_mib: int


class CutSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes in which one kind of card is given out."""

    templates: tuple[Template, ...] = ()
    """By memory, the smallest first."""
    whole_card_mib: int = 0
    """What a whole card gives; 0: not known."""
    capacity_mib: int = 0
    """What the card has built in. A request up to it is one for the whole card."""

    def cut_for(self, memory_mib: int) -> Template | None:
        """The smallest size that holds `memory_mib`; the whole card has no name. None: no card is so large."""
        for template in self.templates:
            if memory_mib <= template.memory_mib:
                return template
        if (not self.templates or memory_mib <= self.capacity_mib) and self.whole_card_mib > 0:
            return Template(name="", memory_mib=self.whole_card_mib)
        return None


def cut_sizes(templates: Sequence[Template], *, whole_card_mib: int, capacity_mib: int) -> CutSizes:
    """Sorts the templates."""
    return CutSizes(
        templates=tuple(sorted(templates, key=lambda template: template.memory_mib)),
        whole_card_mib=whole_card_mib,
        capacity_mib=capacity_mib,
    )
