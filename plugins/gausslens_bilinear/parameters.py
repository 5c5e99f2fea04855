"""The parameters of the analyses of this plugin."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from gausslens import Parameters

Matrix = Literal["W_Q", "W_K", "W_V", "W_O", "W_in", "W_gate", "W_out"]


class SpectrumParameters(Parameters):
    """Parameters of bilinear.spectrum."""

    matrices: tuple[Matrix, ...] = Field(
        ("W_Q", "W_K", "W_V", "W_O", "W_in", "W_gate", "W_out"),
        min_length=1,
        description="Which weight matrices; those that a layer does not have are left out.",
    )
    per_head: bool = Field(
        False, description="Also each head's own block of W_Q and W_O, each key/value head's of W_K and W_V."
    )

    @field_validator("matrices")
    @classmethod
    def _each_once(cls, matrices: tuple[Matrix, ...]) -> tuple[Matrix, ...]:
        twice = sorted({m for m in matrices if matrices.count(m) > 1})
        if twice:
            raise ValueError(f"{twice[0]} is named twice")
        return matrices


class AlignmentParameters(Parameters):
    """Parameters of bilinear.alignment."""

    gains: bool = Field(
        False, description="Multiply W_Q, W_K and W_V by the gain of the norm before them, as the model in effect does."
    )
    composition: bool = Field(
        True,
        description="Compose each head with every head of earlier layers; the factors of all layers are then held.",
    )
