"""Mean and covariance of a stream of vectors, in float64; the arrays of any running state, in and out. Numpy.

``spectra`` says what the eigenvalues of a covariance tell. ``arrays_of`` and ``put_arrays`` are for states that are
merged, ``packed`` and ``unpacked`` for small arrays of many prompts: what ``state`` and ``restore`` of stream analyses
need.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .on_device import Vectors

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

    def add(self, values: ArrayLike | Vectors) -> None:
        """Take in a batch of vectors [..., sample, d]; those of a device are reduced there."""
        batch = RunningMoments()
        if isinstance(values, Vectors):
            if values.shape[-2]:
                batch.count, batch.scatter = values.shape[-2], values.scatter()
                batch._mean, batch._rest = values.mean, values.rest
            self.merge(batch)
            return
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
State = TypeVar("State")


def arrays_of(state: Any) -> Arrays:
    """All numbers and arrays of a running state, and of states in it, by their path: ``vectors/scatter``.

    They are the state's own, not copies. A ``state()`` of a stream analysis may give them.
    """
    found: Arrays = {}
    for name, value in (state if isinstance(state, Mapping) else vars(state)).items():
        if isinstance(value, np.ndarray | np.generic | int | float):
            found[str(name)] = np.asarray(value)
        elif value is not None:
            found |= {f"{name}/{path}": array for path, array in arrays_of(value).items()}
    return found


def put_arrays(state: State, arrays: Mapping[str, NDArray[Any]]) -> State:
    """Put what ``arrays_of`` gave into a fresh state that has the same states in it; the arrays are then its own."""
    inner = parted(arrays)
    for name, value in vars(state).items():
        if name in arrays:
            as_it_is = value is None or isinstance(value, np.ndarray)
            vars(state)[name] = arrays[name] if as_it_is else type(value)(arrays[name])
        elif name in inner:
            put_arrays(value, inner[name])
    return state


def put_each(fresh: Callable[[], State], arrays: Mapping[str, NDArray[Any]]) -> dict[Any, State]:
    """What ``arrays_of`` gave of states by layer, or by any numbers: ``fresh`` makes each, and it gets its arrays."""
    return {literal_eval(key): put_arrays(fresh(), own) for key, own in parted(arrays).items()}


def parted(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Arrays]:
    """Arrays by the first part of their paths, each with the rest of its path; those of one part are left out."""
    found: dict[str, Arrays] = {}
    for path, array in arrays.items():
        first, _, rest = path.partition("/")
        if rest:
            found.setdefault(first, {})[rest] = array
    return found


def packed(held: Mapping[Any, Any]) -> Arrays:
    """What is held of many layers and prompts, in three arrays for each name: keys, shapes, and cells in a row.

    ``held`` is {key: {name: array}}, or states in place of the inner mappings. A key is a number or a tuple of as many
    numbers as any other, from 0 or None; an array of one name has the same type and as many axes as any other. Some
    hundred thousand small arrays are as many lines in a file, and take longer to write than to compute; these do not.
    """
    by_name: dict[str, dict[tuple[int | None, ...], NDArray[Any]]] = {}
    for key, state in held.items():
        for name, array in arrays_of(state).items():
            by_name.setdefault(name, {})[key if isinstance(key, tuple) else (key,)] = array
    found: Arrays = {}
    for name, of in by_name.items():
        if len({(array.dtype, array.ndim) for array in of.values()}) > 1:
            raise TypeError(f"arrays {name!r} are not all of one type and number of axes")
        found[f"{name}/keys"] = np.array([[-1 if n is None else n for n in key] for key in of], dtype=np.int64)
        found[f"{name}/shapes"] = np.array([array.shape for array in of.values()], dtype=np.int64)
        found[f"{name}/cells"] = np.concatenate([array.reshape(-1) for array in of.values()])
    return found


def unpacked(arrays: Mapping[str, NDArray[Any]]) -> dict[Any, Arrays]:
    """{key: {name: array}} of what ``packed`` gave: views, in C order whatever they had."""
    found: dict[Any, Arrays] = {}
    names = [path.removesuffix("/cells") for path in arrays if path.endswith("/cells")]
    for name in names:
        keys, shapes, cells = (arrays[f"{name}/{part}"] for part in ("keys", "shapes", "cells"))
        ends = np.cumsum(shapes.prod(axis=1, dtype=np.int64))
        each = [tuple(None if n < 0 else n for n in key) for key in keys.tolist()]
        for key, shape, own in zip(each, shapes.tolist(), np.split(cells, ends[:-1]), strict=True):
            found.setdefault(key if len(key) > 1 else key[0], {})[name] = own.reshape(shape)
    return found
