"""The first sentence of a run: what was found, made from the verdicts by fixed rules, each clause with its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite

import numpy as np

from ..maths.ladder import ARRANGEMENT, UNDECIDED, WORDS, ladder_order
from ..maths.nulls import FEWEST_DRAWS
from .explanations import Explanation, explanations
from .selection import Statistic, prompts_half_width

# What twins of each rung share with the model, as it is said of them.
_TWINS = {
    "before": "the model before training",
    "gains": "twins with its gains and embeddings",
    "scale": "twins with matrices of its size",
    "entries": "twins with its entries shuffled",
    "spectrum": "twins with its singular values",
    "seeds": "other trainings",
}


def sentences(found: Sequence[Statistic], rungs: Mapping[str, str]) -> list[str]:
    """One sentence for each variant that is compared, in order; ``rungs`` gives the word of each null.

    It says how many statistics depart from the null that shares least with the model, which nulls explain how many of
    them (where there are several), and the largest effect of those that none explains. Where nothing departs it says
    that; where draws are too few for any probability, that.
    """
    variants = dict.fromkeys(one.variant for one in found)
    several = len(variants) > 1
    return [_of_variant([one for one in found if one.variant == v], rungs, v if several else "") for v in variants]


def _of_variant(found: Sequence[Statistic], rungs: Mapping[str, str], variant: str) -> str:
    nulls = list(dict.fromkeys(one.null for one in found))
    first = nulls[ladder_order([rungs.get(n, n) for n in nulls])[0]]
    tested = [one for one in found if one.null == first and one.tests]
    draws = max((int(one.comparison.attrs.get("draws", 0)) for one in found if one.null == first), default=0)
    of = f" of {variant}" if variant else ""
    if not tested:
        if draws < FEWEST_DRAWS:
            return f"Nothing can be said{of}: {draws} draws of {first} tell no probability, {FEWEST_DRAWS} or more do."
        return f"Nothing{of} departs from {first}: it keeps every number that was compared with it."
    departing = [one for one in tested if one.selected]
    subject = f"Of {len(tested)} statistic{'s' if len(tested) != 1 else ''}{of}"
    against = f"{_TWINS.get(rungs.get(first, first), first)} ({first}, {draws} draws)"
    if not departing:
        nearest = min(one.q for one in tested)
        return f"{subject} none departs from {against}; the smallest q over them is {nearest:.2g}."
    explained = explanations(found, rungs)
    ladder = [explained[one.name] for one in departing if one.name in explained]
    said = f"{subject} {len(departing)} depart{'s' if len(departing) == 1 else ''} from {against}"
    if not ladder:
        return f"{said}. {_largest(departing)}{_prompts_alone(departing)}"
    counts = Counter(each.rung for each in ladder)
    words = [*dict.fromkeys([*WORDS, *counts])]
    by = [f"{counts[w]} {'undecided' if w == UNDECIDED else f'by {w}'}" for w in words if counts[w]]
    return f"{said}: {', '.join(by)}. {_beyond(ladder)}{_prompts_alone(departing)}"


def _prompts_alone(departing: Sequence[Statistic]) -> str:
    """How many depart on these prompts, and not beyond the error over prompts in any cell."""
    alone = sum(one.general is not None and not (one.general & one.called).any() for one in departing)
    return f" {alone} of them on these prompts only: their error over prompts is larger." if alone else ""


def _largest(departing: Sequence[Statistic]) -> str:
    one = max(departing, key=_size)
    cell = one.furthest()
    return f"The largest effect: {_clause(one, cell, one.null)}" if cell is not None else ""


def _beyond(ladder: Sequence[Explanation]) -> str:
    """The largest effect of what no null explains."""
    left = [each for each in ladder if each.rung == ARRANGEMENT]
    if not left:
        return "No number is left for their arrangement."
    each = max(left, key=lambda e: _size(e.first, e))
    cell = _furthest(each.first, each)
    return f"Beyond {each.rungs[-1]}: {_clause(each.first, cell, each.nulls[-1], each)}" if cell is not None else ""


def _size(one: Statistic, each: Explanation | None = None) -> float:
    cell = _furthest(one, each)
    return -1.0 if cell is None else abs(float(one.column("effect")[cell]))


def _furthest(one: Statistic, each: Explanation | None) -> tuple[int, ...] | None:
    """The called cell of the largest effect, of those beyond all nulls where there is a ladder."""
    if each is None:
        return one.furthest()
    size = np.where((each.cells.rung == ARRANGEMENT) & one.called, np.abs(one.column("effect")), -1.0)
    cell = tuple(int(i) for i in np.unravel_index(int(np.argmax(size)), size.shape))
    return cell if size[cell] >= 0 else None


def _clause(one: Statistic, cell: tuple[int, ...], null: str, each: Explanation | None = None) -> str:
    """A number with its unit, its place, its null and its error over prompts."""
    attrs = one.comparison[one.variable].attrs
    name, units = str(attrs.get("long_name", one.variable)), str(attrs.get("units", ""))
    place = ", ".join(f"{dim} {value}" for dim, value in one.place(cell).items())
    unit = f" {units}" if units not in ("", "1") else ""
    if each is None:
        low, high = (float(one.column(c)[cell]) for c in ("null_low", "null_high"))
    else:
        low, high = each.interval(cell)
    beside = f"{null} {_number(low)} to {_number(high)}" if isfinite(low) else null
    half = prompts_half_width(one)
    prompts = f"; prompts \u00b1 {_number(float(half[cell]))}" if half is not None and np.isfinite(half[cell]) else ""
    where = f" at {place}" if place else ""
    return f"{one.label}, {name}, is {_number(float(one.column('')[cell]))}{unit}{where} ({beside}{prompts})."


def _number(value: float) -> str:
    return f"{value:.3g}"
