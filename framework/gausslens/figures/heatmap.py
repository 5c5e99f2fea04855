"""A matrix as colours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .drawing import ColourMap, Dial
from .figure import Figure

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True, kw_only=True, eq=False)
class Heatmap(Figure):
    """Values [row, column] as colours: one scale, or with ``centre`` two that diverge from that value (0 for z).

    ``rows`` and ``columns`` are labels, ``row_name`` and ``column_name`` what they are. With ``dials`` the values have
    a leading dimension for each, and the page a slider. NaN is grey: ``missing`` says why a cell has no value.
    """

    values: ArrayLike
    rows: Iterable[Any]
    columns: Iterable[Any]
    row_name: str
    column_name: str
    centre: float | None = None
    dials: tuple[Dial, ...] = ()
    missing: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        values, dials = self._maps(self.values, self.dials)
        self._set("values", values)
        self._set("dials", dials)
        self._set("rows", self._labels("row labels", self.rows, values.shape[-2]))
        self._set("columns", self._labels("column labels", self.columns, values.shape[-1]))

    def drawing(self) -> ColourMap:
        """A map of colours."""
        return ColourMap(
            values=np.asarray(self.values),
            rows=tuple(self.rows),
            columns=tuple(self.columns),
            row_name=self.row_name,
            column_name=self.column_name,
            units=self.written_units,
            centre=self.centre,
            dials=self.dials,
            missing=self.missing,
        )
