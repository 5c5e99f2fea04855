"""Mean and covariance of a stream of vectors, in float64, and what a covariance's spectrum says. Pure numpy.

``gausslens.maths.spectra.effective_rank`` takes the same spectra.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


class RunningMoments:
    """Count, mean and scatter matrix of vectors that come in batches, alone or side by side (as the heads of a layer).

    ``add`` takes values [..., sample, d]; the leading axes are kept apart. A batch is centred on its own mean before it
    is multiplied, and two states are merged by Chan, Golub and LeVeque (1979):

        n = n1 + n2;  mean = mean1 + delta n2 / n;  scatter = scatter1 + scatter2 + delta delta^T n1 n2 / n

    with delta = mean2 - mean1. So nothing is lost where the mean is large beside the spread, as it is by
    E[x x^T] - E[x] E[x]^T. What the mean loses by rounding is kept beside it (``_rest``): so errors are relative to the
    spread, not to the mean, and any split and order of merging agree.
    """

    def __init__(self) -> None:
        self.count = 0
        self.scatter: Floats = np.zeros((0, 0))
        self._mean: Floats = np.zeros(0)
        self._rest: Floats = np.zeros(0)

    def add(self, values: ArrayLike) -> None:
        """Take in a batch of vectors [..., sample, d]."""
        batch = RunningMoments()
        samples = np.array(values, dtype=np.float64)  # a copy: it is centred in place
        batch.count = samples.shape[-2]
        if not batch.count:
            return
        batch._mean = samples.mean(axis=-2)
        samples -= batch._mean[..., None, :]
        batch._rest = samples.mean(axis=-2)
        # y^T y of one array is a BLAS syrk in numpy: half the work of a general product.
        batch.scatter = np.matmul(np.swapaxes(samples, -1, -2), samples)
        self.merge(batch)

    def merge(self, other: RunningMoments) -> None:
        """Take in what another state has seen; ``other`` is not changed."""
        if not other.count:
            return
        if not self.count:
            self.count, self.scatter = other.count, other.scatter.copy()
            self._mean, self._rest = other._mean.copy(), other._rest.copy()
            return
        count = self.count + other.count
        delta = (other._mean - self._mean) + (other._rest - self._rest)
        self._mean, self._rest = _added(self._mean, self._rest + delta * (other.count / count))
        self.scatter += other.scatter
        self.scatter += delta[..., :, None] * (delta * (self.count * other.count / count))[..., None, :]
        self.count = count

    @property
    def mean(self) -> Floats:
        """The mean vector."""
        mean: Floats = self._mean + self._rest
        return mean

    @property
    def covariance(self) -> Floats:
        """The unbiased covariance, scatter / (n - 1)."""
        if self.count < 2:
            raise ValueError(f"a covariance needs two vectors or more, there were {self.count}")
        covariance: Floats = self.scatter / (self.count - 1)
        return covariance


def _added(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """a + b, and what rounding took from it (Knuth's two-sum)."""
    total = a + b
    seen = total - a
    return total, (a - (total - seen)) + (b - seen)


def spectrum(covariance: ArrayLike) -> Floats:
    """Eigenvalues lambda_1 >= ... >= lambda_d of a covariance [..., d, d]; those below zero by rounding are zero.

    Sigma = sum lambda_i u_i u_i^T: the variances along the principal directions u_i (Pearson 1901).
    """
    return np.clip(np.linalg.eigvalsh(np.asarray(covariance, dtype=np.float64)), 0.0, None)[..., ::-1]


def tolerance(eigenvalues: ArrayLike) -> Floats:
    """Below this an eigenvalue is rounding: d eps lambda_max, for each spectrum on the last axis.

    eps is that of float64. It is the rule of numpy's and MATLAB's matrix rank (Press et al., Numerical Recipes, 2007).
    """
    values = np.asarray(eigenvalues, dtype=np.float64)
    bound: Floats = values.shape[-1] * np.finfo(np.float64).eps * values.max(axis=-1)
    return bound


def rank(eigenvalues: ArrayLike) -> NDArray[np.int64]:
    """How many eigenvalues are more than rounding: #{i : lambda_i > ``tolerance``}, the numerical rank."""
    values = np.asarray(eigenvalues, dtype=np.float64)
    return np.asarray((values > tolerance(values)[..., None]).sum(axis=-1), dtype=np.int64)


def anisotropy(eigenvalues: ArrayLike) -> Floats:
    """lambda_max / trace, the share of the trace that the largest eigenvalue holds.

    1/d for a sphere, 1 for a line, 0 if all are zero (Razzhigaev et al. 2024, on centred vectors).
    """
    values = np.asarray(eigenvalues, dtype=np.float64)
    total = values.sum(axis=-1)
    return np.where(total > 0, values.max(axis=-1) / np.where(total > 0, total, 1.0), 0.0)


def support_entropy(eigenvalues: ArrayLike) -> Floats:
    """Entropy in nats of a Gaussian within its support: 1/2 sum log(2 pi e lambda_i) over the ``rank`` directions.

    That of a Gaussian of these variances (Cover and Thomas 2006, theorem 8.4.1), in the subspace that it fills.
    With full rank it is the differential entropy 1/2 log((2 pi e)^d det Sigma). With less, that is minus infinity, and
    this is the entropy of the Gaussian in the subspace it fills: compare it only where the ranks are equal. 0 where the
    covariance is zero: a point fills no direction.
    """
    values = np.asarray(eigenvalues, dtype=np.float64)
    seen = values > tolerance(values)[..., None]
    logs = np.log(2 * np.pi * np.e * np.where(seen, values, 1.0))
    result: Floats = 0.5 * np.where(seen, logs, 0.0).sum(axis=-1)
    return result
