"""What the difference of two weight matrices has in common with the one that it was added to. Pure numpy, float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gausslens.maths.spectra import GRAM_TRUST, effective_rank

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Floats = NDArray[np.float64]
# Singular values closer than this share of the largest are one: no direction among theirs is told from another.
APART = 1e-9
SIDES = ("left", "right")
_EPS = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}


@dataclass(frozen=True)
class Directions:
    """W = U diag(s) V^T: singular values, largest first, and their vectors in the columns of ``left`` and ``right``.

    ``noise`` is the size below which a singular value may be rounding.
    """

    left: Floats
    s: Floats
    right: Floats
    noise: float = 0.0

    def on(self, side: str) -> Floats:
        """The vectors of one side: left ones are of the rows, what x W reads; right ones of what it writes."""
        return self.left if side == "left" else self.right

    def known(self, k: int) -> bool:
        """Whether the leading k directions are a subspace of their own: beyond rounding, and apart from the next."""
        if k > len(self.s) or self.s[k - 1] <= self.noise:
            return False
        behind = self.s[k] if k < len(self.s) else 0.0
        return bool(self.s[k - 1] - behind > APART * self.s[0])

    @property
    def rank(self) -> int:
        """How many singular values are more than rounding."""
        return int((self.s > self.noise).sum())


def directions(W: ArrayLike, noise: float = 0.0) -> Directions:
    """Singular values and vectors of a matrix, whose entries bring ``noise`` with them; decomposing brings its own.

    That is max(n, m) eps s_1, the rule of numpy's and MATLAB's matrix rank (Press et al., Numerical Recipes, 2007).
    They are taken from the small Gram matrix, at a third of the cost, where all its values can be trusted: where the
    smallest is over 1e-9 of the largest, vectors of the long side are orthogonal to 1e-7.
    """
    A = np.asarray(W, dtype=np.float64)
    wide = A.shape[0] <= A.shape[1]
    B = A if wide else A.T
    squared, vectors = np.linalg.eigh(B @ B.T)
    squared, vectors = squared[::-1], vectors[:, ::-1]
    if squared[-1] > GRAM_TRUST * squared[0]:
        s = np.sqrt(squared)
        other = (B.T @ vectors) / s
        left, right = (vectors, other) if wide else (other, vectors)
    else:
        left, s, right = np.linalg.svd(A, full_matrices=False)
        right = right.T
    return Directions(left, s, right, max(noise, max(A.shape) * _EPS["float64"] * float(s[0])))


def rounding_step(W: ArrayLike) -> float:
    """The relative spacing of the coarsest type (bfloat16, float16, float32, float64) that holds most entries exactly.

    Weights that were stored in a narrow type are found so, whatever they are computed with. By chance one number in
    65,536 of float32 is one of bfloat16.
    """
    values = np.asarray(W, dtype=np.float64)
    values = values[values != 0]
    if not values.size:
        return 0.0
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
        half = values.astype(np.float16)
    in_single = single == values
    held = {
        "bfloat16": in_single & ((single.view(np.uint32) & 0xFFFF) == 0),
        "float16": half == values,
        "float32": in_single,
    }
    found = next((name for name, exact in held.items() if exact.mean() > 0.5), "float64")
    return _EPS[found]


def rounding_noise(*stored: tuple[ArrayLike, float]) -> float:
    """The largest singular value that rounding brings into a sum of matrices, each with its ``rounding_step``.

    An entry w in steps of eps |w| at most is off by noise of variance eps^2 w^2 / 12. A matrix of independent entries
    of variances v_ij has the norm max_i sqrt(sum_j v_ij) + max_j sqrt(sum_i v_ij), but for lower orders (Bandeira and
    van Handel 2016); with equal variances it is the edge sqrt(v) (sqrt n + sqrt m) of Marchenko and Pastur.
    """
    variances = np.asarray(sum(eps**2 / 12 * np.square(np.asarray(W, dtype=np.float64)) for W, eps in stored))
    return float(np.sqrt(variances.sum(axis=1).max()) + np.sqrt(variances.sum(axis=0).max()))


def overlap(A: ArrayLike, B: ArrayLike) -> float:
    """Mean squared cosine of two subspaces, |A^T B|_F^2 / k, by their orthonormal bases [n, k]: 1 if equal.

    It is the similarity of subspaces of Hu et al. (2021), section 7.2, for equal k. If one of the two is turned at
    random (Haar) its mean is k/n, exactly, and its standard deviation ``overlap_sd``.
    """
    first, second = (np.asarray(X, dtype=np.float64) for X in (A, B))
    return float(np.square(first.T @ second).sum() / first.shape[1])


def overlap_sd(n: int, k: int) -> float:
    """The standard deviation of ``overlap`` for two subspaces of k dimensions of n, one of them turned at random.

    Of tr(P Q), P and Q projections of rank k, the variance is 2 k^2 (n - k)^2 / (n^2 (n - 1)(n + 2)): from the second
    moments of Haar's measure (Collins and Sniady 2006). The overlap is this over k.
    """
    return float(np.sqrt(2 * (n - k) ** 2 / (n**2 * (n - 1) * (n + 2)))) if n > 1 else 0.0


def nearest(tuned: Directions, base: Directions, side: str, count: int) -> Floats:
    """For the leading ``count`` singular vectors of one matrix the largest cosine with any of another's.

    Base vectors of equal singular values are no vectors of their own but a subspace: the cosine is with that. Low ones
    are intruder dimensions (Shuttleworth et al. 2024). NaN where there is no such vector, or it may be rounding.
    """
    found = np.full(count, np.nan)
    kept, rank = min(count, tuned.rank), base.rank
    if kept and rank:
        squares = np.square(base.on(side)[:, :rank].T @ tuned.on(side)[:, :kept])
        gaps = base.s[: rank - 1] - base.s[1:rank] > APART * base.s[0]
        starts = np.concatenate([[0], 1 + np.flatnonzero(gaps)])
        found[:kept] = np.sqrt(np.minimum(np.add.reduceat(squares, starts, axis=0).max(axis=0), 1.0))
    return found


def of_difference(base: ArrayLike, difference: ArrayLike, ranks: Sequence[int], similar: float) -> dict[str, Floats]:
    """What D = W - W_base [n, m] has in common with W_base: each number by its name, those by k in order of ``ranks``.

    With singular values s_i of D, and of D (U, V) and W_base (P, Q) the leading k singular vectors:

    - relative_norm = |D|_F / |W_base|_F, cosine = <D, W_base> / (|D|_F |W_base|_F)
    - effective_rank = exp(H(s_i^2 / |D|_F^2)) (Roy and Vetterli 2007), stable_rank = |D|_F^2 / s_1^2 (Rudelson and
      Vershynin 2007), matrix_rank = #{i: s_i more than rounding of what is stored}
    - leading_share = sum_{i<=k} s_i^2 / |D|_F^2
    - overlap = |U^T P|_F^2 / k, and of the right |V^T Q|_F^2 / k (Hu et al. 2021, 7.2)
    - captured = |P^T D|_F^2 / |D|_F^2, and of the right |D Q|_F^2 / |D|_F^2: the energy of D in base's leading
      subspaces
    - captured_both = |P^T D Q|_F^2 / |D|_F^2
    - base_share = |U^T W_base V|_F^2 / |W_base|_F^2: the energy of base in those of D
    - amplification = |U^T D V|_F / |U^T W_base V|_F (Hu et al. 2021, 7.3, who have the whole |D|_F above: with k the
      rank of D it is the same)
    - nearest: of the i-th leading singular vector of W_base + D the largest cosine with any of base's, for i up to the
      largest k; nearest_mean its mean over the leading k, intruders how many of them are under ``similar``
      (Shuttleworth et al. 2024)

    chance is what a D turned at random has: k/n, k/m of overlap and captured; of captured_both and base_share it is the
    product of the two. What is 0/0, or of directions that are none of their own (``Directions.known``), is NaN.
    """
    W, D = (np.asarray(X, dtype=np.float64) for X in (base, difference))
    tuned = W + D
    # What training began with is exact, as an identity is, whatever type would hold it: rounded is what it ended with.
    step, of_base = rounding_step(tuned), rounding_step(W)
    subtracted = min(rounding_step(D), _EPS["float32"])
    own = directions(D, rounding_noise((W, min(step, of_base)), (tuned, step), (D, subtracted)))
    old = directions(W, rounding_noise((W, of_base)))
    new = directions(tuned, rounding_noise((tuned, step)))
    shared = float((D * W).sum())
    energy, energy_of_base = (float(np.square(X).sum()) for X in (D, W))
    squared = np.square(own.s)
    found: dict[str, ArrayLike] = {
        "norm": np.sqrt(energy),
        "base_norm": np.sqrt(energy_of_base),
        "relative_norm": _ratio(np.sqrt(energy), np.sqrt(energy_of_base)),
        "cosine": _ratio(shared, np.sqrt(energy) * np.sqrt(energy_of_base)),
        "effective_rank": effective_rank(squared),
        "stable_rank": _ratio(energy, float(squared[0])),
        "matrix_rank": own.rank,
        "rounding": own.noise,
        **_near(new, old, ranks, similar),
    }
    by_k = [_leading(W, D, (own, old), k) for k in ranks]
    found |= {name: np.array([one[name] for one in by_k]) for name in by_k[0]}
    return {name: np.asarray(value, dtype=np.float64) for name, value in found.items()}


def _leading(W: Floats, D: Floats, both: tuple[Directions, Directions], k: int) -> Mapping[str, ArrayLike]:
    """The numbers by one k."""
    own, old = both
    energy, of_base = (float(np.square(X).sum()) for X in (D, W))
    U, V, P, Q = (each.on(side)[:, :k] for each in both for side in SIDES)
    fits = k <= len(own.s)
    first = float(np.square(own.s[:k]).sum())
    within = float(np.square(U.T @ W @ V).sum()) if own.known(k) else np.nan
    there = energy if old.known(k) else np.nan
    together = own.known(k) and old.known(k)
    return {
        "leading_share": _ratio(first, energy) if fits else np.nan,
        "overlap": [overlap(U, P), overlap(V, Q)] if together else [np.nan] * 2,
        "captured": [_ratio(float(np.square(X).sum()), there) for X in (P.T @ D, D @ Q)],
        "captured_both": _ratio(float(np.square(P.T @ D @ Q).sum()), there),
        "base_share": _ratio(within, of_base),
        "amplification": _ratio(np.sqrt(first), np.sqrt(within)),
        "chance": [k / n if fits else np.nan for n in D.shape],
    }


def _near(tuned: Directions, base: Directions, ranks: Sequence[int], similar: float) -> dict[str, ArrayLike]:
    """Largest cosines with the base's vectors [place, side], and by k [k, side] their mean and how many are low."""
    each = np.stack([nearest(tuned, base, side, max(ranks)) for side in SIDES], axis=-1)
    leading = [each[:k] for k in ranks]
    counts = [np.where(np.isnan(one).any(axis=0), np.nan, (one < similar).sum(axis=0)) for one in leading]
    return {
        "nearest": each,
        "nearest_mean": np.stack([one.mean(axis=0) for one in leading]),
        "intruders": np.stack(counts),
    }


def _ratio(above: float, below: float) -> float:
    """NaN where there is nothing to divide by, or nothing known."""
    return above / below if below > 0 else np.nan
