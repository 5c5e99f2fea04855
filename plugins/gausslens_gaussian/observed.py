"""What gaussian.moments gathers of one layer, pass by pass. Vectors come as [..., token, d], heads in front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens.maths.moments import Floats, RunningMoments

from .lengths import RunningLengths
from .normality import RunningShape
from .robust import Ball, Sample, ball
from .sketch import RunningSketch

if TYPE_CHECKING:
    from numpy.typing import NDArray


class First:
    """The first pass: mean and covariance (or a sketch of it), lengths, and the shape along fixed random directions."""

    def __init__(self, omega: Floats | None = None, robust: bool = False) -> None:
        self.vectors = _vectors(omega)
        self.lengths = RunningLengths()
        self.apart = RunningLengths()
        self.shape = RunningShape()
        self.sample = Sample() if robust else None

    def add(self, values: Floats, directions: Floats, places: NDArray[np.uint64]) -> None:
        """Take in the vectors that count."""
        self.lengths.add(np.linalg.norm(values, axis=-1))
        self.vectors.add(values)
        self.shape.add(values @ directions.T)
        if self.sample is not None:
            self.sample.add(places, np.moveaxis(values, -2, 0).astype(np.float32))

    def merge(self, other: First) -> None:
        """Take in what another shard has seen."""
        self.lengths.merge(other.lengths)
        self.apart.merge(other.apart)
        self.shape.merge(other.shape)
        self.vectors.merge(other.vectors)  # type: ignore[arg-type]  # both whole or both sketches
        if self.sample is not None and other.sample is not None:
            self.sample.merge(other.sample)

    def bulk(self) -> list[Ball]:
        """Where the bulk is, for each head."""
        assert self.sample is not None
        values = self.sample.values
        return [ball(values[:, head]) for head in range(values.shape[1])] if values.ndim == 3 else [ball(values)]

    def principal(self, count: int) -> Floats:
        """The leading directions [..., direction, d] of the covariance."""
        if isinstance(self.vectors, RunningSketch):
            return self.vectors.covariance(count).directions
        vectors = np.linalg.eigh(self.vectors.covariance)[1][..., ::-1][..., :count]
        found: Floats = np.swapaxes(vectors, -1, -2)
        return found


class Second:
    """The second pass: the shape along the leading directions, and the moments of the bulk."""

    def __init__(self) -> None:
        self.shape = RunningShape()
        self.inside: list[RunningMoments | RunningSketch] = []

    def add(
        self, values: Floats, directions: Floats | None, balls: Sequence[Ball], omega: Floats | None = None
    ) -> None:
        """Take in the vectors that count."""
        if directions is not None:
            self.shape.add(values @ np.swapaxes(directions, -1, -2))
        if balls:
            self.inside = self.inside or [_vectors(omega) for _ in balls]
            heads = values if values.ndim == 3 else values[None]
            for state, where, own in zip(self.inside, balls, heads, strict=True):
                state.add(own[where.holds(own)])

    def merge(self, other: Second) -> None:
        """Take in what another shard has seen."""
        self.shape.merge(other.shape)
        if not self.inside:
            self.inside = other.inside
            return
        for mine, theirs in zip(self.inside, other.inside, strict=True):
            mine.merge(theirs)  # type: ignore[arg-type]  # both whole or both sketches


def _vectors(omega: Floats | None) -> RunningMoments | RunningSketch:
    return RunningMoments() if omega is None else RunningSketch(omega)


def counted(tokens: str, text: NDArray[np.bool_], mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which tokens [prompt, position] count: see the parameter ``tokens``."""
    if tokens == "all":
        return mask
    chosen = text & mask
    if tokens == "text":
        chosen = chosen.copy()
        chosen[:, :1] = False
    return chosen


def heads_in_front(values: NDArray[Any]) -> Floats:
    """[token, d] as it is, [token, head, d] as [head, token, d]; float64."""
    wide = values.astype(np.float64)
    return np.ascontiguousarray(wide.swapaxes(0, 1)) if wide.ndim == 3 else wide
