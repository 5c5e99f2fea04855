"""What follows a token, from counts: the embeddings of its successors as a weighted set of vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens.maths.moments import Arrays, Floats
from gausslens.maths.spectra import effective_rank, rank

from . import weighted_vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Bigrams:
    """Counts of neighbouring tokens, and the embedding of each token that was seen."""

    def __init__(self) -> None:
        self.pairs: Counter[tuple[int, int]] = Counter()
        self.sums: dict[int, Floats] = {}
        self.counts: Counter[int] = Counter()

    def add(self, tokens: NDArray[Any], counted: NDArray[np.bool_], embeddings: NDArray[Any]) -> None:
        """Take in tokens [prompt, position] and their embeddings; pairs count where both tokens do."""
        both = counted[:, :-1] & counted[:, 1:]
        pairs, times = np.unique(np.stack([tokens[:, :-1][both], tokens[:, 1:][both]]), axis=1, return_counts=True)
        for first, second, many in zip(*pairs.tolist(), times.tolist(), strict=True):
            self.pairs[first, second] += many
        # An embedding with a position in it differs from place to place: its mean stands for the token.
        seen, place = np.unique(tokens[counted], return_inverse=True)
        sums = np.zeros((len(seen), embeddings.shape[-1]))
        np.add.at(sums, place.ravel(), embeddings[counted].astype(np.float64))
        for token, total, many in zip(seen.tolist(), sums, np.bincount(place.ravel()).tolist(), strict=True):
            self.sums[token] = self.sums[token] + total if token in self.sums else total
            self.counts[token] += many

    def merge(self, other: Bigrams) -> None:
        """Take in what another shard has seen; ``other`` is not changed."""
        self.pairs.update(other.pairs)
        self.counts.update(other.counts)
        for token, total in other.sums.items():
            self.sums[token] = self.sums[token] + total if token in self.sums else total

    def state(self) -> Arrays:
        """All of it as arrays: a row for each pair, and for each token."""
        tokens = list(self.sums)
        return {
            "pairs": np.array([(*pair, many) for pair, many in self.pairs.items()], dtype=np.int64).reshape(-1, 3),
            "tokens": np.array([(token, self.counts[token]) for token in tokens], dtype=np.int64).reshape(-1, 2),
            "sums": np.array([self.sums[token] for token in tokens]),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what ``state`` gave."""
        self.pairs = Counter({(first, second): many for first, second, many in state["pairs"].tolist()})
        self.counts = Counter(dict(state["tokens"].tolist()))
        self.sums = dict(zip(self.counts, state["sums"], strict=True))

    def followers(self, most: int) -> tuple[list[int], dict[int, tuple[list[int], list[int]]]]:
        """The tokens that are followed most often, and for each its successors with their counts."""
        following: dict[int, tuple[list[int], list[int]]] = {}
        for (first, second), many in sorted(self.pairs.items()):
            successors, times = following.setdefault(first, ([], []))
            successors.append(second)
            times.append(many)
        order = sorted(following, key=lambda token: (-sum(following[token][1]), token))
        return order[:most], following

    def embedding(self, token: int) -> Floats:
        """The mean embedding of a token."""
        found: Floats = self.sums[token] / self.counts[token]
        return found

    def statistics(self, most: int, keep: int) -> dict[str, Any]:
        """For the tokens that are followed most often, the moments of their successors' embeddings.

        ``token``, ``times``, ``successors`` (how many different), ``second_moment`` (its trace), ``trace`` and
        ``effective_rank`` of the covariance, and its leading eigenvalues, from the Gram matrix. ``explained`` is the
        share of the variance of the next embedding that knowing the token removes, over all tokens followed at least
        twice: 1 - E[tr Cov(next | token)] / tr Cov(next), both unbiased.
        """
        order, following = self.followers(most)
        spectra = np.zeros((len(order), keep))
        rows: dict[str, list[float]] = {"times": [], "successors": [], "second_moment": [], "trace": [], "rank": []}
        rows["effective_rank"] = []
        for row, token in enumerate(order):
            successors, times = following[token]
            vectors = np.stack([self.embedding(s) for s in successors])
            values = weighted_vectors.spectrum(vectors, times)
            spectra[row, : len(values)] = values[:keep]
            shares = np.array(times) / sum(times)
            rows["times"].append(sum(times))
            rows["successors"].append(len(successors))
            rows["second_moment"].append(float(shares @ (vectors**2).sum(axis=1)))
            rows["trace"].append(float(values.sum()))
            rows["rank"].append(float(rank(values)))
            rows["effective_rank"].append(float(effective_rank(values)))
        return {"token": order, "spectrum": spectra, "explained": self._explained(following), **rows}

    def _explained(self, following: dict[int, tuple[list[int], list[int]]]) -> float:
        within, total_second, many = 0.0, 0.0, 0
        total = np.zeros_like(next(iter(self.sums.values())))
        for successors, times in following.values():
            n = sum(times)
            if n < 2:
                continue
            vectors = np.stack([self.embedding(s) for s in successors])
            weights = np.array(times, dtype=np.float64)
            mean = weights @ vectors / n
            second = float(weights @ (vectors**2).sum(axis=1))
            within += (second - n * float(mean @ mean)) * n / (n - 1)
            total_second += second
            total += weights @ vectors
            many += n
        if many < 2:
            return float("nan")
        spread = (total_second - float(total @ total) / many) * many / (many - 1)
        return 1 - within / spread if spread > 0 else float("nan")
