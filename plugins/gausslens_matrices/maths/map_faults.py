"""What is wrong with a map that should be attention, and where it looks padded. Pure numpy on maps [query, key]."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Rows whose cells differ by less than this, relative to their mean, are uniform; rows that do are alike.
_EQUAL = 1e-6


def tolerance_of(dtype: str) -> float:
    """How far the sum of a row of attention may be from one: four roundings of the dtype, 1e-4 at least.

    A sum of numbers that are rounded to relative precision eps is off by at most eps / 2 of itself; softmaxes are
    often computed in less than they are saved in.
    """
    eps = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(dtype, 0.0)
    return max(1e-4, 4 * eps)


def fault(P: Floats, causal: bool, tolerance: float, sinks: bool = False) -> tuple[int, str] | None:
    """The first row of a map [n, m] that cannot be attention, and what it does; None where all can.

    Rows are finite, not negative, sum to one within the tolerance (with sinks: to no more), and are zero above the
    diagonal where the map is causal.
    """
    finite, negative = np.asarray(np.isfinite(P).all(axis=1)), np.asarray((P < 0).any(axis=1))
    above = np.asarray(np.triu(P, 1).any(axis=1)) if causal else np.zeros(len(P), dtype=bool)
    sums = np.where(finite, P.sum(axis=1, where=np.isfinite(P)), np.nan)
    off = sums > 1 + tolerance if sinks else ~(np.abs(sums - 1) <= tolerance)
    wrong = ~finite | negative | above | off
    if not wrong.any():
        return None
    row = int(wrong.argmax())
    if not finite[row]:
        return row, f"holds {_first(P[row], ~np.isfinite(P[row]))}"
    if negative[row]:
        return row, f"holds {_first(P[row], P[row] < 0)}: attention is not negative"
    if above[row]:
        key = int(np.flatnonzero(P[row, row + 1 :])[0]) + row + 1
        return row, f"looks ahead: {P[row, key]:.3g} at key {key}, and the maps are said to be causal"
    return row, f"sums to {sums[row]:.6g}"


def _first(row: Floats, wrong: NDArray[np.bool_]) -> str:
    key = int(wrong.argmax())
    return f"{row[key]:.3g} at key {key}"


@dataclass
class Padding:
    """Where all maps of one prompt look padded: shown one head after the other, it keeps what holds for all.

    Rows behind the text are empty (all zero, or no numbers), uniform over all keys, or equal to the last; columns
    behind it are empty. A text has rows of its own in some head, and a token that some other sees, so two uniform rows
    and two columns are enough; rows that are alike, or columns that are empty, all but for one, may be a sink and are
    not told.
    """

    rows: dict[str, NDArray[np.bool_]] = field(default_factory=dict)

    def show(self, P: Floats) -> None:
        """One more map [n, m] of the prompt."""
        nothing = ~np.isfinite(P) | (P == 0)
        span = P.max(axis=1) - P.min(axis=1)
        with np.errstate(invalid="ignore"):
            seen = {
                "empty": nothing.all(axis=1),
                "uniform": (span <= _EQUAL * P.mean(axis=1)) & ~nothing.all(axis=1),
                "alike": np.abs(P - P[-1]).max(axis=1) <= _EQUAL,
                "unseen": nothing.all(axis=0),
            }
        for name, marks in seen.items():
            self.rows[name] = self.rows.get(name, True) & marks

    def found(self, of_rows: bool = True, of_keys: bool = True) -> tuple[int, str] | None:
        """The length of the text and what is behind it, in words; None where nothing looks padded.

        Told by rows, keys or both, which are the same tokens but in attention from one stack to another.
        """
        words = {
            "empty": ("rows", "are empty", 1, 1),
            "uniform": ("rows", "are uniform", 2, 1),
            "alike": ("rows", "are all alike", 2, 2),
            "unseen": ("keys", "are looked at by no row", 2, 2),
        }
        best: tuple[int, str] | None = None
        for name, (what, said, fewest, shortest) in words.items():
            if not (of_keys if name == "unseen" else of_rows):
                continue
            n = len(self.rows[name])
            real = n - _run_at_the_end(self.rows[name])
            if n - real >= fewest and real >= shortest and (best is None or real < best[0]):
                best = real, f"{what} {real} to {n - 1} {said}"
        return best


def _run_at_the_end(marks: NDArray[np.bool_]) -> int:
    """How many marks in a row there are at the end."""
    return int(np.argmin(marks[::-1])) if not marks.all() else len(marks)


def softmax_gap(P: Floats, q: Floats, k: Floats, scale: float, causal: bool) -> float:
    """max |P - softmax(scale q k')| of one head, q [n, d] and k [m, d]: 0 where q and k are what made the map."""
    scores = scale * q @ k.T
    if causal:
        scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
    made = np.exp(scores - scores.max(axis=1, keepdims=True))
    return float(np.abs(P - made / made.sum(axis=1, keepdims=True)).max())
