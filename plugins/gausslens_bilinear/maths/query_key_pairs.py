"""Pairs of queries and keys at each lag: what a layer's state holds of them. Numpy; arrays alone, no batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gausslens.maths.resampling import jackknife, standard

if TYPE_CHECKING:
    from collections.abc import Sequence

Floats: TypeAlias = NDArray[np.float64]


@dataclass
class Joint:
    """Sums of z and z z^T of z = (query, key) at one lag, for each head: the Gaussian of pairs."""

    count: int
    total: Floats
    outer: Floats

    @classmethod
    def empty(cls) -> Joint:
        """Of nothing, to be filled."""
        return cls(0, np.zeros(0), np.zeros(0))

    @classmethod
    def of(cls, query: NDArray[Any], key: NDArray[Any]) -> Joint:
        """Of pairs [pair, head, d_head]."""
        z = np.concatenate([query, key], axis=-1).astype(np.float64).transpose(1, 0, 2)
        return cls(z.shape[1], z.sum(axis=1), z.swapaxes(1, 2) @ z)

    def merge(self, other: Joint) -> None:
        """Take in other pairs."""
        self.count += other.count
        self.total += other.total
        self.outer += other.outer

    def gaussian(self) -> tuple[Floats, Floats]:
        """Mean [head, 2 d_head] and covariance [head, 2 d_head, 2 d_head] (over n)."""
        mean = self.total / self.count
        return mean, self.outer / self.count - mean[:, :, None] * mean[:, None, :]


@dataclass
class Sample:
    """Held-out tokens with the smallest numbers of all seen: the same ones in whatever order they come.

    ``order`` numbers tokens at random; ``prompt`` and ``group`` say where each is from; query and key are content.
    """

    most: int
    order: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))
    prompt: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    group: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    query: NDArray[np.float32] | None = None
    key: NDArray[np.float32] | None = None

    def add(
        self,
        order: NDArray[np.uint64],
        prompt: NDArray[np.int64],
        group: NDArray[np.int64],
        query: NDArray[np.float32],
        key: NDArray[np.float32],
    ) -> None:
        """Take in tokens, and keep those with the smallest numbers."""
        if self.query is not None and self.key is not None:
            order = np.concatenate([self.order, order])
            prompt, group = np.concatenate([self.prompt, prompt]), np.concatenate([self.group, group])
            query, key = np.concatenate([self.query, query]), np.concatenate([self.key, key])
        kept = np.lexsort((prompt, order))[: self.most]
        self.order, self.prompt, self.group = order[kept], prompt[kept], group[kept]
        self.query, self.key = query[kept], key[kept]

    def merge(self, other: Sample) -> None:
        """Take in another's tokens."""
        if other.query is not None and other.key is not None:
            self.add(other.order, other.prompt, other.group, other.query, other.key)

    def moments(self, forms: Sequence[Floats], heads: int, key_of: Sequence[int]) -> tuple[Floats, Floats]:
        """Moments of q^T C k over pairs from different prompts, and errors, [head, form, 4]."""
        found, errors = np.full((2, heads, len(forms), 4), np.nan)
        if self.query is None or self.key is None:
            return found, errors
        apart = (self.prompt[:, None] != self.prompt[None, :]).astype(np.float64)
        groups = np.unique(self.group)
        member = (self.group[None, :] == groups[:, None]).astype(np.float64)
        pairs, power = member @ apart @ member.T, np.empty_like(apart)
        for head in range(heads):
            query, key = self.query[:, head].astype(np.float64), self.key[:, key_of[head]].astype(np.float64)
            for place, C in enumerate(forms):
                x = query @ C @ key.T
                np.copyto(power, apart)
                blocks = [pairs]
                for _ in range(4):
                    power *= x
                    blocks.append(member @ power @ member.T)
                # Sums of x^r over pairs of groups [r, group, group]; leaving one out takes a row and a column.
                between = np.stack(blocks)
                total = between.sum(axis=(1, 2))
                within = np.diagonal(between, axis1=1, axis2=2)
                touching = between.sum(axis=1) + between.sum(axis=2) - within
                left_out = standard((total[:, None] - touching).T)
                found[head, place] = standard(total)
                errors[head, place] = jackknife(left_out, np.ones(len(groups), dtype=bool))
        return found, errors


def token_numbers(prompts: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A number for each token, as if at random and always the same (splitmix64 of prompt and position)."""
    with np.errstate(over="ignore"):
        x = prompts.astype(np.uint64) * np.uint64(1 << 32) + positions.astype(np.uint64)
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
