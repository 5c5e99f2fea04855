"""Rows of attention on a device: what is summed over keys there, so that the maps themselves are not copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .two_floats import on_host, summed
from .widths import in_numpy

if TYPE_CHECKING:
    import torch

    from .widths import Floats


def entropy_and_deficit(rows: torch.Tensor, even: torch.Tensor) -> tuple[Floats, Floats]:
    """H = -sum p log p and sum p log(p / u) of rows p [..., key] beside u, which is above 0 wherever p is.

    In float64; of float32, on a device that has no more, terms are rounded and their sums are not: to about 3e-7 nats.
    """
    import torch

    seen = rows > 0
    ratio = torch.where(seen, rows / torch.where(seen, even, 1.0), 1.0)
    terms = (torch.special.xlogy(rows, torch.where(seen, rows, 1.0)), rows * ratio.log())
    entropy, deficit = (summed_over_keys(term) for term in terms)
    return -entropy, deficit


def summed_over_keys(terms: torch.Tensor) -> Floats:
    """The sums over the last axis, as numpy."""
    import torch

    if terms.dtype == torch.float64:
        found: Floats = in_numpy(terms.sum(dim=-1))
        return found
    return on_host(summed((terms, torch.zeros_like(terms)), terms.dim() - 1))
