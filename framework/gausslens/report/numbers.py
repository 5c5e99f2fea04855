"""Numbers as people write them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..figures import Cell

MINUS, INFINITY, NOTHING = "\N{MINUS SIGN}", "\N{INFINITY}", "\N{EN DASH}"


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


def written_cell(cell: Cell) -> str:
    """A cell of a table; None is nothing."""
    if cell is None:
        return ""
    return number(float(cell)) if isinstance(cell, int | float) and not isinstance(cell, bool) else str(cell)
