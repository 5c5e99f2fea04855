"""A matrix of categories: what each cell is, never how much."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .drawing import ColourMap, Dial
from .figure import Figure

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class CategoryMap(Figure):
    """Words [row, column], each a colour and its first letters: the family of each head, or what explains its number.

    ``values`` are words of ``categories``, in whose order they are listed; "" is none of them, and ``missing`` says
    what such a cell is. With ``dials`` the values have a leading dimension for each, and the page a slider.
    """

    values: ArrayLike
    categories: Iterable[str]
    rows: Iterable[Any]
    columns: Iterable[Any]
    row_name: str
    column_name: str
    missing: str = ""
    dials: tuple[Dial, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        categories = tuple(str(name) for name in self.categories)
        words = np.asarray(self.values).astype(str)
        unknown = sorted(set(words.ravel().tolist()) - {*categories, ""})
        if unknown:
            raise self._bad(f"{unknown[0]!r} is none of its categories ({', '.join(categories)})")
        self._set("categories", categories)
        self._set("values", words)
        numbers, dials = self._maps(self._places(), self.dials)
        self._set("dials", dials)
        self._set("rows", self._labels("row labels", self.rows, numbers.shape[-2]))
        self._set("columns", self._labels("column labels", self.columns, numbers.shape[-1]))

    def _places(self) -> NDArray[np.float64]:
        """The number of each cell's category, NaN for none."""
        words = np.asarray(self.values)
        places = np.full(words.shape, np.nan)
        for number, name in enumerate(self.categories):
            places[words == name] = number
        return places

    def drawing(self) -> ColourMap:
        """A map of colours, one for each category."""
        return ColourMap(
            values=self._places(),
            rows=tuple(self.rows),
            columns=tuple(self.columns),
            row_name=self.row_name,
            column_name=self.column_name,
            dials=self.dials,
            categories=tuple(self.categories),
            missing=self.missing,
        )
