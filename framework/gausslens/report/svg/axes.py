"""Axes: how far they reach, from values to places on the page, and round values to mark.

Ticks are by hand: ``matplotlib.ticker`` costs a page 0.3 s of import, a third of the time of a small one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..markup import Markup, element, joined
from ..numbers import number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, NDArray

    from ...figures import Axis, Plot

# The drawing's own units; the page scales it.
WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 12, 46
Ends = tuple[float, float]
# Beyond these, sums and ratios of values are more than a float holds.
LARGEST, SMALLEST = 1e300, 1e-300


@dataclass(frozen=True)
class PlacedAxis:
    """Maps values between ``low`` and ``high`` to places between ``start`` and ``end``.

    On a logarithmic axis 0 may have a place of its own: that of ``zero``; the scale begins right of ``least``.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    whole: bool = False
    zero: float | None = None
    least: float = 0.0

    def on_scale(self, values: ArrayLike) -> NDArray[np.float64]:
        """Values as they are placed: 0 at its own place, where it has one."""
        given = np.asarray(values, dtype=np.float64)
        return given if self.zero is None else np.where(given == 0, self.zero, given)

    def at(self, value: float) -> float:
        """The place of a value."""
        value = float(self.on_scale(value))
        low, high, x = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return round(self.start + (x - low) / (high - low) * (self.end - self.start), 2)

    def has(self, values: ArrayLike) -> NDArray[np.bool_]:
        """Which values have a place: those that are finite, and positive where the axis is logarithmic."""
        return _have_place(self.on_scale(values), self.log)

    def _log_ticks(self) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for factors in ((1,), (1, 3), (1, 2, 5)):
            every = max(1, round((last - first) / 6)) if factors == (1,) else 1
            marks = [f * 10.0**p for p in range(first, last + 1, every) for f in factors]
            seen = [m for m in marks if self.low <= m <= self.high]
            if len(seen) > 2:
                return seen
        # Within a factor of 2: as on a straight axis.
        return PlacedAxis(self.low, self.high, self.start, self.end).ticks()

    def ticks(self) -> list[float]:
        """Round values to mark."""
        if self.log:
            return [*([] if self.zero is None else [0.0]), *(m for m in self._log_ticks() if m > self.least)]
        step = _round_step((self.high - self.low) / 5)
        if self.whole:
            step = max(1.0, step)
        begin, end = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [n * step for n in range(begin, end + 1)]


def axis(
    values: ArrayLike, start: float, end: float, log: bool = False, whole: bool = False, zero: float | None = None
) -> PlacedAxis:
    """An axis that reaches over all values that have a place, with a little room around them."""
    given = np.asarray(values, dtype=np.float64).ravel()
    kept = given[_have_place(given, log)]
    if zero is not None and len(kept):
        beyond = math.sqrt(zero * float(kept.min()))
        placed = axis([zero, *kept], start, end, log)
        return replace(placed, zero=zero, least=beyond)
    if not len(kept):
        return PlacedAxis(1.0, 10.0, start, end, log) if log else PlacedAxis(0.0, 1.0, start, end, log)
    low, high = float(kept.min()), float(kept.max())
    if log:
        room = max(10 ** (0.04 * (math.log10(high) - math.log10(low))), 1.05)
        return PlacedAxis(low / room, high * room, start, end, log)
    room = (high - low) * 0.04 or abs(low) * 0.1 or 0.5
    return PlacedAxis(low - room, high + room, start, end, log, whole)


def axes_of(plot: Plot, across: Ends = (0.0, 1.0), up: Ends = (0.0, 1.0)) -> tuple[PlacedAxis, PlacedAxis]:
    """The two axes of a plot, each over what is drawn along it, between places on the page."""
    x = [curve.x for curve in plot.curves]
    y = [side for curve in plot.curves for side in (curve.y, curve.low, curve.high) if side is not None]
    if plot.dots is not None:
        x, y = [*x, plot.dots.x], [*y, plot.dots.y]
    if plot.diagonal:
        x = y = [*x, *y]
    return _axis(plot.x, x, across), _axis(plot.y, y, up)


def _axis(told: Axis, values: Iterable[NDArray[np.float64]], ends: Ends) -> PlacedAxis:
    return axis(np.concatenate([*values, np.array(told.holds)]), *ends, told.log, told.whole, told.zero)


def _have_place(values: ArrayLike, log: bool) -> NDArray[np.bool_]:
    given = np.asarray(values, dtype=np.float64)
    return np.asarray((np.abs(given) < LARGEST) & ((given > SMALLEST) if log else True))


def frame(x: PlacedAxis, y: PlacedAxis, x_name: str, y_name: str) -> Markup:
    """The grid, the ticks and the names of two axes."""
    drawn = []
    for tick in y.ticks():
        place = y.at(tick)
        drawn.append(element("line", class_="grid", x1=x.start, x2=x.end, y1=place, y2=place))
        drawn.append(element("text", number(tick), class_="tick", x=x.start - 7, y=place + 4, text_anchor="end"))
    for tick in x.ticks():
        place = x.at(tick)
        drawn.append(element("line", class_="grid", x1=place, x2=place, y1=y.start, y2=y.end))
        drawn.append(element("text", number(tick), class_="tick", x=place, y=y.start + 17, text_anchor="middle"))
    middle_x, middle_y = (x.start + x.end) / 2, (y.start + y.end) / 2
    drawn.append(element("line", class_="axis", x1=x.start, x2=x.end, y1=y.start, y2=y.start))
    if x.zero is not None:
        gap = x.at(x.least)
        for at in (gap - 3, gap + 3):
            drawn.append(element("line", class_="axis", x1=at - 3, x2=at + 3, y1=y.start + 6, y2=y.start - 6))
    drawn.append(element("text", x_name, class_="name", x=middle_x, y=y.start + 38, text_anchor="middle"))
    turned = f"rotate(-90 14 {middle_y:g})"
    drawn.append(element("text", y_name, class_="name", x=14, y=middle_y, text_anchor="middle", transform=turned))
    return joined(drawn)


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1.0, 2.0, 5.0, 10.0) if step <= m * power * (1 + 1e-9))
