"""What follows a token, from counts: the embeddings of its successors as a weighted set of vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens.maths.moments import Arrays, Floats
from gausslens.maths.spectra import effective_rank, rank

from . import weighted_vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray


# What five followers of a token would cover in Wertich (2024), 4.2.3.
OFTEN = 0.9
# What is taken from each count for what was not seen.
DISCOUNT = 0.75


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

    def covered(self, many: int) -> dict[str, float]:
        """How much of what follows a token its ``many`` most frequent followers hold; means over all that follows.

        ``held`` as counted, ``often`` the share that follows tokens where they hold more than OFTEN of it. Both are too
        high where a token is followed a few times: five followers hold all of five. ``smoothed`` and ``often_smoothed``
        are the same of p(w | v) = max(c(vw) - D, 0)/c(v) + D n(v)/c(v) p(w), with D = 0.75, n(v) followers and
        p(w) the share of w of all that follows (Ney, Essen and Kneser 1994), over all w. ``held_out`` is the share that
        is among the most frequent followers of the others, each counted without itself; equally frequent ones share.
        """
        _, following = self.followers(0)
        unigram: Counter[int] = Counter()
        for (_, second), count in self.pairs.items():
            unigram[second] += count
        total, frequent = sum(unigram.values()), unigram.most_common()
        sums = dict.fromkeys(("held", "often", "smoothed", "often_smoothed", "held_out"), 0.0)
        for successors, listed in following.values():
            times = np.array(listed, dtype=np.float64)
            n = times.sum()
            left = DISCOUNT * len(times) / n / total
            known = set(successors)
            # Of those that never followed, the most frequent alone can be among the first.
            others = islice((c for w, c in frequent if w not in known), many)
            seen = (times - DISCOUNT) / n + left * np.array([unigram[w] for w in successors])
            smoothed = np.array([*seen, *(left * c for c in others)])
            for end, shares in (("", times / n), ("_smoothed", smoothed)):
                top = float(np.sort(shares)[::-1][:many].sum())
                sums["smoothed" if end else "held"] += n * top
                sums[f"often{end}"] += n * (top > OFTEN)
            sums["held_out"] += float(times @ _among(times, many))
        return {name: one / max(total, 1) for name, one in sums.items()}

    def angles(self, token: int, following: dict[int, tuple[list[int], list[int]]]) -> tuple[float, float, float]:
        """Of what follows a token, as vectors v_i of weights l_i: mean cosine, and the spectrum that angles make.

        The mean of cos(v_i, v_j) over i != j by l_i l_j (NaN of one follower); the share of the leading eigenvalue of
        sum l_i v_i v_i^T; and what that would be were all v_i orthogonal, the largest l_i |v_i|^2 over their sum.
        """
        successors, times = following[token]
        vectors = np.stack([self.embedding(s) for s in successors])
        weights = np.array(times) / sum(times)
        lengths = np.linalg.norm(vectors, axis=1)
        units = vectors / np.maximum(lengths, np.finfo(float).tiny)[:, None]
        apart = 1 - float(weights @ weights)
        cosine = (float(np.sum((weights @ units) ** 2)) - float(weights @ weights)) / apart if apart > 0 else np.nan
        own = weights * lengths**2
        values = np.linalg.eigvalsh(weighted_vectors.gram(vectors, weights))
        return cosine, float(values[-1] / own.sum()), float(own.max() / own.sum())

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


def _among(times: Floats, many: int) -> Floats:
    """Of each follower: whether it is among the ``many`` most frequent where one of its own times is not counted."""
    left = times - 1
    others = np.sort(times)
    # The others that are more frequent than it then is, and those that are as frequent: it is neither, for it was more.
    more = len(times) - np.searchsorted(others, left, side="right") - 1
    equal = np.searchsorted(others, left, side="right") - np.searchsorted(others, left, side="left")
    found: Floats = np.where(left > 0, np.clip((many - more) / (equal + 1), 0, 1), 0.0)
    return found
