"""From values to colours; ends are set so that one extreme cell does not wash out the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .axes import number
from .colours import shade

if TYPE_CHECKING:
    from numpy.typing import NDArray

# With fewer cells there is no telling which is extreme.
FEWEST = 8


@dataclass(frozen=True)
class Scale:
    """The values at the ends of the colours, and what was said of cells beyond them."""

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


def shares(values: NDArray[np.float64], centre: float | None) -> Scale:
    """The scale of an attention map: its whole range, for a row's largest value is what it is about.

    Colours follow the square root, so that small shares, which most are, differ from none.
    """
    whole = scale(values, centre, clip=False)
    return whole if whole.diverging or whole.low < 0 else Scale(whole.low, whole.high, False, 0.5)


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
