"""Rows of cells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .drawing import Cell, TableRows
from .figure import Figure

# With more columns a table needs the whole width of a page.
FEW = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class Table(Figure):
    """Rows of cells: text, numbers, or None for nothing."""

    columns: Iterable[str]
    rows: Iterable[Iterable[Any]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        columns = tuple(str(c) for c in self.columns)
        rows = tuple(tuple(_cell(c) for c in row) for row in self.rows)
        for number, row in enumerate(rows):
            if len(row) != len(columns):
                raise self._bad(f"row {number} has {len(row)} cells for {len(columns)} columns")
        self._set("columns", columns)
        self._set("rows", rows)

    def drawing(self) -> TableRows:
        """The rows."""
        columns = tuple(self.columns)
        return TableRows(columns=columns, rows=tuple(tuple(row) for row in self.rows), wide=len(columns) > FEW)


def _cell(value: Any) -> Cell:
    """A plain Python value, also where numpy's was given."""
    plain = value.item() if isinstance(value, np.generic) else value
    return plain if isinstance(plain, str | int | float | None) else str(plain)
