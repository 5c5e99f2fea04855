"""Vectors on a device: their lengths, mean, scatter and powers, reduced there. What comes back is float64 of numpy.

Where the device has float64, all is computed in it. Where it has none, vectors are float32 (as activations are), and
their mean is a pair of float32 (``two_floats``): what is left after it is taken away is exact to 2^-24 of itself,
however large the mean is. Products of that are of float32, in blocks of ``BLOCK`` vectors, and blocks are added as
pairs. So errors are relative to the spread: of a scatter |error_ij| <= (BLOCK + 4) 2^-24 sqrt(S_ii S_jj) = 1.5e-5, near
3e-7 as roundings cancel; of powers 2 to 4 along a direction they are that of the projection, d 2^-24 at most.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .two_floats import added, less, on_host, split, squared, summed, two_product
from .widths import alike, has_float64, in_numpy, wide

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from .widths import Floats, Values

# Vectors whose products are added in float32, where there is no more.
BLOCK = 256


class Vectors:
    """Vectors [..., sample, d] of a device. Running states (``gausslens.maths.moments``) take them as they take arrays.

    What is handed in and out (a centre, directions, sums) is numpy.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.wide = has_float64(tensor)
        self.tensor = wide(tensor)

    @property
    def shape(self) -> tuple[int, ...]:
        """As that of an array."""
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        """How many axes."""
        return int(self.tensor.dim())

    def __getitem__(self, head: int) -> Vectors:
        """Those of one place of the first axis."""
        return Vectors(self.tensor[head])

    def lengths(self, centre: Floats | None = None) -> Floats:
        """|x - centre| [..., sample]; of a device without float64 to 1e-12 of it."""
        x = self.tensor
        if self.wide:
            apart = x if centre is None else x - alike(centre, x)
            found: Floats = in_numpy(apart.square().sum(dim=-1).sqrt())
            return found
        squares = two_product(x, x) if centre is None else squared(less(x, split(centre, x)))
        return np.sqrt(np.maximum(on_host(summed(squares, x.dim() - 1)), 0.0))

    @cached_property
    def mean(self) -> Floats:
        """The mean, [..., d]."""
        return self._sum(self.tensor) / self.shape[-2]

    @cached_property
    def centred(self) -> torch.Tensor:
        """The vectors about their mean."""
        if self.wide:
            apart: torch.Tensor = self.tensor - alike(self.mean, self.tensor)[..., None, :]
            return apart
        high, low = split(self.mean, self.tensor)
        return less(self.tensor, (high[..., None, :], low[..., None, :]))[0]

    @property
    def rest(self) -> Floats:
        """What rounding took from the mean; of pairs that is below what can be seen in vectors about it."""
        return self._sum(self.centred) / self.shape[-2] if self.wide else np.zeros_like(self.mean)

    def sum_of_units(self) -> tuple[Floats, int]:
        """The sum of x / |x| over samples, and of how many: not of those without a length. Of vectors [sample, d]."""
        lengths = self.lengths()
        some = samples(self, lengths > 0)
        assert isinstance(some, Vectors)
        units = some.tensor / alike(lengths[lengths > 0], some.tensor)[:, None]
        return self._sum(units), len(units)

    def scatter(self) -> Floats:
        """sum (x - mean)(x - mean)^T, [..., d, d]."""
        return self._products(self.centred, self.centred)

    def sketched(self, omega: Floats) -> tuple[Floats, Floats]:
        """The diagonal of the scatter [..., d], and the scatter times omega [d, width]."""
        centred = self.centred
        return self._sum(centred.square()), self._products(centred, centred @ alike(omega, centred))

    def powers(self, directions: Floats) -> tuple[Floats, Floats]:
        """Of x along each direction [..., k, d]: the mean [..., k], and sums of powers 2 to 4 about it [3, ..., k]."""
        centred, count = self.centred, self.shape[-2]
        along = centred @ alike(directions, centred).mT
        rest = self._sum(along) / count
        along = along - alike(rest, along)[..., None, :]
        squares = along.square()
        sums = np.stack([self._sum(one) for one in (squares, squares * along, squares.square())])
        mean: Floats = np.einsum("...d,...kd->...k", self.mean, directions)
        return mean + rest, sums

    def along(self, directions: Floats) -> Floats:
        """x along each direction [..., k, d], all of it copied: [..., sample, k]."""
        centred = self.centred
        found: Floats = in_numpy(centred @ alike(directions, centred).mT)
        mean: Floats = np.einsum("...d,...kd->...k", self.mean, directions)
        return found + mean[..., None, :]

    def _sum(self, x: torch.Tensor) -> Floats:
        """The sum over samples."""
        if self.wide:
            found: Floats = in_numpy(x.sum(dim=-2))
            return found
        import torch

        return on_host(summed((x, torch.zeros_like(x)), x.dim() - 2))

    def _products(self, a: torch.Tensor, b: torch.Tensor) -> Floats:
        """A^T b, summed over samples."""
        if self.wide:
            found: Floats = in_numpy(a.mT @ b)
            return found
        import torch

        total = None
        for start in range(0, a.shape[-2], BLOCK):
            size = min(BLOCK, a.shape[-2] - start)
            block = a.narrow(-2, start, size).mT @ b.narrow(-2, start, size)
            pair = (block, torch.zeros_like(block))
            total = pair if total is None else added(total, pair)
        assert total is not None
        return on_host(total)


# On the CPU an array of numpy in float64, on a device vectors.
Placed: TypeAlias = "NDArray[np.float64] | Vectors"


def along(values: Values, axes: Floats) -> Floats:
    """Vectors [..., d] times rows [k, d], as numpy [..., k]: on a device these are multiplied there."""
    if isinstance(values, np.ndarray):
        found: Floats = values @ axes.T
        return found
    return Vectors(values.reshape(-1, values.shape[-1])).along(axes).reshape(*values.shape[:-1], -1)


def placed(values: Values) -> Placed:
    """Vectors [..., sample, d] as running states take them: an array as it is, a tensor of a device as ``Vectors``."""
    return values if isinstance(values, np.ndarray) else Vectors(values)


def samples(vectors: Placed, chosen: NDArray[Any]) -> Placed:
    """Some of the samples of vectors [..., sample, d], by their places or by a mask."""
    if not isinstance(vectors, Vectors):
        return vectors[..., chosen, :]
    places = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
    return Vectors(vectors.tensor.index_select(-2, vectors.tensor.new_tensor(places, dtype=_long())))


def of_tokens(values: Values, chosen: NDArray[np.bool_]) -> Placed:
    """The vectors of some tokens of [prompt, position, d] or [prompt, position, head, d], heads in front.

    ``chosen`` is [prompt, position].
    """
    if isinstance(values, np.ndarray):
        array = values[chosen].astype(np.float64)
        return np.ascontiguousarray(array.swapaxes(0, 1)) if array.ndim == 3 else array
    places = values.new_tensor(np.flatnonzero(chosen), dtype=_long())
    tensor = values.detach().flatten(0, 1).index_select(0, places)
    return Vectors(tensor.swapaxes(0, 1) if tensor.dim() == 3 else tensor)


def _long() -> Any:
    import torch

    return torch.long
