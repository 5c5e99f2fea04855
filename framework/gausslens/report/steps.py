"""The steps of a store as the last part of the page: what each figure's link to its data leads to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .markup import Markup, element

if TYPE_CHECKING:
    from ..store.manifest import PlannedStep
    from ..store.results import Results

# So many part files of a result are named; with many draws the others are beside them.
NAMED = 3


def anchor(variant: str, label: str) -> str:
    """The anchor of a result: any name becomes one that has no white space."""
    return "step-" + re.sub(r"[^\w.-]", "_", f"{variant}-{label}")


def steps(results: Results) -> Markup:
    """A table: each result that was planned, how much of it is finished, and in which files of the store it is."""
    head = element("tr", *(element("th", name, scope="col") for name in ("result", "analysis", "finished", "files")))
    rows = [_row(results, variant, label) for variant, label in results.planned]
    table = element("table", element("thead", head), element("tbody", *rows))
    return element("div", table, class_="scroll", tabindex="0", role="region", aria_label="steps")


def _row(results: Results, variant: str, label: str) -> Markup:
    planned = results.steps(variant, label)
    done = [step for step in planned if results.finished(step)]
    files = [element("code", f"{_file(step)}\n") for step in done[:NAMED]]
    more = f"and {len(done) - NAMED} more" if len(done) > NAMED else None
    cells = (f"{variant}, {label}", planned[0].analysis, f"{len(done)} of {len(planned)}")
    return element(
        "tr", *(element("td", cell) for cell in cells), element("td", *files, more), id=anchor(variant, label)
    )


def _file(step: PlannedStep) -> str:
    """Where the part is, as STORE.md has it; the page may have been moved, so it is no link."""
    return f"parts/{step.analysis}/{step.key}.h5"
