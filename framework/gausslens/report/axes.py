"""Axes: from values to places on the page, round ticks, and numbers as people write them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from .markup import Markup, element, joined

# The drawing's own units; the page scales it.
WIDTH, HEIGHT = 560, 320
MINUS, INFINITY, NOTHING = "\N{MINUS SIGN}", "\N{INFINITY}", "\N{EN DASH}"
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 12, 46


def number(value: float) -> str:
    """A number for people: four digits, thousands apart, powers of ten where it is very large or small."""
    if math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return INFINITY if value > 0 else MINUS + INFINITY
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6 or size < 1e-3:
        mantissa, power = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}".replace("-", MINUS)
    if float(value).is_integer():
        return f"{int(value):,}".replace("-", MINUS)
    digits = max(0, 3 - math.floor(math.log10(size)))
    text = f"{value:,.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", MINUS)


@dataclass(frozen=True)
class Axis:
    """Maps values between ``low`` and ``high`` to places between ``start`` and ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    whole: bool = False

    def at(self, value: float) -> float:
        """The place of a value."""
        low, high, x = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return round(self.start + (x - low) / (high - low) * (self.end - self.start), 2)

    def has(self, value: float) -> bool:
        """Whether a value has a place: it is finite, and positive where the axis is logarithmic."""
        return _has_place(value, self.log)

    def _log_ticks(self) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for factors in ((1,), (1, 3), (1, 2, 5)):
            every = max(1, round((last - first) / 6)) if factors == (1,) else 1
            marks = [f * 10.0**p for p in range(first, last + 1, every) for f in factors]
            seen = [m for m in marks if self.low <= m <= self.high]
            if len(seen) > 2:
                return seen
        return Axis(self.low, self.high, self.start, self.end).ticks()  # within a factor of 2: as on a straight axis

    def ticks(self) -> list[float]:
        """Round values to mark."""
        if self.log:
            return self._log_ticks()
        step = _round_step((self.high - self.low) / 5)
        if self.whole:
            step = max(1.0, step)
        begin, end = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [n * step for n in range(begin, end + 1)]


def axis(values: Iterable[float], start: float, end: float, log: bool = False, whole: bool = False) -> Axis:
    """An axis that holds all values that have a place, with a little room around them."""
    kept = np.array([v for v in values if _has_place(v, log)])
    if not len(kept):
        return Axis(1.0, 10.0, start, end, log) if log else Axis(0.0, 1.0, start, end, log)
    low, high = float(kept.min()), float(kept.max())
    if log:
        room = max(10 ** (0.04 * (math.log10(high) - math.log10(low))), 1.05)
        return Axis(low / room, high * room, start, end, log)
    room = (high - low) * 0.04 or abs(low) * 0.1 or 0.5
    return Axis(low - room, high + room, start, end, log, whole)


def frame(x: Axis, y: Axis, x_name: str, y_name: str) -> Markup:
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
    drawn.append(element("text", x_name, class_="name", x=middle_x, y=y.start + 38, text_anchor="middle"))
    turned = f"rotate(-90 14 {middle_y:g})"
    drawn.append(element("text", y_name, class_="name", x=14, y=middle_y, text_anchor="middle", transform=turned))
    return joined(drawn)


def _has_place(value: float, log: bool) -> bool:
    # Sums and ratios of the values stay within what a float holds.
    return abs(value) < 1e300 and (value > 1e-300 or not log)


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1.0, 2.0, 5.0, 10.0) if step <= m * power * (1 + 1e-9))
