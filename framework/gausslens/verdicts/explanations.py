"""Which null of a run explains each number that departs: the ladder, on the comparisons of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..maths.ladder import UNDECIDED, Explained, Rung, explained, ladder_order
from .selection import Statistic, prompts_half_width

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Explanation:
    """A statistic on the ladder of its nulls: ``nulls`` in order, ``first`` and ``last`` beside the outer two of them.

    ``cells`` has for each cell its rung, the share that each null gives, and the draws that would decide.
    """

    nulls: tuple[str, ...]
    first: Statistic
    last: Statistic
    cells: Explained
    rungs: tuple[str, ...]

    def interval(self, cell: tuple[int, ...]) -> tuple[float, float]:
        """Where 95 % of the last null lie."""
        low, high = (float(self.last.column(c)[cell]) for c in ("null_low", "null_high"))
        return low, high

    @property
    def rung(self) -> str:
        """The rung of most of its called cells, the further one where two have as many."""
        return _most(self.cells.rung[self.first.called])


def _most(words: NDArray[np.str_]) -> str:
    if words.size == 0:
        return UNDECIDED
    found, counts = np.unique(words, return_counts=True)
    best = [str(w) for w in found[counts == counts.max()]]
    order = ladder_order(best)
    return best[order[-1]] if UNDECIDED not in best or len(best) == 1 else UNDECIDED


def explanations(found: Sequence[Statistic], rungs: Mapping[str, str]) -> dict[tuple[str, str, str], Explanation]:
    """For each variant, label and variable that is compared with several nulls its place on their ladder.

    ``rungs`` gives the word of each null, by what its twins share with the model.
    """
    by_name: dict[tuple[str, str, str], list[Statistic]] = {}
    for one in found:
        by_name.setdefault(one.name, []).append(one)
    made = {}
    for name, each in by_name.items():
        ordered = [each[i] for i in ladder_order([rungs.get(one.null, one.null) for one in each])]
        if len(ordered) > 1 and len({one.called.shape for one in ordered}) == 1:
            words = tuple(rungs.get(one.null, one.null) for one in ordered)
            ladder = [_rung(one, word) for one, word in zip(ordered, words, strict=True)]
            cells = explained(ordered[0].column(""), ordered[0].called, ladder)
            made[name] = Explanation(tuple(one.null for one in ordered), ordered[0], ordered[-1], cells, words)
    return made


def first_nulls(found: Sequence[Statistic], rungs: Mapping[str, str]) -> dict[str, str]:
    """Of each variant the null that shares least with the model, of those that it is compared with."""
    nulls: dict[str, dict[str, None]] = {}
    for one in found:
        nulls.setdefault(one.variant, {})[one.null] = None
    firsts = {}
    for variant, names in nulls.items():
        each = list(names)
        firsts[variant] = each[ladder_order([rungs.get(name, name) for name in each])[0]]
    return firsts


def _rung(one: Statistic, word: str) -> Rung:
    mean, low, high = (one.column(c) for c in ("null_mean", "null_low", "null_high"))
    # What is not tested, for the null does not vary, is told by the interval alone.
    called = one.called | np.isnan(one.column("p"))
    return Rung(word, int(one.comparison.attrs.get("draws", 0)), mean, low, high, prompts_half_width(one), called)
