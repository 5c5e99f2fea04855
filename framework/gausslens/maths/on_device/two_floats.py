"""Sums on a device without float64: a number is the sum of two float32, and no addition loses what it rounds away.

An operation of torch is a kernel of its own, so no compiler reorders what is added here. A pair (high, low) carries 48
bits; (s, e) = a + b and (p, e) = a b are exact (Knuth 1969; Dekker 1971), as long as nothing under- or overflows: for
products that is between 1e-15 and 1e15. Sums go by halves, so errors grow with log n: about log2(n) 2^-48 of the sum of
absolute values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from .widths import alike

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    Pair: TypeAlias = "tuple[torch.Tensor, torch.Tensor]"

# 2^12 + 1 splits the 24 bits of a float32 into two halves whose products are exact.
_SPLIT = 4097.0


def two_sum(a: torch.Tensor, b: torch.Tensor) -> Pair:
    """a + b, and what rounding took from it (Knuth)."""
    total = a + b
    seen = total - a
    return total, (a - (total - seen)) + (b - seen)


def two_product(a: torch.Tensor, b: torch.Tensor) -> Pair:
    """A b, and what rounding took from it (Dekker, Veltkamp)."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return product, a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


def _halves(a: torch.Tensor) -> Pair:
    large = _SPLIT * a
    high = large - (large - a)
    return high, a - high


def added(one: Pair, other: Pair) -> Pair:
    """The sum of two pairs."""
    total, rest = two_sum(one[0], other[0])
    return two_sum(total, rest + (one[1] + other[1]))


def less(a: torch.Tensor, pair: Pair) -> Pair:
    """A - pair, as a pair: exact where the two are near each other, as numbers of large mean and small spread are."""
    total, rest = two_sum(a, -pair[0])
    return two_sum(total, rest - pair[1])


def squared(pair: Pair) -> Pair:
    """The square of a pair."""
    product, rest = two_product(pair[0], pair[0])
    return two_sum(product, rest + 2 * pair[0] * pair[1])


def summed(pair: Pair, axis: int) -> Pair:
    """The sum along an axis, by halves."""
    import torch

    high, low = pair
    while (many := high.shape[axis]) > 1:
        half = many // 2
        (a, b), (c, d) = ((part.narrow(axis, 0, half), part.narrow(axis, half, half)) for part in (high, low))
        total, rest = two_sum(a, b)
        rest = rest + (c + d)
        if many % 2:
            total, rest = (
                torch.cat([one, part.narrow(axis, many - 1, 1)], dim=axis) for one, part in ((total, high), (rest, low))
            )
        high, low = total, rest
    return two_sum(high.squeeze(axis), low.squeeze(axis))


def on_host(pair: Pair) -> NDArray[np.float64]:
    """A pair in double precision, as numpy."""
    high, low = (part.cpu().numpy().astype(np.float64) for part in pair)
    with np.errstate(invalid="ignore"):  # of what is not finite
        found: NDArray[np.float64] = high + low
    return found


def split(values: NDArray[np.float64], like: torch.Tensor) -> Pair:
    """Doubles as pairs, where ``like`` lies."""
    with np.errstate(invalid="ignore", over="ignore"):
        high = values.astype(np.float32)
        low = (values - high).astype(np.float32)
    return alike(high, like), alike(low, like)
