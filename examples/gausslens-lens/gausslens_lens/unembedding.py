"""From a stream to logits, by public facts and tensors:  logits = cap(scale norm(x) W_U + b_U).

The final norm is of the kind that the fact `norm` tells, with `norm_epsilon`, gain `ln_final.w` and shift `ln_final.b`
where there are; scale and cap are the facts `logit_scale` and `final_soft_cap`. Whoever uses it holds it against the
logits of the model itself (`hold`), and refuses a model whose logits are not these.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gausslens import LayerWeights, ModelError, ModelInfo

# What two ways of one sum may differ by, as a share of the largest number, by type.
TOLERANCE = {"float64": 1e-6, "float32": 1e-4}
COARSE = 3e-2


@dataclass(frozen=True)
class Unembedding:
    """The end of a model: float64 on the device of its weights, or the type that it is made in."""

    model: str
    norm: str | None
    epsilon: float
    gain: torch.Tensor | None
    shift: torch.Tensor | None
    matrix: torch.Tensor
    bias: torch.Tensor | None
    scale: float
    cap: float | None
    tolerance: float

    @classmethod
    def of(cls, info: ModelInfo, weights: LayerWeights, dtype: torch.dtype = torch.float64) -> Unembedding:
        """What a model tells: ``weights`` are its tensors outside the layers. A ModelError names what is missing."""
        facts = info.facts
        if "W_U" not in weights:
            raise ModelError(f"{info.name} has no W_U: there are no logits to read a stream by")

        def tensor(name: str) -> torch.Tensor | None:
            return weights[name].to(dtype) if name in weights else None

        normed = "ln_final.w" in weights or (facts.norm_first and not facts.gains)
        cap = facts.get("final_soft_cap")
        return cls(
            model=info.name,
            norm=facts.norm if normed else None,
            epsilon=facts.epsilon if normed else 0.0,
            gain=tensor("ln_final.w"),
            shift=tensor("ln_final.b"),
            matrix=weights["W_U"].to(dtype),
            bias=tensor("b_U"),
            scale=facts.logit_scale,
            cap=None if cap is None else float(cap),
            tolerance=TOLERANCE.get(info.dtype, COARSE),
        )

    def centred(self, x: torch.Tensor) -> torch.Tensor:
        """x less its mean where the norm is a LayerNorm, else as it is; so are directions that x is read along."""
        return x - x.mean(-1, keepdim=True) if self.norm == "layer" else x

    def size(self, x: torch.Tensor) -> torch.Tensor:
        """What the norm divides x by, [..., 1]: sqrt(mean square + epsilon), of LayerNorm about the mean."""
        if self.norm is None:
            return torch.ones_like(x[..., :1])
        return (self.centred(x).square().mean(-1, keepdim=True) + self.epsilon).sqrt()

    def uncapped(self, x: torch.Tensor) -> torch.Tensor:
        """Logits before the final soft cap, of streams [..., d_model]."""
        x = x.to(self.matrix.dtype)
        normed = self.centred(x) / self.size(x)
        normed = normed if self.gain is None else normed * self.gain
        normed = normed if self.shift is None else normed + self.shift
        logits = self.scale * (normed @ self.matrix)
        return logits if self.bias is None else logits + self.bias

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [..., token]."""
        found = self.uncapped(x)
        return found if self.cap is None else self.cap * torch.tanh(found / self.cap)

    def hold(self, last: torch.Tensor, logits: torch.Tensor) -> None:
        """Refuse a model whose logits are not those of the stream behind its last layer."""
        refuse_difference(self.model, "logits", self.logits(last), logits, self.tolerance, END)


END = (
    "the final norm (facts norm, norm_epsilon; ln_final.w, ln_final.b), W_U, b_U, logit_scale and final_soft_cap are "
    "not all that stands between its last stream and its logits, or one of them is told wrongly"
)


def refuse_difference(
    model: str, what: str, made: torch.Tensor, given: torch.Tensor, tolerance: float, why: str
) -> None:
    """A ModelError where a formula does not give what the model has, as a share of the largest number."""
    given = given.to(made.dtype)
    difference, allowed = float((made - given).abs().max()), tolerance * max(1.0, float(given.abs().max()))
    if not difference <= allowed:
        found = f"{model}: {what} differ from the model's own by {difference:.3g} (allowed {allowed:.3g})"
        raise ModelError(f"{found}: {why}")
