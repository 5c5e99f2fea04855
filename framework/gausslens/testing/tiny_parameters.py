"""What can be chosen of the tiny model."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from ..contract.parameters import Parameters

_LATE = ("norm", "gains", "biases", "mlp", "parallel")


class TinyParameters(Parameters):
    """The shape of the tiny model, and what is planted in it."""

    layers: int = Field(default=2, ge=1, description="Number of layers.")
    heads: int = Field(default=4, ge=1, description="Query heads in each layer.")
    kv_heads: int = Field(default=2, ge=1, description="Key/value heads in each layer; must divide heads.")
    d_model: int = Field(default=16, ge=1, description="Width of the residual stream.")
    d_head: int = Field(default=6, ge=1, description="Width of a head; need not be d_model / heads.")
    seed: int = Field(default=0, description="Seed of the weights.")
    planted: list[tuple[int, int, float]] = Field(
        default=[],
        description="[layer, head, factor]: W_Q of this head is multiplied by factor. Initial draws are not.",
    )
    norm: Literal["rms", "layer"] = Field(default="rms", description="The norm before attention, MLP and logits.")
    gains: bool = Field(default=False, description="Gains of the norms, and with norm: layer their shifts.")
    biases: bool = Field(default=False, description="Biases of attention, and of the MLP if there is one.")
    mlp: bool = Field(default=False, description="An MLP in each layer, four times as wide as the stream.")
    parallel: bool = Field(default=False, description="The MLP reads the same normed stream as attention.")
    attention_free: list[int] = Field(default=[], description="Layers that have no attention, as in a hybrid model.")

    def canonical(self) -> dict[str, Any]:
        """What goes into a key; what this model had no choice of at first counts only where it is chosen."""
        late = {name: field.default for name, field in type(self).model_fields.items() if name in _LATE}
        return {n: value for n, value in super().canonical().items() if n not in late or value != late[n]}

    @model_validator(mode="after")
    def _fits(self) -> TinyParameters:
        if self.parallel and not self.mlp:
            raise ValueError("parallel says of an MLP what it reads: say mlp: true too")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads {self.kv_heads} does not divide heads {self.heads}")
        for layer, head, _ in self.planted:
            if not (0 <= layer < self.layers and 0 <= head < self.heads):
                raise ValueError(f"there is no head {head} of layer {layer} to plant")
        return self
