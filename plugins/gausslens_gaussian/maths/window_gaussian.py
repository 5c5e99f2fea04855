"""The joint Gaussian of a window of positions, from samples [sample, position, d]. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gausslens.maths.moments import Floats, RunningMoments
from gausslens.maths.spectra import rank, spectrum, support_entropy

from .information_from_samples import (
    Information,
    TooFewSamples,
    entropy_bias,
    information_of_whitened,
    needed,
    whitened,
)


@dataclass(frozen=True)
class WindowGaussian:
    """What a window says. ``information[i][j]`` is of positions i < j; entropies are corrected for the sample size.

    ``conditional_entropy[i]`` is H(X_{i+1} | X_i) = H(X_{i+1}) - I(X_i; X_{i+1}), ``transition[i]`` the matrix B of the
    regression X_{i+1} ~ B X_i, ``explained[i]`` the share of the variance of X_{i+1} that it removes (adjusted for the
    number of regressors), ``rate`` the decay of information with distance in nats per position.
    """

    covariance: Floats
    entropy: Floats
    information: list[list[Information | None]]
    conditional_entropy: Floats
    transition: Floats
    explained: Floats
    decay: Floats
    rate: float

    @property
    def block_determinants(self) -> Floats:
        """log |det Cov(X_i, X_j)| of each pair of positions; minus infinity where that is singular, NaN for i = j."""
        blocks = self.covariance.swapaxes(1, 2)
        found: Floats = np.linalg.slogdet(blocks)[1]
        np.fill_diagonal(found, np.nan)
        return found

    @property
    def determinant_correlation(self) -> float:
        """Rank correlation of ``block_determinants`` with the information, over pairs; NaN with fewer than three.

        Information is -1/2 sum log(1 - rho_k^2) of canonical correlations; a determinant changes with the scale of a
        position, and is zero where one rho_k is.
        """
        i, j = np.triu_indices(len(self.information), 1)
        pairs = np.array(
            [self.block_determinants[i, j], [_value(self.information[a][b]) for a, b in zip(i, j, strict=True)]]
        )
        pairs = pairs[:, np.isfinite(pairs).all(axis=0)]
        if pairs.shape[1] < 3:
            return float("nan")
        ranks = pairs.argsort(axis=1).argsort(axis=1)
        return float(np.asarray(np.corrcoef(ranks))[0, 1])


def fit_window(samples: Floats, permutations: int, rng: np.random.Generator) -> WindowGaussian:
    """Fit the joint Gaussian of a window; refuses with the number of samples that it needs."""
    n, window, d = samples.shape
    if n < needed(d, d):
        raise TooFewSamples(f"mutual information of {d} and {d} dimensions needs {needed(d, d)} samples, not {n}")
    moments = RunningMoments()
    moments.add(samples.reshape(n, window * d))
    blocks = moments.covariance.reshape(window, d, window, d)
    spectra = spectrum(np.stack([blocks[i, :, i] for i in range(window)]))
    entropies = support_entropy(spectra) - np.array([entropy_bias(n, int(r)) for r in rank(spectra)])
    columns = [whitened(samples[:, i]) for i in range(window)]
    information: list[list[Information | None]] = [
        [information_of_whitened(columns[i], columns[j], permutations, rng) if i < j else None for j in range(window)]
        for i in range(window)
    ]
    steps = range(window - 1)
    transition, explained = zip(*(_regression(blocks, i, n) for i in steps), strict=True)
    following = np.array([_value(information[i][i + 1]) for i in steps])
    decay = np.array(
        [np.mean([_value(information[i][i + lag]) for i in range(window - lag)]) for lag in range(1, window)]
    )
    return WindowGaussian(
        blocks,
        entropies,
        information,
        entropies[1:] - following,
        np.stack(transition),
        np.array(explained),
        decay,
        _rate(decay),
    )


def _value(found: Information | None) -> float:
    assert found is not None
    return found.value


def _regression(blocks: Floats, i: int, count: int) -> tuple[Floats, float]:
    """X_{i+1} on X_i: the matrix, and the share of variance explained, adjusted."""
    before, across, after = blocks[i, :, i], blocks[i + 1, :, i], blocks[i + 1, :, i + 1]
    matrix = across @ np.linalg.pinv(before, hermitian=True)
    total = float(np.trace(after))
    left = (total - float(np.trace(matrix @ across.T))) * (count - 1) / (count - 1 - len(before))
    return matrix, 1 - left / total if total > 0 else 0.0


def _rate(decay: Floats) -> float:
    """Minus the slope of the logarithm of positive information against distance; NaN with fewer than two."""
    seen = np.flatnonzero((decay > 0) & np.isfinite(decay))
    if len(seen) < 2:
        return float("nan")
    centred = seen - seen.mean()
    return float(-(centred @ np.log(decay[seen])) / (centred @ centred))
