"""From the residual stream to a head's values: the norm before attention, and W_V. Torch in, numpy out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gausslens import LayerWeights
from gausslens.maths.moments import Floats

from ..maths.norms import through_norm


@dataclass(frozen=True)
class ValuePath:
    """v = W_V^T (gain * norm(x) + shift) + b_V for each key/value head; without a norm first, v = W_V^T x + b_V.

    ``norm`` is "rms" or "layer". Where it does not stand ``first``, attention reads the residual stream as it is, and
    gain and shift are those of nothing: 1 and 0.
    """

    matrices: Floats  # [kv_head, d_model, d_head]
    biases: Floats  # [kv_head, d_head]
    gain: Floats
    shift: Floats
    norm: str
    first: bool
    epsilon: float

    @classmethod
    def of(cls, weights: LayerWeights) -> ValuePath:
        """The path of one layer, from its tensors as edits leave them; what its loader does not tell is refused."""
        facts = weights.info.facts
        norm, epsilon, first = facts.norm, facts.epsilon, facts.norm_first
        W = _tensor(weights, "W_V", True)
        assert W is not None
        gain = _tensor(weights, "ln1.w", facts.gains) if first else None
        shift = _tensor(weights, "ln1.b", False) if first else None
        bias = _tensor(weights, "b_V", "b_V" in facts.biases)
        return cls(
            W,
            np.zeros((len(W), W.shape[2])) if bias is None else bias,
            np.ones(W.shape[1]) if gain is None else gain,
            np.zeros(W.shape[1]) if shift is None else shift,
            norm,
            first,
            epsilon,
        )

    def normed(self, x: Floats) -> Floats:
        """What W_V is applied to, for vectors [..., d_model]."""
        if not self.first:
            return x
        centred = x - x.mean(axis=-1, keepdims=True) if self.norm == "layer" else x
        scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self.epsilon)
        found: Floats = centred / scale * self.gain + self.shift
        return found

    def values(self, x: Floats) -> Floats:
        """Values [..., kv_head, d_head] of vectors [..., d_model]."""
        found: Floats = np.einsum("...d,hde->...he", self.normed(x), self.matrices, optimize=True) + self.biases
        return found

    def pushed(self, mean: Floats, cov: Floats) -> tuple[Floats, Floats]:
        """Mean [kv_head, d_head] and covariance of the values, if the residual stream is N(mean, cov)."""
        if self.first:
            mean, cov = through_norm(mean, cov, self.epsilon, centred=self.norm == "layer")
            mean, cov = self.gain * mean + self.shift, self.gain[:, None] * cov * self.gain
        return self.mapped(mean, cov)

    def mapped(self, mean: Floats, cov: Floats) -> tuple[Floats, Floats]:
        """The same of what W_V is applied to: a linear map, so exact for any distribution."""
        spread: Floats = np.swapaxes(self.matrices, 1, 2) @ cov @ self.matrices
        return np.einsum("d,hde->he", mean, self.matrices) + self.biases, spread


def _tensor(weights: LayerWeights, name: str, needed: bool) -> Floats | None:
    """A tensor in float64, or None; one that is needed and not there is refused with its name."""
    if name not in weights and not needed:
        return None
    found: Floats = weights[name].detach().cpu().double().numpy()
    return found
