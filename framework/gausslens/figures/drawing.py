"""What there is to draw, as data: each kind of figure says it in these words, the page and matplotlib know no others.

A drawing holds all values. Who draws it chooses sizes, colours, ticks and how much of it there is room for, and escapes
its texts. There are six: ``Plot`` (values against values), ``Plots`` (several of them, under sliders), ``ColourMap``
(a matrix as colours), ``TableRows``, ``Passages`` (texts side by side) and ``View`` (what a module of a plugin draws).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Cell: TypeAlias = str | int | float | None
Values: TypeAlias = "NDArray[np.float64]"


@dataclass(frozen=True)
class Text:
    """A text with a name, shown as it is."""

    name: str
    text: str


@dataclass(frozen=True)
class Dial:
    """A dimension that a slider turns: its name, a label for each place, the place shown first."""

    name: str
    labels: Iterable[Any]
    start: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawing:
    """What all drawings say: whether they need the whole width of a page."""

    wide: bool = False


@dataclass(frozen=True)
class Axis:
    """An axis: it reaches over all that is drawn along it, and over the values that it ``holds`` besides.

    ``whole`` marks whole numbers alone. On a logarithmic axis values that are not positive have no place; with ``zero``
    0 has one, where this number would be: left of all others, and marked as set apart.
    """

    name: str
    log: bool = False
    whole: bool = False
    holds: tuple[float, ...] = ()
    zero: float | None = None

    @property
    def written(self) -> str:
        """What stands beside the axis: its name, and whether 0 is set apart."""
        return self.name if self.zero is None else f"{self.name} (logarithmic, 0 set apart)"


@dataclass(frozen=True, eq=False)
class Curve:
    """A curve, and the band between ``low`` and ``high`` if they are given. A ``reference`` is drawn apart: a law.

    A ``faint`` one is one of many: thin, behind the others, and in no legend.
    """

    name: str
    x: Values
    y: Values
    low: Values | None = None
    high: Values | None = None
    reference: bool = False
    faint: bool = False


@dataclass(frozen=True, eq=False)
class Dots:
    """Points: each has a label, which may be empty, and a group, which has a colour. One group "" needs no legend."""

    x: Values
    y: Values
    labels: tuple[str, ...]
    groups: tuple[str, ...]


@dataclass(frozen=True)
class Level:
    """A line across the plot at a value of y, drawn where the axis reaches it."""

    value: float
    name: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Plot(Drawing):
    """Values against values. ``units`` stand behind the values of curves, ``points`` is what thinning calls these.

    With ``diagonal`` both axes hold the same values, and the line x = y is drawn. With ``marked`` each value of a curve
    can be pointed at.
    """

    x: Axis
    y: Axis
    units: str = ""
    curves: tuple[Curve, ...] = ()
    dots: Dots | None = None
    levels: tuple[Level, ...] = ()
    diagonal: bool = False
    points: str = "points of each curve"
    marked: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class Plots(Drawing):
    """Plots under sliders, one for each choice of places of the dials, the last dial turning fastest."""

    plots: tuple[Plot, ...]
    dials: tuple[Dial, ...]

    def at(self, places: Sequence[int]) -> int:
        """Which plot is shown where the dials stand at these places."""
        number = 0
        for dial, place in zip(self.dials, places, strict=True):
            number = number * len(tuple(dial.labels)) + place
        return number

    @property
    def first(self) -> Plot:
        """The plot that is shown before any dial is turned."""
        return self.plots[self.at([dial.start for dial in self.dials])]


@dataclass(frozen=True, kw_only=True, eq=False)
class ColourMap(Drawing):
    """Values [dial, ..., row, column] as colours; NaN is missing.

    The colours are one scale, or with ``centre`` two that part there. Their ends are set so that one extreme cell does
    not wash out the others; for ``shares``, where a row's largest value is what it is about, they are the whole range.
    Where there are ``categories``, values are numbers of these and no amounts. ``missing`` says what a grey cell is.
    """

    values: Values
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    row_name: str
    column_name: str
    units: str = ""
    centre: float | None = None
    dials: tuple[Dial, ...] = ()
    shares: bool = False
    categories: tuple[str, ...] = ()
    missing: str = ""

    @property
    def first(self) -> Values:
        """The map [row, column] that is shown before any dial is turned."""
        return np.asarray(self.values[tuple(dial.start for dial in self.dials)])


@dataclass(frozen=True, kw_only=True, eq=False)
class TableRows(Drawing):
    """A table: text, numbers, or None for nothing."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...] = field(default=())


@dataclass(frozen=True, kw_only=True, eq=False)
class Passages(Drawing):
    """Texts side by side."""

    texts: tuple[Text, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class View(Drawing):
    """What the JavaScript ``module`` of a plugin draws of its ``data`` in a frame ``height`` pixels high.

    ``data`` are JSON: the plain values and the arrays, by name. ``fallback`` is drawn where no module runs, and where
    it fails; ``about`` says what is seen on it.
    """

    module: str
    data: str
    height: int
    fallback: Drawing
    about: str
