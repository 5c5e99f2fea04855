"""A TopK autoencoder, and one step of its training. Pure torch, on vectors x [sample, d_in].

    a = TopK(max(0, W_enc (x - b_dec) + b_enc))        x^ = W_dec a + b_dec

TopK keeps the k largest entries of each sample. The recipe is that of Gao et al., "Scaling and evaluating sparse
autoencoders" (arXiv 2406.04093, 2024): rows of the decoder have length 1, the encoder starts as its transpose, b_dec as
the geometric median of the data, the gradient along a row of the decoder is taken out, and features that have not fired
for long are trained on what the others leave over (the auxiliary loss).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

Tensor = torch.Tensor


@dataclass(frozen=True)
class Autoencoder:
    """Its tensors, and how many features fire at once."""

    encoder: Tensor  # [d_in, feature]
    encoder_bias: Tensor  # [feature]
    decoder: Tensor  # [feature, d_in]
    decoder_bias: Tensor  # [d_in]
    k: int

    def before(self, x: Tensor) -> Tensor:
        """What each feature reads, [sample, feature], before all but the largest are set to 0."""
        return (x - self.decoder_bias) @ self.encoder + self.encoder_bias

    def encode(self, x: Tensor) -> Tensor:
        """How strongly each feature fires, [sample, feature]: at most k of each sample are not 0."""
        return largest(self.before(x), self.k)

    def decode(self, codes: Tensor) -> Tensor:
        """The vectors that these codes stand for, [sample, d_in]."""
        return codes @ self.decoder + self.decoder_bias

    def reconstruct(self, x: Tensor) -> Tensor:
        """x as the autoencoder has it."""
        return self.decode(self.encode(x))

    def in_units_of(self, scale: float) -> Autoencoder:
        """The same for data ``scale`` times as large: f(x) becomes scale f(x / scale), by the biases alone."""
        return replace(self, encoder_bias=self.encoder_bias * scale, decoder_bias=self.decoder_bias * scale)


def largest(values: Tensor, k: int, least: float = 0.0) -> Tensor:
    """The k largest of each row, those below ``least`` raised to it, and 0 elsewhere."""
    top = values.topk(min(k, values.shape[-1]), dim=-1)
    return torch.zeros_like(values).scatter(-1, top.indices, top.values.clamp(min=least))


def geometric_median(x: Tensor, rounds: int = 50) -> Tensor:
    """The point [d_in] of least summed distance to all x, by Weiszfeld's iteration: outliers move it little."""
    at: Tensor = x.mean(0)
    for _ in range(rounds):
        weights = 1 / (x - at).norm(dim=1).clamp(min=1e-12)
        at = (weights[:, None] * x).sum(0) / weights.sum()
    return at


@dataclass(frozen=True)
class Ball:
    """The vectors that count: those no further than a radius from a centre [d_in].

    A few tokens of a trained transformer have vectors a hundred times as long as all others (Sun et al., "Massive
    activations in large language models", arXiv 2402.17762, 2024). One is as much variance as ten thousand others.
    """

    centre: Tensor
    radius: float

    def holds(self, x: Tensor) -> Tensor:
        """Which of x [..., d_in] count."""
        distance: Tensor = (x - self.centre).norm(dim=-1)
        return distance.le(self.radius)


def ball_of(x: Tensor, times: float | None) -> Ball:
    """The ball about the geometric median of x with so many times the median distance as its radius (None: no end)."""
    centre = geometric_median(x)
    return Ball(centre, math.inf if times is None else times * float((x - centre).norm(dim=1).median()))


def mean_distance(x: Tensor, centre: Tensor) -> float:
    """The mean distance of x from a centre: the unit in which an autoencoder is trained."""
    return float((x - centre).norm(dim=1).mean())


def unit_rows(matrix: Tensor) -> Tensor:
    """Its rows, each scaled to length 1."""
    return torch.nn.functional.normalize(matrix, dim=1)


def across_rows(gradient: Tensor, rows: Tensor) -> Tensor:
    """A gradient without its component along each of these rows of length 1, which their lengths undo anyway."""
    return gradient - (gradient * rows).sum(1, keepdim=True) * rows


def beginning(directions: Tensor, centre: Tensor, k: int) -> Autoencoder:
    """An autoencoder before its training, from random directions [feature, d_in]."""
    rows = unit_rows(directions)
    return Autoencoder(rows.T.clone(), rows.new_zeros(len(rows)), rows.clone(), centre.clone(), k)


def loss(of: Autoencoder, x: Tensor, silent: Tensor, auxiliary: int, weight: float) -> tuple[Tensor, Tensor, Tensor]:
    """What is made small; the residual x - x^ [sample, d_in]; and which features fired [feature].

    mean |x - x^|^2 + weight mean |e - e^|^2, where e is the residual, held fixed, and e^ what the ``auxiliary`` largest
    of the ``silent`` features [feature] make of it (Gao et al., appendix A.2), negative or not: a feature that is below
    0 everywhere would have no gradient otherwise. Without silent features there is the first term alone.
    """
    before = of.before(x)
    codes = largest(before, of.k)
    residual = x - of.decode(codes)
    total = residual.square().sum(1).mean()
    if weight and bool(silent.any()):
        dead = largest(before[:, silent], auxiliary, -math.inf) @ of.decoder[silent]
        total = total + weight * (residual.detach() - dead).square().sum(1).mean()
    return total, residual.detach(), (codes > 0).any(0)
