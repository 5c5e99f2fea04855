"""The strongest departures from the null, as a part of the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..contract.errors import StoreError
from ..figures import Source, Table
from .axes import NOTHING, number
from .departures import LEVEL, Departure, departures
from .figure import draw
from .markup import Markup, element

if TYPE_CHECKING:
    import xarray as xr

    from ..store.results import Results

MOST = 10


def strongest(results: Results) -> Markup:
    """A table of the ten strongest; or why there is none."""
    every = [(null, d) for null, compared in _comparisons(results) for d in departures(compared)]
    nulls = {null for null, _ in every}
    found = [(null, d) for null, d in every if d.tells(nulls)]
    if not found:
        none = "Nothing was compared with a null: `against:` in the run file names one."
        kept = "All that was compared with a null is kept by it, or constant under it."
        return element("p", kept if every else none, class_="note")
    found.sort(key=lambda pair: -abs(pair[1].z))
    store = Path(results.path).name
    return element("div", draw(_table(found[:MOST], len(found)), store), class_="figures")


def _comparisons(results: Results) -> Iterator[tuple[str, list[tuple[str, str, xr.Dataset]]]]:
    """For each null, what was compared with it and is finished."""
    nulls: dict[str, list[tuple[str, str, xr.Dataset]]] = {}
    for variant, label in results:
        for null in results.nulls(variant, label):
            try:
                nulls.setdefault(null, []).append((label, variant, results.against(variant, label, null)))
            except StoreError:
                continue  # some draws or swept values are not finished: the facts above say how many
    yield from nulls.items()


def _table(found: list[tuple[str, Departure]], of: int) -> Table:
    several = len({null for null, _ in found}) > 1
    rows = [
        [
            d.label,
            d.variant + (f" against {null}" if several else ""),
            d.variable,
            d.place or NOTHING,
            d.value,
            f"{number(d.null_mean)} ± {number(float(f'{d.null_sd:.2g}'))}",
            float(f"{d.z:.4g}"),
            float(f"{d.q:.1g}"),
            f"{d.called} of {d.cells}",
        ]
        for null, d in found
    ]
    return Table(
        title=f"The strongest departures from {found[0][0] if not several else 'the nulls'}",
        caption="Of each compared variable, its cell furthest from the null, in standard deviations of the null (z); "
        f"the {len(found)} largest of {of}; what the null itself keeps, and nulls "
        "beside each other, are left out. q is the false discovery rate over the cells of the variable; the last "
        f"column counts the cells with q below {LEVEL}.",
        sources=tuple(Source(d.variant, f"{d.label}.against.{null}", d.variable) for null, d in found),
        columns=("result", "variant", "variable", "furthest at", "value", "null", "z", "q", f"q < {LEVEL}"),
        rows=rows,
    )
