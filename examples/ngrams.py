"""Unigram, bigram and trigram models of tokens: what a model must beat to have learned more than short habits."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

DISCOUNT = 0.75
Context = tuple[int, ...]


class NGrams:
    """Interpolated absolute discounting: p(w | h) = max(c(hw) - D, 0) / c(h) + D n(h) / c(h) p(w | shorter h).

    n(h) is how many different tokens followed h; D = 0.75. Below the unigrams everything is uniform.
    """

    def __init__(self, longest: int, vocabulary: int) -> None:
        self.longest = longest
        self.vocabulary = vocabulary
        self.after: dict[Context, Counter[int]] = defaultdict(Counter)
        self.total: Counter[Context] = Counter()

    def learn(self, rows: Iterable[Sequence[int]]) -> NGrams:
        """Count the tokens of rows, each after its contexts of every length."""
        for row in rows:
            for place, token in enumerate(row):
                for length in range(min(self.longest, place + 1)):
                    context = tuple(row[place - length : place])
                    self.after[context][token] += 1
                    self.total[context] += 1
        return self

    def nats(self, token: int, before: Sequence[int], order: int) -> float:
        """-log p(token | the order - 1 tokens before)."""
        p = 1 / self.vocabulary
        for length in range(order):
            if length > len(before):
                break
            context = tuple(before[len(before) - length :])
            seen = self.total[context]
            if seen:
                followers = self.after[context]
                p = (max(followers[token] - DISCOUNT, 0) + DISCOUNT * len(followers) * p) / seen
        return -math.log(p)
