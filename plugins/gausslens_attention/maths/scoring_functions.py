"""The scoring functions that Conti (2024) reviews, fitted to reproduce a head's scores: which of them is enough?

    dot              s = a <q, k> + c                                  (2 numbers)
    multiplicative   s = q' W k + c                                    (Luong et al. 2015; d_q d_k + 1)
    additive         s = u' tanh(W_1 q + W_2 k + b) + c                (Bahdanau et al. 2014; m (d_q + d_k + 2) + 1)

on queries [n, d_q] and keys [n, d_k], where q and k may be a head's own or the residual stream. Each is fitted by
least squares to the scores that a mask leaves; the first two in closed form, the last from a seeded start by L-BFGS.
(b belongs to the hidden layer, in R^m; the values of a score have any sign.) A constant in a row is nothing to a
softmax.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .arrays import Bools, Floats

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Score = Callable[[Floats, Floats], Floats]


@dataclass(frozen=True)
class FittedScore:
    """A fitted function: ``score(q, k)`` is [query, key]; ``explained`` the share of the scores' variance (R^2)."""

    name: str
    score: Score
    explained: float
    numbers: int


def fit_dot(q: ArrayLike, k: ArrayLike, scores: ArrayLike, mask: ArrayLike | None = None) -> FittedScore:
    """a <q, k> + c; q and k have the same width."""
    Q, K, S, seen = _given(q, k, scores, mask)
    a, c = np.polyfit((Q @ K.T)[seen], S[seen], 1) if np.ptp((Q @ K.T)[seen]) > 0 else (0.0, float(S[seen].mean()))
    return _fitted("dot", lambda x, y: a * (x @ y.T) + c, 2, Q, K, S, seen)


def fit_multiplicative(
    q: ArrayLike, k: ArrayLike, scores: ArrayLike, mask: ArrayLike | None = None, ridge: float = 1e-10
) -> FittedScore:
    """q' W k + c; the smallest W where cells do not determine it.

    ``ridge`` is relative to the mean square of the products, for the normal equations of d_q d_k unknowns.
    """
    Q, K, S, seen = _given(q, k, scores, mask)
    rows, columns = np.nonzero(seen)
    products = (Q[rows, :, None] * K[columns, None, :]).reshape(len(rows), -1)
    design = np.column_stack([products, np.ones(len(rows))])
    gram = design.T @ design
    gram[np.diag_indices_from(gram)] += ridge * np.trace(gram) / len(gram)
    solved = np.linalg.lstsq(gram, design.T @ S[seen], rcond=None)[0]
    W, c = solved[:-1].reshape(Q.shape[1], K.shape[1]), solved[-1]
    return _fitted("multiplicative", lambda x, y: x @ W @ y.T + c, W.size + 1, Q, K, S, seen)


def fit_additive(
    q: ArrayLike,
    k: ArrayLike,
    scores: ArrayLike,
    mask: ArrayLike | None = None,
    hidden: int = 16,
    seed: int = 0,
    steps: int = 200,
) -> FittedScore:
    """u' tanh(W_1 q + W_2 k + b) + c with ``hidden`` units: a local optimum, the same for the same seed."""
    import torch

    Q, K, S, seen = _given(q, k, scores, mask)
    x, y, target, kept = (torch.as_tensor(a) for a in (Q, K, S, seen))
    draw = torch.Generator().manual_seed(seed)
    shapes = ((hidden, Q.shape[1]), (hidden, K.shape[1]), (hidden,), (hidden,), ())
    start = [torch.randn(s, generator=draw, dtype=torch.float64) / max(s[-1] if s else 1, 1) ** 0.5 for s in shapes]
    W1, W2, b, u, c = (p.requires_grad_() for p in start)
    with torch.no_grad():
        c.fill_(target[kept].mean())

    def made() -> torch.Tensor:
        found: torch.Tensor = torch.tanh((x @ W1.T)[:, None] + (y @ W2.T)[None] + b) @ u + c
        return found

    optimiser = torch.optim.LBFGS([W1, W2, b, u, c], max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = (made() - target)[kept].square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    A, B, bias, out, at = (p.detach().numpy() for p in (W1, W2, b, u, c))

    def score(some: Floats, other: Floats) -> Floats:
        hidden_units = np.tanh((some @ A.T)[:, None] + (other @ B.T)[None] + bias)
        found: Floats = hidden_units @ out + at
        return found

    return _fitted("additive", score, sum(p.size for p in (A, B, bias, out)) + 1, Q, K, S, seen)


def explained(score: Score, q: ArrayLike, k: ArrayLike, scores: ArrayLike, mask: ArrayLike | None = None) -> float:
    """R^2 on the scores that a mask leaves, of a function that may have been fitted to others: negative, if it does
    worse than their mean.
    """
    Q, K, S, seen = _given(q, k, scores, mask)
    left = (score(Q, K) - S)[seen]
    spread = S[seen] - S[seen].mean()
    total = float(spread @ spread)
    return 1.0 - float(left @ left) / total if total > 0 else 1.0


def _given(
    q: ArrayLike, k: ArrayLike, scores: ArrayLike, mask: ArrayLike | None
) -> tuple[Floats, Floats, Floats, Bools]:
    """Double precision; the cells that count are those of the mask whose score is finite."""
    Q, K, S = (np.asarray(a, dtype=np.float64) for a in (q, k, scores))
    seen = np.isfinite(S) if mask is None else np.isfinite(S) & np.asarray(mask, dtype=bool)
    if not seen.any():
        raise ValueError("there is no score to fit: every cell is masked")
    return Q, K, np.where(seen, S, 0.0), seen


def _fitted(name: str, score: Score, numbers: int, Q: Floats, K: Floats, S: Floats, seen: Bools) -> FittedScore:
    return FittedScore(name, score, explained(score, Q, K, S, seen), numbers)
