"""From the residual stream to a head's values: the norm before attention, and W_V. Torch in, numpy out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gausslens import LayerWeights, ModelInfo
from gausslens.maths.moments import Floats

from .norms import through_norm


@dataclass(frozen=True)
class ValuePath:
    """v = W_V^T (gain * norm(x) + shift) + b_V for each key/value head; without a norm first, v = W_V^T x + b_V."""

    matrices: Floats  # [kv_head, d_model, d_head]
    biases: Floats  # [kv_head, d_head]
    gain: Floats
    shift: Floats
    norm: str | None  # "rms", "layer", or None where attention reads the residual stream as it is
    epsilon: float

    @classmethod
    def of(cls, weights: LayerWeights) -> ValuePath:
        """The path of one layer, from its tensors as edits leave them."""
        info = weights.info
        W = _numpy(weights, "W_V")
        assert W is not None
        width = W.shape[1]
        bias, gain, shift = (_numpy(weights, name) for name in ("b_V", "ln1.w", "ln1.b"))
        first = bool(info.facts.get("norm_first", True))
        return cls(
            W,
            np.zeros((len(W), W.shape[2])) if bias is None else bias,
            np.ones(width) if gain is None or not first else gain,
            np.zeros(width) if shift is None or not first else shift,
            norm_of(info) if first else None,
            float(info.facts.get("norm_epsilon", 1e-6)),
        )

    def normed(self, x: Floats) -> Floats:
        """What W_V is applied to, for vectors [..., d_model]."""
        if self.norm is None:
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
        if self.norm is not None:
            mean, cov = through_norm(mean, cov, self.epsilon, centred=self.norm == "layer")
            mean, cov = self.gain * mean + self.shift, self.gain[:, None] * cov * self.gain
        return self.mapped(mean, cov)

    def mapped(self, mean: Floats, cov: Floats) -> tuple[Floats, Floats]:
        """The same of what W_V is applied to: a linear map, so exact for any distribution."""
        spread: Floats = np.swapaxes(self.matrices, 1, 2) @ cov @ self.matrices
        return np.einsum("d,hde->he", mean, self.matrices) + self.biases, spread


def norm_of(info: ModelInfo) -> str:
    """Which norm a model uses: "rms" or "layer"."""
    return str(info.facts.get("norm", "rms"))


def _numpy(weights: LayerWeights, name: str) -> Floats | None:
    if name not in weights:
        return None
    found: Floats = weights[name].detach().cpu().double().numpy()
    return found
