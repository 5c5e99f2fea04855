"""Correlations of cosines with what attention makes of pairs of tokens, over all pairs and within each query. Numpy."""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gausslens.maths.resampling import GROUPS, jackknife

Floats: TypeAlias = NDArray[np.float64]
KINDS = ("content", "score", "pattern", "content_raw")


class Correlations:
    """Sums of one layer: ``take_cosines`` of a prompt's pairs, then ``add`` what each head makes of them.

    Sums [group, head, kind, all pairs or within queries, (n, c, c^2, v, v^2, c v)]; groups are of prompts, for errors.
    ``kinds`` of the first of KINDS are told.
    """

    def __init__(self, heads: int, kinds: int = len(KINDS)) -> None:
        self.sums = np.zeros((GROUPS, heads, kinds, 2, 6))
        self.about: Counter[int] = Counter()
        self.group = 0
        self.cosine: list[Floats] = []
        self.mask: NDArray[np.bool_] = np.zeros((0, 0), dtype=bool)

    @property
    def pairs(self) -> int:
        """How many pairs were seen."""
        return sum(self.about.values())

    def take_cosines(self, prompt: int, cosine: Floats, mask: NDArray[np.bool_], lags: NDArray[np.int64]) -> None:
        """The cosines of a prompt's pairs [query, key], which of them count, and how far apart they are."""
        self.group, self.mask = prompt % GROUPS, mask
        self.cosine = [np.where(mask, cosine, 0.0), self._centred(cosine)]
        found, counts = np.unique(lags[mask], return_counts=True)
        self.about.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))

    def add(self, head: int, *values: NDArray[Any]) -> None:
        """What a head makes of these pairs, for each of the kinds [query, key]."""
        n = float(self.mask.sum())
        for kind, one in enumerate(values):
            wide = np.asarray(one, dtype=np.float64)
            for within, v in enumerate((np.where(self.mask, wide, 0.0), self._centred(wide))):
                c = self.cosine[within]
                self.sums[self.group, head, kind, within] += (
                    n,
                    c.sum(),
                    (c * c).sum(),
                    v.sum(),
                    (v * v).sum(),
                    (c * v).sum(),
                )

    def correlations(self) -> tuple[Floats, Floats]:
        """Correlations [head, kind, 2] and their standard errors by leaving out groups of prompts."""
        total = self.sums.sum(axis=0)
        return _correlation(total), jackknife(_correlation(total - self.sums), self.sums[..., 0] > 0)

    def cosines(self) -> tuple[float, float]:
        """Mean and variance of the cosines."""
        n, c, square = self.sums[:, 0, 0, 0, :3].sum(axis=0)
        return float(c / n), float(square / n - (c / n) ** 2)

    def lags(self) -> tuple[Floats, Floats]:
        """The lags of the pairs and how many pairs had each."""
        order = sorted(self.about)
        return np.array(order, dtype=np.float64), np.array([self.about[lag] for lag in order], dtype=np.float64)

    def _centred(self, values: Floats) -> Floats:
        """Less the mean over the keys of each query; a softmax sees no more."""
        kept = np.where(self.mask, values, 0.0)
        mean = kept.sum(axis=1) / np.maximum(self.mask.sum(axis=1), 1)
        return np.where(self.mask, kept - mean[:, None], 0.0)


def _correlation(sums: Floats) -> Floats:
    n, c, cc, v, vv, cv = np.moveaxis(sums, -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = (cc - c**2 / n) * (vv - v**2 / n)
        # What is constant is correlated with nothing.
        flat = (cc - c**2 / n <= 1e-12 * cc) | (vv - v**2 / n <= 1e-12 * vv)
        return np.where(flat, np.nan, (cv - c * v / n) / np.sqrt(np.maximum(spread, np.finfo(np.float64).tiny)))
