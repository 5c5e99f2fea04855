"""A covariance too wide to hold, as leading directions plus a diagonal, with a bound on the error. Pure numpy.

The scatter matrix S is seen only through S Omega, Omega [d, width] fixed Gaussian; with its exact diagonal that gives
the Nystrom approximation (Tropp, Yurtsever, Udell, Cevher 2017)

    N = (S Omega) (Omega^T S Omega)^+ (S Omega)^T,   0 <= N <= S

so S - N is positive, its trace is known exactly, and its norm is at most that trace: for every eigenvalue,
lambda_i(N) <= lambda_i(S) <= lambda_i(N) + tr(S - N). Memory is d x width in place of d x d.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gausslens.maths.moments import Floats
from gausslens.maths.on_device import Vectors

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@cache
def omega(d: int, width: int) -> Floats:
    """Omega: fixed, the same for the same shape."""
    return np.random.default_rng([d, width]).standard_normal((d, width))


class Sketched(NamedTuple):
    """Eigenvalues (largest first, each at most ``error`` too low), their directions as rows, and what is left.

    Where the vectors fill fewer directions than asked for, the others are zero.

    ``rest`` is the exact variance of each coordinate that the directions do not hold: directions plus diag(rest) is
    the low-rank plus diagonal covariance.
    """

    eigenvalues: Floats
    directions: Floats
    rest: Floats
    error: float


class RunningSketch:
    """Count, mean, variances and S Omega of vectors [sample, d] that come in batches; merged as RunningMoments."""

    def __init__(self, omega: Floats) -> None:
        self.omega = omega
        self.count = 0
        self.mean: Floats = np.zeros(len(omega))
        self.squares: Floats = np.zeros(len(omega))
        self.product: Floats = np.zeros(omega.shape)

    def __deepcopy__(self, memo: dict[int, object]) -> RunningSketch:
        """A copy that shares Omega, as large as all the rest and never changed."""
        made = RunningSketch(self.omega)
        made.merge(self)
        return made

    def add(self, values: ArrayLike | Vectors) -> None:
        """Take in a batch of vectors [sample, d]; those of a device are reduced there."""
        batch = RunningSketch(self.omega)
        if isinstance(values, Vectors):
            if values.shape[-2]:
                batch.count, batch.mean = values.shape[-2], values.mean + values.rest
                batch.squares, batch.product = values.sketched(self.omega)
            self.merge(batch)
            return
        samples = np.array(values, dtype=np.float64)
        batch.count = len(samples)
        if not batch.count:
            return
        mean = samples.mean(axis=0)
        samples -= mean
        rest = samples.mean(axis=0)
        samples -= rest
        batch.mean = mean + rest
        batch.squares = (samples**2).sum(axis=0)
        batch.product = samples.T @ (samples @ self.omega)
        self.merge(batch)

    def merge(self, other: RunningSketch) -> None:
        """Take in what another state has seen; ``other`` is not changed."""
        if not other.count:
            return
        count = self.count + other.count
        delta = other.mean - self.mean
        between = delta * (self.count * other.count / count)
        self.mean = self.mean + delta * (other.count / count)
        self.squares = self.squares + other.squares + delta * between
        self.product = self.product + other.product + np.outer(between, delta @ self.omega)
        self.count = count

    @property
    def variance(self) -> Floats:
        """The unbiased variance of each coordinate, exact."""
        found: Floats = self.squares / (self.count - 1)
        return found

    def covariance(self, keep: int) -> Sketched:
        """The approximation of the unbiased covariance, with ``keep`` directions."""
        product = self.product / (self.count - 1)
        inner = self.omega.T @ product
        values, vectors = np.linalg.eigh((inner + inner.T) / 2)
        # Below this the pseudo-inverse would amplify rounding.
        seen = values > len(product) * np.finfo(np.float64).eps * max(values[-1], 0.0)
        root = product @ (vectors[:, seen] / np.sqrt(values[seen]))
        left, singular, _ = np.linalg.svd(root, full_matrices=False)
        eigenvalues = np.zeros(max(keep, len(singular)))
        eigenvalues[: len(singular)] = singular**2
        error = max(float(self.variance.sum() - eigenvalues.sum()), 0.0)
        directions = np.zeros((keep, len(product)))
        kept = min(keep, len(singular))
        directions[:kept] = left.T[:kept]
        rest = np.clip(self.variance - directions.T**2 @ eigenvalues[:keep], 0.0, None)
        return Sketched(eigenvalues[:keep], directions, rest, error)
