"""Curves over a common x."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .drawing import Axis, Curve, Plot
from .figure import Figure

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

# 0 is set apart on a logarithmic axis by a factor between these.
CLOSEST, FURTHEST = 2.0, 10.0


@dataclass(frozen=True)
class Line:
    """A curve: its name, its values, its band if there is one. A ``reference`` is drawn behind the others, dashed.

    A ``faint`` one is one of many that are drawn for comparison: thin, behind the others, and in no legend.
    """

    name: str
    y: ArrayLike
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    reference: bool = False
    faint: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Lines(Figure):
    """Curves over a common x. On a logarithmic x, 0 is set apart at the left end where all else is positive."""

    x: ArrayLike
    x_name: str
    series: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        x = self._numbers("x", self.x, 1)
        self._set("x", x)
        self._set("series", tuple(self._line(line, len(x)) for line in self.series))
        if not self.series:
            raise self._bad("it has no series")

    def _line(self, line: Line, count: int) -> Line:
        made = {}
        for what, values in (("y", line.y), ("low", line.low), ("high", line.high)):
            if values is None:
                continue
            made[what] = self._numbers(f"{what} of {line.name!r}", values, 1)
            if len(made[what]) != count:
                raise self._bad(f"{what} of {line.name!r} has {len(made[what])} values, x has {count}")
        if ("low" in made) != ("high" in made):
            raise self._bad(f"{line.name!r} has one side of a band only")
        return Line(str(line.name), made["y"], made.get("low"), made.get("high"), line.reference, line.faint)

    def drawing(self) -> Plot:
        """The curves, each with its band."""
        x = np.asarray(self.x)
        zero = _place_of_zero(x) if self.log_x else None
        across = Axis(self.x_name, self.log_x, whole=bool(np.all(x == np.round(x))), zero=zero)
        units = self.written_units
        curves = tuple(_curve(x, line) for line in self.series)
        return Plot(x=across, y=Axis(units, self.log_y), units=units, curves=curves)


def _curve(x: NDArray[np.float64], line: Line) -> Curve:
    low, high = (None if side is None else np.asarray(side) for side in (line.low, line.high))
    return Curve(line.name, x, np.asarray(line.y), low, high, line.reference, line.faint)


def _place_of_zero(x: NDArray[np.float64]) -> float | None:
    """Where 0 stands on a logarithmic axis: as far left of the smallest value as values are apart; None without 0."""
    positive = np.unique(x[x > 0])
    if (x < 0).any() or not (x == 0).any() or not positive.size:
        return None
    apart = float(np.median(positive[1:] / positive[:-1])) if positive.size > 1 else CLOSEST
    return float(positive[0]) / min(max(apart, CLOSEST), FURTHEST)
