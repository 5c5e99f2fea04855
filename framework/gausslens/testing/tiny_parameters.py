"""What can be chosen of the tiny model."""

from __future__ import annotations

from pydantic import Field, model_validator

from ..contract.parameters import Parameters


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
    attention_free: list[int] = Field(default=[], description="Layers that have no attention, as in a hybrid model.")

    @model_validator(mode="after")
    def _fits(self) -> TinyParameters:
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads {self.kv_heads} does not divide heads {self.heads}")
        for layer, head, _ in self.planted:
            if not (0 <= layer < self.layers and 0 <= head < self.heads):
                raise ValueError(f"there is no head {head} of layer {layer} to plant")
        return self
