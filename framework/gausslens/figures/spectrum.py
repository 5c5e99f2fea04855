"""Sorted values against their rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .drawing import Axis, Curve, Level, Plot
from .figure import Figure
from .lines import Line


@dataclass(frozen=True, kw_only=True, eq=False)
class Spectrum(Figure):
    """Sorted values (singular values, eigenvalues) against their rank, each series of its own length.

    Give a law as a series with ``reference=True``, and its edges as ``edges``: values above are beyond chance.
    """

    series: tuple[Line, ...]
    edges: tuple[float, float] | None = None
    log_y: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        made = []
        for line in self.series:
            values = self._numbers(f"{line.name!r}", line.y, 1)
            made.append(Line(str(line.name), np.sort(values[~np.isnan(values)])[::-1], reference=line.reference))
        if not made:
            raise self._bad("it has no series")
        self._set("series", tuple(made))
        if self.edges is not None:
            low, high = (float(e) for e in self.edges)
            if not low <= high:
                raise self._bad(f"its edges are {low:g} and {high:g}")
            self._set("edges", (low, high))

    def drawing(self) -> Plot:
        """A curve over rank 1, 2, ... for each series, and the edges of the law as levels."""
        values = [np.asarray(line.y) for line in self.series]
        curves = tuple(
            Curve(line.name, np.arange(1.0, len(y) + 1), y, reference=line.reference)
            for line, y in zip(self.series, values, strict=True)
        )
        edges = self.edges or ()
        levels = (Level(e, f"{side} edge of the law") for e, side in zip(edges, ("lower", "upper"), strict=False))
        return Plot(
            x=Axis("rank", whole=True, holds=(1.0, 2.0)),
            # The law's lower edge may be 0 or far below all values: it must not flatten the picture.
            y=Axis(self.written_units, self.log_y, holds=tuple(edges[1:])),
            units=self.written_units,
            curves=curves,
            levels=tuple(levels),
            points="values of a spectrum",
        )
