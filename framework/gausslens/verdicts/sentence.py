"""The first sentence of a run: what was found, made from the verdicts by fixed rules, each clause with its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite

import numpy as np

from ..maths.ladder import ARRANGEMENT, UNDECIDED, WEIGHT_RUNGS, WORDS
from ..maths.nulls import FEWEST_DRAWS
from .explanations import Explanation, explanations, first_nulls
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


def sentences(
    found: Sequence[Statistic],
    rungs: Mapping[str, str],
    explained: Mapping[tuple[str, str, str], Explanation] | None = None,
) -> list[str]:
    """One sentence for each variant that is compared, in order; ``rungs`` gives the word of each null.

    It says how many statistics depart from the null that shares least with the model, which nulls explain how many of
    them (where there are several), and the largest effect of those that none explains. Where nothing departs it says
    that; where draws are too few for any probability, that. ``explained`` are the ``explanations``, where known.
    """
    every = explanations(found, rungs) if explained is None else explained
    variants = dict.fromkeys(one.variant for one in found)
    several = len(variants) > 1
    return [
        _of_variant([one for one in found if one.variant == v], rungs, v if several else "", every) for v in variants
    ]


def _of_variant(
    found: Sequence[Statistic],
    rungs: Mapping[str, str],
    variant: str,
    explained: Mapping[tuple[str, str, str], Explanation],
) -> str:
    (first,) = first_nulls(found, rungs).values()
    tested = [one for one in found if one.null == first and one.tests]
    draws = max((int(one.comparison.attrs.get("draws", 0)) for one in found if one.null == first), default=0)
    of = f" of {variant}" if variant else ""
    if not tested:
        if draws < FEWEST_DRAWS:
            return f"Nothing can be said{of}: {draws} draws of {first} tell no probability, {FEWEST_DRAWS} or more do."
        return f"Nothing{of} departs from {first}: it keeps every number that was compared with it."
    departing = [one for one in tested if one.selected]
    subject = f"Of {len(tested)} statistic{'s' if len(tested) != 1 else ''}{of}"
    against = f"{_TWINS[rungs[first]]} ({first}, {draws} draws)" if rungs.get(first) in _TWINS else ""
    against = against or f"{rungs.get(first, first)} ({draws} draws)"
    if not departing:
        nearest = min(one.q for one in tested)
        return f"{subject} none departs from {against}; the smallest q over them is {nearest:.2g}."
    ladder = [explained[one.name] for one in departing if one.name in explained]
    said = f"{subject} {len(departing)} depart{'s' if len(departing) == 1 else ''} from {against}"
    if not ladder:
        return f"{said}. {_largest(departing, rungs)}{_prompts_alone(departing)}"
    alone = len(departing) - len(ladder)
    more = f", {alone} compared with no other null" if alone else ""
    return f"{said}: {_by_rung(ladder)}{more}. {_beyond(ladder, rungs)}{_prompts_alone(departing)}"


def _by_rung(ladder: Sequence[Explanation]) -> str:
    """How many statistics each null explains: "3 explained by scale, 2 by spectrum, 4 left to arrangement"."""
    counts = Counter(each.rung for each in ladder)
    words = [w for w in dict.fromkeys([*WORDS, *counts]) if counts[w] and w not in (ARRANGEMENT, UNDECIDED)]
    # Only where twins with its singular values do not give it either is it the arrangement of the weights.
    asked = all(WEIGHT_RUNGS[-1] in each.rungs for each in ladder)
    left = "left to arrangement" if asked else "beyond every null"
    said = [f"{counts[w]} {'' if i else 'explained '}by {w}" for i, w in enumerate(words)]
    last = ((ARRANGEMENT, left), (UNDECIDED, "undecided"))
    return ", ".join([*said, *(f"{counts[w]} {text}" for w, text in last if counts[w])])


def _prompts_alone(departing: Sequence[Statistic]) -> str:
    """How many depart on these prompts, and not beyond the error over prompts in any cell."""
    alone = sum(one.general is not None and not (one.general & one.called).any() for one in departing)
    return f" {alone} of them on these prompts only: their error over prompts is larger." if alone else ""


def _largest(departing: Sequence[Statistic], rungs: Mapping[str, str]) -> str:
    one = max(departing, key=lambda each: _size(each, each.furthest()))
    cell = one.furthest()
    return f"The largest effect: {_clause(one, cell, what_twins_are(one.null, rungs))}" if cell is not None else ""


def _beyond(ladder: Sequence[Explanation], rungs: Mapping[str, str]) -> str:
    """The largest effect of what no null explains, beside the last of them: that is what the words say."""
    left = [(each, cell) for each in ladder if (cell := _furthest(each)) is not None]
    if not left:
        undecided = any(each.rung == UNDECIDED for each in ladder)
        return "None is beyond every null for sure." if undecided else "No number needs more than these nulls."
    each, cell = max(left, key=lambda pair: _size(pair[0].last, pair[1]))
    said = _clause(each.first, cell, what_twins_are(each.nulls[-1], rungs), each)
    return f"The largest effect beyond {each.rungs[-1]}: {said}"


def what_twins_are(null: str, rungs: Mapping[str, str]) -> str:
    """What a null's draws are, in words: what they share with the model, where that is known, else its name."""
    word = rungs.get(null, null)
    return _TWINS.get(word, word)


def named_null(null: str, rungs: Mapping[str, str]) -> str:
    """A null by what it is: "the model before training (before)"."""
    words = what_twins_are(null, rungs)
    return words if words == null else f"{words} ({null})"


def _size(one: Statistic, cell: tuple[int, ...] | None) -> float:
    return -1.0 if cell is None else float(np.nan_to_num(abs(one.column("effect")[cell]), nan=0.0, posinf=np.inf))


def _furthest(each: Explanation) -> tuple[int, ...] | None:
    """The called cell of the largest effect beside the last null, of those beyond all nulls."""
    effect = np.nan_to_num(np.abs(each.last.column("effect")), nan=0.0, posinf=np.inf)
    size = np.where((each.cells.rung == ARRANGEMENT) & each.first.called, effect, -1.0)
    cell = tuple(int(i) for i in np.unravel_index(int(np.argmax(size)), size.shape))
    return cell if size[cell] >= 0 else None


def _clause(one: Statistic, cell: tuple[int, ...], twins: str, each: Explanation | None = None) -> str:
    """A number with its unit and place; in brackets its result, where 95 % of the null lie, its error over prompts."""
    attrs = one.comparison[one.variable].attrs
    name, units = str(attrs.get("long_name", one.variable)), str(attrs.get("units", ""))
    place = ", ".join(f"{dim} {value}" for dim, value in one.place(cell).items())
    unit = f" {units}" if units not in ("", "1") else ""
    if each is None:
        low, high = (float(one.column(c)[cell]) for c in ("null_low", "null_high"))
    else:
        low, high = each.interval(cell)
    beside = [f"in {one.label}", f"{twins}: {_number(low)} to {_number(high)}" if isfinite(low) else twins]
    half = prompts_half_width(one)
    if half is not None and np.isfinite(half[cell]):
        beside.append(f"prompts \u00b1 {_number(float(half[cell]))}")
    where = f" at {place}" if place else ""
    return f"{name}, {_number(float(one.column('')[cell]))}{unit}{where} ({'; '.join(beside)})."


def _number(value: float) -> str:
    return f"{value:.3g}"
