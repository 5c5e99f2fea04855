"""Colours that the colour-blind tell apart too, in light and in dark; and from values to colours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from .numbers import number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..figures import ColourMap

# Series take them in this order (Okabe and Ito 2008; the dark page has lighter ones). Dashes repeat the difference.
SERIES_LIGHT = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#b8860b")
SERIES_DARK = ("#56b4e9", "#f0884d", "#2fc59a", "#e3a0c6", "#9ad4f5", "#f0e442")
# References have dashes of their own, and levels others.
LAW_DASHES = ("1 3", "1 6", "5 4 1 4", "8 4 1 4 1 4")
EDGE_DASHES = ("5 4", "10 5", "14 4 4 4", "3 8")
# Categories, in light and dark alike: those of the series and two more; then again, told apart by their letters.
CATEGORIES = (*SERIES_LIGHT, "#f0e442", "#8f8f8f")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "1 2")

# One scale, equal steps in lightness: viridis, at ten places. A test compares them with matplotlib, whose import would
# cost a page 0.3 s.
_VIRIDIS = "440154 482878 3e4989 31688e 26828e 1f9e89 35b779 6ece58 b5de2b fde725"
# Two scales from a middle grey: blue below, orange above.
_DIVERGING = "053a6e 1763a6 4b94c9 9cc3df e6e6e3 f2bd87 e08a35 b85c0c 7a3603"

# The colours of the page that a plugin's own view is given by name.
NAMED = ("paper", "card", "ink", "soft", "rule", "grid", "accent", "warn", "none")

# With fewer cells there is no telling which is extreme.
FEWEST = 8


def _table(colours: str) -> NDArray[np.float64]:
    return np.array([[int(c[i : i + 2], 16) for i in (0, 2, 4)] for c in colours.split()], dtype=np.float64)


_SCALES = {False: _table(_VIRIDIS), True: _table(_DIVERGING)}


@cache
def colours_style() -> str:
    """The colours as custom properties: those of colours.css, and of the series s0, s1, ..., in light and in dark."""
    named = (files(__package__) / "colours.css").read_text(encoding="utf-8")
    light, dark = ("".join(f"--s{i}:{c};" for i, c in enumerate(each)) for each in (SERIES_LIGHT, SERIES_DARK))
    return f":root{{{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{named}"


def stops(diverging: bool) -> list[str]:
    """The colours at equal steps of a scale, between which it is linear."""
    return [f"#{c}" for c in (_DIVERGING if diverging else _VIRIDIS).split()]


def category_colour(place: int) -> str:
    """The colour of a category."""
    return CATEGORIES[place % len(CATEGORIES)]


def shade(share: float, diverging: bool) -> str:
    """The colour at a share between 0 and 1 of a scale."""
    table = _SCALES[diverging]
    place = float(np.clip(share, 0.0, 1.0)) * (len(table) - 1)
    low = min(int(place), len(table) - 2)
    mixed = table[low] + (table[low + 1] - table[low]) * (place - low)
    return "#" + "".join(f"{round(c):02x}" for c in mixed)


def ink(colour: str) -> str:
    """ "dark" or "light": which ink is read better on a colour (relative luminance of sRGB)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "dark" if luminance > 0.179 else "light"


@dataclass(frozen=True)
class Scale:
    """The values at the ends of the colours, set so that one extreme cell does not wash out the others."""

    low: float
    high: float
    diverging: bool
    power: float = 1.0
    below: bool = False
    above: bool = False
    note: str = ""

    def colour(self, value: float) -> str:
        """The colour of a value; beyond the ends, that of the end."""
        if not self.high > self.low:
            return shade(0.5 if self.diverging else 0.0, self.diverging)
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return shade(share**self.power, self.diverging)


def scale_of(drawing: ColourMap) -> Scale:
    """The scale of a map of colours."""
    if drawing.categories:
        return Scale(0.0, float(len(drawing.categories)), False)
    if drawing.shares:
        return shares(drawing.values, drawing.centre)
    return scale(drawing.values, drawing.centre, clip=True)


def shares(values: NDArray[np.float64], centre: float | None) -> Scale:
    """The scale of an attention map: from 0 to its largest value, for a row's largest is what it is about.

    Colours follow the square root, so that small shares, which most are, differ from none.
    """
    whole = scale(values, centre, clip=False)
    return whole if whole.diverging or whole.low < 0 else Scale(0.0, whole.high, False, 0.5)


def scale(values: NDArray[np.float64], centre: float | None, clip: bool) -> Scale:
    """The scale of all finite values.

    With ``clip`` an end lies no further from the centre (for a one-sided scale: from the median) than twice the 0.9
    quantile of such distances, if the furthest is beyond three times that.
    """
    finite = values[np.isfinite(values)]
    if not finite.size:
        return Scale(0.0, 0.0, centre is not None)
    low, high = float(finite.min()), float(finite.max())
    middle = float(np.median(finite)) if centre is None else centre
    if centre is not None:
        reach = max(abs(high - centre), abs(low - centre))
        low, high = centre - reach, centre + reach
    usual = float(np.quantile(np.abs(finite - middle), 0.9))
    if clip and finite.size >= FEWEST and usual > 0 and max(high - middle, middle - low) > 3 * usual:
        low, high = max(low, middle - 2 * usual), min(high, middle + 2 * usual)
    below, above = int((finite < low).sum()), int((finite > high).sum())
    furthest = float(finite[np.argmax(np.abs(finite - middle))])
    ends = _ends(low, high, below > 0, above > 0)
    beyond = f"{below + above:,} of {finite.size:,} cells lie beyond"
    note = f"Colours end at {ends}: {beyond}, the furthest at {number(furthest)}." if below + above else ""
    return Scale(low, high, centre is not None, 1.0, below > 0, above > 0, note)


def _ends(low: float, high: float, below: bool, above: bool) -> str:
    return " and ".join(number(float(f"{v:.3g}")) for v, beyond in ((low, below), (high, above)) if beyond)
