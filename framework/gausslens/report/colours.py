"""Colours that the colour-blind tell apart too, in light and in dark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Series take them in this order (Okabe and Ito 2008; the dark page has lighter ones). Dashes repeat the difference.
SERIES_LIGHT = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#b8860b")
SERIES_DARK = ("#56b4e9", "#f0884d", "#2fc59a", "#e3a0c6", "#9ad4f5", "#f0e442")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "1 2")

# One scale, equal steps in lightness: viridis, at ten places.
_VIRIDIS = "440154 482878 3e4989 31688e 26828e 1f9e89 35b779 6ece58 b5de2b fde725"
# Two scales from a middle grey: blue below, orange above.
_DIVERGING = "053a6e 1763a6 4b94c9 9cc3df e6e6e3 f2bd87 e08a35 b85c0c 7a3603"


def _table(colours: str) -> NDArray[np.float64]:
    return np.array([[int(c[i : i + 2], 16) for i in (0, 2, 4)] for c in colours.split()], dtype=np.float64)


_SCALES = {False: _table(_VIRIDIS), True: _table(_DIVERGING)}


def stops(diverging: bool) -> list[str]:
    """The colours at equal steps of a scale, between which it is linear."""
    return [f"#{c}" for c in (_DIVERGING if diverging else _VIRIDIS).split()]


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
