"""Mean and covariance of a stream of vectors, in float64. Pure numpy.

``spectra`` says what the eigenvalues of a covariance tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


Arrays = dict[str, NDArray[Any]]


def arrays_of(state: Any) -> Arrays:
    """All numbers and arrays of a running state, and of states in it, by their path: ``vectors/scatter``.

    They are the state's own, not copies. A ``state()`` of a stream analysis may give them.
    """
    found: Arrays = {}
    for name, value in (state if isinstance(state, Mapping) else vars(state)).items():
        if isinstance(value, np.ndarray | int | float):
            found[str(name)] = np.asarray(value)
        elif value is not None:
            found |= {f"{name}/{path}": array for path, array in arrays_of(value).items()}
    return found


def put_arrays(state: Any, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Put what ``arrays_of`` gave into a fresh state that has the same states in it; the arrays are then its own."""
    inner = parted(arrays)
    for name, value in vars(state).items():
        if name in arrays:
            vars(state)[name] = arrays[name] if isinstance(value, np.ndarray) else type(value)(arrays[name])
        elif name in inner:
            put_arrays(value, inner[name])


def parted(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Arrays]:
    """Arrays by the first part of their paths, each with the rest of its path; those of one part are left out."""
    found: dict[str, Arrays] = {}
    for path, array in arrays.items():
        first, _, rest = path.partition("/")
        if rest:
            found.setdefault(first, {})[rest] = array
    return found
