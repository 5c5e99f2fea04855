"""What the report shows of reinit.check."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Figure, Source, Table

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Results

ANALYSIS = "reinit.check"
# Whether a change is there at all: what rounding to a type of four bytes leaves is less.
SMALLEST = 1e-6


def check(results: Results) -> list[Figure]:
    """For each step a table: what each variant keeps of the model's own matrices, at its worst."""
    return [_table(label, found) for label, found in results.of(ANALYSIS).items()]


def _table(label: str, found: dict[str, xr.Dataset]) -> Table:
    first = next(iter(found.values()))
    names = [str(n) for n in first.data_vars if n not in ("zeros", "matrix_rank", "correlation")]
    rows = []
    for variant, data in found.items():
        cells = [_cell(name, data[name].values) for name in names]
        correlation = data["correlation"].values
        zeros = data["zeros"].values
        rows.append([variant, *cells, float(np.nanmean(correlation)), float(np.nanmean(zeros))])
    return Table(
        title=f"What each variant keeps of the model's own matrices, {label}",
        caption="The largest change over layers, matrices and draws; 'kept' is kept to rounding. A null answers the "
        "question what a number would be if nothing but this were kept. Correlation and zeros are means.",
        sources=tuple(Source(variant, label, "moved") for variant in found),
        columns=(
            "variant",
            *(name.removesuffix("_change").replace("_", " ") for name in names),
            "correlation",
            "zeros",
        ),
        rows=rows,
    )


def _cell(name: str, values: np.ndarray) -> str:
    known = values[~np.isnan(values)]
    if name == "values_kept":
        return "kept" if known.size and bool((known == 1).all()) else "changed"
    worst = float(np.abs(known).max()) if known.size else 0.0
    if name == "moved":
        return f"{100 * worst:.3g} %"
    return "kept" if worst < SMALLEST else f"by {worst:.3g}"
