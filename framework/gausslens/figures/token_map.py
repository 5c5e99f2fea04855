"""Attention, or any values, beside the tokens that they belong to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .drawing import ColourMap, Dial
from .figure import Figure

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# With more tokens a map needs the whole width of a page.
TOKENS = 32


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenMap(Figure):
    """An attention map, or any values [dial, ..., query, key], beside its tokens, shown as text whatever they hold.

    With a dial called ``head`` the page shows all heads beside each other, and the one that is chosen large.
    """

    values: ArrayLike
    queries: Iterable[str]
    keys: Iterable[str]
    centre: float | None = None
    dials: tuple[Dial, ...] = ()
    missing: str = "what the query cannot see"

    def __post_init__(self) -> None:
        super().__post_init__()
        values, dials = self._maps(self.values, self.dials)
        self._set("values", values)
        self._set("dials", dials)
        self._set("queries", self._labels("query tokens", self.queries, values.shape[-2]))
        self._set("keys", self._labels("key tokens", self.keys, values.shape[-1]))

    def drawing(self) -> ColourMap:
        """A map of colours with tokens as labels, whose white space is seen."""
        queries, keys = (tuple(_visible(token) for token in side) for side in (self.queries, self.keys))
        return ColourMap(
            values=np.asarray(self.values),
            rows=queries,
            columns=keys,
            row_name="query",
            column_name="key",
            units=self.written_units,
            centre=self.centre,
            dials=self.dials,
            shares=True,
            missing=self.missing,
            wide=len(keys) > TOKENS or any(dial.name == "head" for dial in self.dials),
        )


def _visible(token: str) -> str:
    return token.replace("\n", "↵").replace("\t", "⇥").replace(" ", "·") or "∅"
