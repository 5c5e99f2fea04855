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
# Scores that are so far below others of their row are masks: real models have some up to 1,500.
_MASKED = 5_000
EVEN = "look evenly at keys that end at their own or the last, and at no other"


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


def fault_of_scores(S: Floats) -> tuple[int, str] | None:
    """The first row of scores [n, m] before a softmax that are none, and what it holds; None where all can be.

    Scores are finite, or -inf where a key is masked. One that is thousands below the largest of its row is a mask that
    was added: it is no score of these tokens, and a fit of scores would be of the masks.
    """
    odd = np.isnan(S) | np.isposinf(S)
    largest = S.max(axis=1, initial=-np.inf, where=~odd)
    finite = np.isfinite(largest)
    low = np.isfinite(S) & (np.where(finite, largest - _MASKED, -np.inf)[:, None] > S)
    wrong = (odd | low).any(axis=1) | ~finite
    if not wrong.any():
        return None
    row = int(wrong.argmax())
    if not finite[row] and not odd[row].any():
        return row, "scores are -inf at every key"
    if odd[row].any():
        return row, f"scores hold {_first(S[row], odd[row])}: they are finite, or -inf where a key is masked"
    return row, f"scores hold {_first(S[row], low[row])}, which is a mask: write -inf where a key is masked"


def _first(row: Floats, wrong: NDArray[np.bool_]) -> str:
    key = int(wrong.argmax())
    return f"{row[key]:.3g} at key {key}"


@dataclass
class Padding:
    """Where all maps of one prompt look padded: shown one head after the other, it keeps what holds for all.

    Rows behind the text are empty (all zero, or no numbers), uniform over all keys, equal to the last, or even: each is
    uniform over keys in a row that end at itself or at the last key, as are one that sees its own key alone, one that
    sees all before it alike, and one that sees padding alone; columns behind the text are empty. A text has rows of its
    own in some head, and a token that some other sees, so two uniform rows and two columns are enough; rows that are
    alike or even, or columns that are empty, all but for one, may be a sink or so meant and are not told. Before the
    text likewise, where no row of it looks at what is before: rows of padding may themselves look at the text.
    """

    rows: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    first: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    last: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def show(self, P: Floats) -> None:
        """One more map [n, m] of the prompt."""
        nothing = ~np.isfinite(P) | (P == 0)
        n, m = P.shape
        span = P.max(axis=1) - P.min(axis=1)
        # The first and the last key that each row looks at; of one that looks at none, none.
        first = np.where(nothing.all(axis=1), m, np.argmin(nothing, axis=1))
        last = np.where(nothing.all(axis=1), -1, m - 1 - np.argmin(nothing[:, ::-1], axis=1))
        least = np.where(nothing, np.inf, P).min(axis=1)
        with np.errstate(invalid="ignore"):
            even = ((~nothing).sum(axis=1) == last - first + 1) & (P.max(axis=1) - least <= _EQUAL * least)
            seen = {
                "empty": nothing.all(axis=1),
                "uniform": (span <= _EQUAL * P.mean(axis=1)) & ~nothing.all(axis=1),
                "alike": np.abs(P - P[-1]).max(axis=1) <= _EQUAL,
                "as the first": np.abs(P - P[0]).max(axis=1) <= _EQUAL,
                "even": even & ((last == np.arange(n)) | (last == m - 1)),
                "unseen": nothing.all(axis=0),
            }
        for name, marks in seen.items():
            self.rows[name] = self.rows.get(name, True) & marks
        self.first = np.minimum(self.first, first) if len(self.first) else first
        self.last = np.maximum(self.last, last) if len(self.last) else last

    def found(self, of_rows: bool = True, of_keys: bool = True) -> tuple[range, str] | None:
        """The tokens of the text and what the others are, in words; None where nothing looks padded.

        Told by rows, keys or both, which are the same tokens but in attention from one stack to another.
        """
        words = {
            "empty": ("rows", "are empty", 1, 1),
            "uniform": ("rows", "are uniform", 2, 1),
            "alike": ("rows", "are all alike", 2, 2),
            "even": ("rows", EVEN, 2, 2),
            "unseen": ("keys", "are looked at by no row", 2, 2),
        }
        best: tuple[range, str] | None = None
        for name, (what, said, fewest, shortest) in words.items():
            if not (of_keys if name == "unseen" else of_rows) or (name == "even" and not of_keys):
                continue
            n = len(self.rows[name])
            real = n - _run(self.rows[name][::-1])
            while name == "even" and real < n and self.last[:real].max(initial=-1) >= real:
                real += 1  # what the text looks at is of it
            if name == "alike" and real < n and self.last[-1] == real:
                real += 1  # the last row of the text, which sees itself, is what padding repeats
            if n - real >= fewest and real >= shortest and (best is None or real < best[0].stop):
                best = range(real), f"{what} {real} to {n - 1} {said}"
        return best or (self._before(of_rows) if of_keys else None)

    def _before(self, of_rows: bool) -> tuple[range, str] | None:
        """Padding before the text: rows as they may be behind it, at whose keys no row of the text looks; or such keys.

        Told by keys alone where these are other tokens than the rows.
        """
        words = {"empty": ("are empty", 1), "as the first": ("are all alike", 2), "even": (EVEN, 2)}
        for name, (said, fewest) in words.items() if of_rows else ():
            n = len(self.rows[name])
            real = _run(self.rows[name]) % n  # where all rows are so, they are no padding
            while real and (real > n - 2 or self.first[real:].min() < real):
                real -= 1
            if real >= fewest:
                return range(real, n), f"rows 0 to {real - 1} {said}"
        m = len(self.rows["unseen"])
        real = _run(self.rows["unseen"]) % m
        return (range(real, m), f"keys 0 to {real - 1} are looked at by no row") if 1 < real < m - 1 else None


def _run(marks: NDArray[np.bool_]) -> int:
    """How many marks in a row there are at the beginning."""
    return int(np.argmin(marks)) if not marks.all() else len(marks)


def softmax_gap(P: Floats, q: Floats, k: Floats, scale: float, causal: bool) -> float:
    """max |P - softmax(scale q k')| of one head, q [n, d] and k [m, d]: 0 where q and k are what made the map."""
    scores = scale * q @ k.T
    if causal:
        scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
    return scores_gap(P, scores)


def scores_gap(P: Floats, scores: Floats) -> float:
    """max |P - softmax(scores)| of one head: 0 where these scores made the map."""
    made = np.exp(scores - scores.max(axis=1, keepdims=True))
    return float(np.abs(P - made / made.sum(axis=1, keepdims=True)).max())
